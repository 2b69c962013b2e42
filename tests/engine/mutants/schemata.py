"""All mutants of a CUDA kernel in one library, of which a number chooses one: a compile serves them all.

Mutant schemata (Untch, Offutt, Harrold: Mutation Analysis Using Mutant Schemata, ISSTA 1993). Where an operation is an
expression, the kernel asks at run time for the state of its mutant. Where it is an instruction in an asm statement,
a declaration in front of it marks its place in the library's PTX, which emulated GPUs execute, and GPUs do not.

A state is a digit: 0 stands for the kernel's operation, 1 for the mutant's, 2 for an error where the kernel reaches it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pkb_gym.engine.records.artifact import Artifact
from tests.engine.mutants.synchronisation import InlinedSource, untested_reads
from tests.engine.mutants.weakened_operations import Weakened, in_literal, inline_headers, weakened

_FIRST = 1_000_000_000
"""Immediate operands in PTX: this, ten for each number before the mutant's, and the digit of its state."""
_STATES = "mutants "
"""Text in front of the digits of all states, number 0 among them."""
_HEAD = f"""#include <cstdlib>
#define PKB_MUTANTS "{_STATES}%s"
extern "C" const volatile char pkb_mutants_of_host[] = PKB_MUTANTS;
namespace pkb_mutants {{
__host__ __device__ constexpr unsigned digit(unsigned number) {{
  return unsigned(PKB_MUTANTS[{len(_STATES)} + number] - '0');
}}
template <unsigned number>
__host__ __device__ inline unsigned state() {{
#ifdef __CUDA_ARCH__
  unsigned state;
  asm("mov.u32 %%0, %%1;" : "=r"(state) : "n"({_FIRST} + 10 * number + digit(number)));
  return state - ({_FIRST} + 10 * number);
#else
  asm volatile(".pushsection .pkb_mutants\\n.ascii \\"host mutant %%c0;\\"\\n.popsection" ::"i"(number));
  return unsigned(pkb_mutants_of_host[{len(_STATES)} + number] - '0');
#endif
}}
template <unsigned number>
__host__ __device__ inline bool is() {{
  return state<number>() == 1;
}}
template <unsigned number>
__host__ __device__ inline void trap() {{
  if (state<number>() != 2) return;
#ifdef __CUDA_ARCH__
  __trap();
#else
  std::abort();
#endif
}}
}}  // namespace pkb_mutants
"""
_MOVE = re.compile(rb"(?P<move>mov\.u32 +%\w+, )100(?P<number>\d{6})0;")
_MARKS = re.compile(rb"\.reg +\.b32 +mutant(\d{4});|host mutant (\d+);")


class NotInstantiated(LookupError):
    """The library has no function with the operation of a mutant."""


@dataclass(frozen=True)
class _Choice:
    """A mutant's text in place of an expression of the kernel; `number` counts mutants from 1."""

    number: int
    start: int
    end: int
    replacement: str


@dataclass(frozen=True)
class _Instruction:
    """A mutant of the instructions that follow a mark in PTX."""

    number: int
    weak: Weakened

    @property
    def name(self) -> str:
        """Name of a register that is declared in front of the instructions, and which nothing uses."""
        return f"mutant{self.number:04d}"


@dataclass(frozen=True)
class Schemata:
    """A kernel and its mutants.

    Attributes:
        names: Names of the mutants, as `InlinedSource.mutants` and `weakened` give them; numbers count them from 1.
        source: The kernel with all its mutants.
    """

    names: tuple[str, ...]
    source: str
    instructions: tuple[_Instruction, ...]

    @classmethod
    def of(cls, kernel: str) -> Schemata:
        """Has a mutant for each of the kernel's."""
        text, origins = inline_headers(kernel)
        inlined = InlinedSource.of(kernel)
        names: list[str] = []
        choices: list[_Choice] = []
        instructions: list[_Instruction] = []
        places = _places(inlined, text, origins)
        for mutant in inlined.mutants():
            names.append(mutant.name)
            for operation in mutant.operations:
                start, end = places(operation.start), places(operation.end)
                choices.append(_Choice(len(names), start, end, operation.replacement))
        for weak in weakened(kernel):
            names.append(weak.name)
            if in_literal(text, weak.start):
                instructions.append(_Instruction(len(names), weak))
            else:
                choices.append(_expression(len(names), text, weak))
        inserted: dict[int, str] = {}
        for each in instructions:
            at = _beginning(text, each.weak.start)
            inserted[at] = f"{inserted.get(at, '')}{{.reg .b32 {each.name};}} "
        for at, reads in untested_reads(text):
            inserted[at] = inserted.get(at, "") + reads
        body = _with_choices(text, choices, inserted)
        begin = re.search(r"^(?!#include|#pragma|//|\s*$)", body, re.MULTILINE)
        head = begin.start() if begin else 0
        source = body[:head] + _HEAD % ("0" * (1 + len(names))) + body[head:]
        return cls(tuple(names), source, tuple(instructions))

    def source_of(self, number: int = 0, *, traps: Collection[int] = ()) -> str:
        """The source of a mutant, which differs from that of the others in states alone; 0 is the kernel itself.

        Args:
            number: Number of the mutant, from 0 to the number of names.
            traps: Numbers of the mutants whose operations end the kernel with an error where it reaches them.
        """
        return self.source.replace(self._states(0, ()), self._states(number, traps))

    def library_of(self, artifact: Artifact, number: int = 0, *, traps: Collection[int] = ()) -> Artifact:
        """The library of `source_of`, from that of the kernel itself.

        Raises:
            NotInstantiated: No function of the library has the mutant's instruction.
        """
        assert artifact.binary is not None, artifact.log
        states = self._states(number, traps)
        digits = states.removeprefix(_STATES).encode()

        def with_state(match: re.Match[bytes]) -> bytes:
            at = int(match["number"])
            return match["move"] + b"%d;" % (_FIRST + 10 * at + digits[at] - ord("0"))

        binary = artifact.binary.replace(self._states(0, ()).encode(), states.encode())
        binary = _MOVE.sub(with_state, binary)
        for each in self.instructions:
            if each.number == number:
                binary, count = _patched(binary, each, traps=False)
                if count == 0:
                    raise NotInstantiated(each.weak.name)
            elif each.number in traps:
                binary, _ = _patched(binary, each, traps=True)
        return replace(artifact, binary=binary)

    def instantiated(self, artifact: Artifact) -> frozenset[int]:
        """The numbers of the mutants whose operations stand in some function of the library of the kernel."""
        assert artifact.binary is not None, artifact.log
        moved = {int(match["number"]) for match in _MOVE.finditer(artifact.binary)}
        marked = {int(match[1] or match[2]) for match in _MARKS.finditer(artifact.binary)}
        return frozenset(moved | marked)

    def _states(self, number: int, traps: Collection[int]) -> str:
        digits = ["0"] * (1 + len(self.names))
        for each in traps:
            digits[each] = "2"
        if number:
            digits[number] = "1"
        return _STATES + "".join(digits)


def _places(inlined: InlinedSource, text: str, origins: Sequence[tuple[str, int]]) -> Callable[[int], int]:
    """The place in the text of which all headers are inlined, by that in the text of `InlinedSource`."""
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    line_at = {origin: begins[line] for line, origin in enumerate(origins)}
    return lambda position: line_at[inlined.origin(position)] + inlined.column(position)


def _expression(number: int, text: str, weak: Weakened) -> _Choice:
    """The mutant of a call or of an argument."""
    if text.startswith("()", weak.end):  # the name of a function alone
        return _Choice(number, weak.start, weak.end + 2, f"{weak.replacement}()")
    return _Choice(number, weak.start, weak.end, weak.replacement)


def _beginning(text: str, at: int) -> int:
    """The begin of an instruction in a literal."""
    begin = 1 + max(text.rfind(character, 0, at + 1) for character in '";')
    return begin + (2 if text.startswith("\\n", begin) else 0)


def _with_choices(text: str, choices: Sequence[_Choice], inserted: Mapping[int, str]) -> str:
    """The text with a choice in place of each expression, those within others too, and with what is inserted."""
    by_span: dict[tuple[int, int], list[_Choice]] = {}
    for choice in sorted(choices, key=lambda each: (each.start, -each.end, each.number)):
        by_span.setdefault((choice.start, choice.end), []).append(choice)
    spans = list(by_span)

    def plain(start: int, end: int) -> str:
        at = [start, *sorted(place for place in inserted if start <= place < end), end]
        return "".join(
            inserted.get(here, "") * (nth > 0) + text[here : at[nth + 1]] for nth, here in enumerate(at[:-1])
        )

    def expand(start: int, end: int, nth: int) -> tuple[str, int]:
        """The text from start to end, and the number of spans that begin before its end."""
        parts = []
        while nth < len(spans) and spans[nth][0] < end:
            first, last = spans[nth]
            assert last <= end, text[first:last]
            inner, then = expand(first, last, nth + 1)
            parts += [plain(start, first), _chosen(by_span[spans[nth]], inner)]
            start, nth = last, then
        return "".join([*parts, plain(start, end)]), nth

    return expand(0, len(text), 0)[0]


def _chosen(choices: Sequence[_Choice], kernels: str) -> str:
    """An expression: one of the mutants', or the kernel's."""
    is_void = any(each.replacement in ("((void)0)", "__threadfence_block()") for each in choices)
    cast = "(void)" if is_void else ""
    mutants = "".join(f"::pkb_mutants::is<{each.number}>() ? {cast}({each.replacement}) : " for each in choices)
    traps = "".join(f"::pkb_mutants::trap<{each.number}>(), " for each in choices)
    return f"({mutants}({traps}{cast}({kernels})))"


def _patched(binary: bytes, each: _Instruction, *, traps: bool) -> tuple[bytes, int]:
    """The library with the mutant's instructions in place of the kernel's, of the same length, and their number."""
    mark, replacement, pattern = each.name.encode(), each.weak.replacement.encode(), each.weak.pattern.encode()
    instructions = rb"[^;]*;" * (each.weak.text.count(";") if replacement == b'""' else 1)

    def patch(match: re.Match[bytes]) -> bytes:
        if traps:
            weak = b"trap;" + match["instructions"]
        elif replacement == b'""':
            weak = b""
        else:
            weak, count = re.subn(pattern, replacement, match["instructions"], count=1)
            assert count == 1, match["instructions"]
        assert len(weak) <= len(match[0])
        return weak.ljust(len(match[0]))

    of_all = rb"\{\s*\.reg\s+\.b32\s+mutant\d+;\s*\}\s*"  # several mutants may be of one instruction
    of_this = of_all.replace(rb"mutant\d+", mark)
    return re.subn(of_this + rb"(?:" + of_all + rb")*(?P<instructions>" + instructions + rb")", patch, binary)
