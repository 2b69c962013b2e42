"""The operations by which a native kernel synchronises with its peers, and its mutants that lack one of them.

Sources are read as text: calls of the communicator, words of memory that ranks write to each other, and uses of the
epoch. Where a helper header of `pkb/` does the synchronisation for the kernel, its text takes the place of the
`#include`, so that a mutant is a source of its own. What threads of one rank do among themselves is no part of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pkb_gym.engine

HEADERS = Path(pkb_gym.engine.__file__).parent / "include" / "pkb"

CORE = frozenset({"comm.h", "host_comm.h", "symm.h", "symm_cpu.h", "symm_cuda.h"})
"""The communicator itself: kernels are tried against it, and it is never mutated."""


class Kind(StrEnum):
    """The sort of an operation."""

    SIGNAL = "signal"
    """Tells peers something: that this rank has begun, or that data lies in place."""
    WAIT = "wait"
    """Waits for what a peer tells."""
    BARRIER = "barrier"
    """Does both."""
    PARITY = "parity"
    """Takes the halves of scratch by turns; the mutant always takes the first."""
    EPOCH = "epoch"
    """Tells this call's words from those of earlier ones; the mutant always uses the first call's."""
    FENCE = "fence"
    """Orders memory accesses. A run cannot always show that one is missing: the hardware may keep the order."""


@dataclass(frozen=True)
class Operation:
    """One operation in a source whose headers have been inlined.

    Attributes:
        kind: of the operation.
        file: where it is written: "expert", or the name of a header of `pkb/`.
        line: in that file, from 1.
        code: its text, with white space collapsed.
        start, end: its place in the inlined text.
        replacement: what the mutant has in its place.
    """

    kind: Kind
    file: str
    line: int
    code: str
    start: int
    end: int
    replacement: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code}"


@dataclass(frozen=True)
class Mutant:
    """A kernel without an operation.

    Attributes:
        operations: that are gone.
        name: where and what they are.
        source: a candidate.
    """

    operations: tuple[Operation, ...]
    name: str
    source: str

    @property
    def kind(self) -> Kind:
        """Of its operations, which are of one kind."""
        return self.operations[0].kind


@dataclass(frozen=True)
class _Piece:
    """A run of lines from one file."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class InlinedSource:
    """A kernel with the headers that synchronise for it in place of their `#include` lines."""

    pieces: tuple[_Piece, ...]

    @classmethod
    def of(cls, source: str, headers: Path = HEADERS) -> InlinedSource:
        """Inlines what the source includes of `headers`, directly or by way of other headers of it."""
        return cls(tuple(_inline("expert", source, headers, set())))

    @property
    def text(self) -> str:
        """The source as a candidate."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def digest(self) -> str:
        """Changes with the kernel and with the headers that it takes its synchronisation from."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def operations(self) -> list[Operation]:
        """All operations, in the order of the text."""
        text = self.text
        code = _without_comments(text)
        found = sorted(_spans(code), key=lambda span: span[1:3])
        return [
            Operation(kind, *self._origin(start), " ".join(text[start:end].split()), start, end, replacement)
            for kind, start, end, replacement in found
        ]

    def _origin(self, position: int) -> tuple[str, int]:
        """File and line of a place in the inlined text."""
        for piece in self.pieces:
            if position < len(piece.text):
                return piece.file, piece.line + piece.text.count("\n", 0, position)
            position -= len(piece.text)
        raise IndexError(f"the text ends {position} characters before")

    def mutants(self) -> list[Mutant]:
        """One without each operation, and one that has no epochs at all, if there are several to be told apart by."""
        operations = self.operations()
        single = [Mutant((operation,), str(operation), self._replaced([operation])) for operation in operations]
        epochs = [operation for operation in operations if operation.kind is Kind.EPOCH]
        defaults = list(self._default_epochs())
        if len(epochs) + len(defaults) < 2:
            return single
        return [*single, Mutant((*epochs, *defaults), "every epoch", self._replaced([*epochs, *defaults]))]

    def _default_epochs(self) -> Iterator[Operation]:
        """Arguments of signal() and wait() that are left out and so are the epoch."""
        text = self.text
        code = _without_comments(text)
        for match in _MEMBER.finditer(code):
            end = _closing(code, match.end() - 1)
            if match[1] in ("signal", "wait") and _arguments(code[match.end() : end - 1]) == 1 + (match[1] == "signal"):
                shown = " ".join(text[match.start() : end].split())
                yield Operation(Kind.EPOCH, *self._origin(match.start()), shown, end - 1, end - 1, ", 1")

    def _replaced(self, operations: Sequence[Operation]) -> str:
        text = self.text
        for operation in sorted(operations, key=lambda operation: -operation.start):
            text = text[: operation.start] + operation.replacement + text[operation.end :]
        reads_untested = any("read_tagged(" in operation.replacement for operation in operations)
        return _with_untested_reads(text) if reads_untested else text

    def reporting(self) -> str:
        """The kernel, which also writes a line to standard error the first time that a rank comes to an operation.

        Which operations a kernel comes to hangs on size, dtype and world size. `reached` reads the lines.
        """
        text, position, marked = self.text, 0, []
        outermost = [op for op in self.operations() if op.kind is not Kind.FENCE]
        numbers = {(op.start, op.end): number for number, op in enumerate(self.operations())}
        for op in outermost:
            if op.start < position:  # an epoch among the arguments of a call: reached with it
                continue
            body = text[op.start : op.end]
            for inner in outermost:
                if op.start < inner.start and inner.end <= op.end:
                    body = f"pkb_reach::mark({numbers[inner.start, inner.end]}), {body}"
            marked.append(text[position : op.start] + f"(pkb_reach::mark({numbers[op.start, op.end]}), {body})")
            position = op.end
        marked.append(text[position:])
        source = _after_includes("".join(marked), _MARKS.replace("OPERATIONS", str(len(numbers))))
        return re.sub(r"(\bvoid\s+solution\s*\([^{;]*\{)", r"\1\n  pkb_reach::report();", source, count=1)


def reached(operations: Sequence[Operation], output: str) -> set[Operation]:
    """Operations that a kernel made by `InlinedSource.reporting` says it has come to.

    Args:
        operations: of the inlined source.
        output: that its ranks wrote.
    """
    return {operations[int(number)] for number in re.findall(r"\bpkb-reach (\d+)$", output, re.MULTILINE)}


# ---- headers --------------------------------------------------------------------------------------------------------

_INCLUDE = re.compile(r'^#include "pkb/(\w+\.h)".*\n', re.MULTILINE)


def _inline(file: str, text: str, headers: Path, seen: set[str]) -> Iterator[_Piece]:
    position = 0
    for include in _INCLUDE.finditer(text):
        name = include[1]
        if name in CORE or not _synchronises(name, headers):
            continue
        yield _Piece(file, text.count("\n", 0, position) + 1, text[position : include.start()])
        if name not in seen:
            seen.add(name)
            header = (headers / name).read_text(encoding="utf-8").replace("#pragma once\n", "\n")
            yield from _inline(name, header, headers, seen)
        position = include.end()
    rest = text[position:]
    yield _Piece(file, text.count("\n", 0, position) + 1, rest if rest.endswith("\n") or not rest else rest + "\n")


def _synchronises(name: str, headers: Path) -> bool:
    """Whether a header, or one that it includes, has to do with the communicator."""
    if name in CORE or not (headers / name).exists():
        return False
    text = (headers / name).read_text(encoding="utf-8")
    if re.search(r"\b(?:Comm|Device)\b", _without_comments(text)):
        return True
    return any(_synchronises(include, headers) for include in _INCLUDE.findall(text))


# ---- operations -----------------------------------------------------------------------------------------------------

_Span = tuple[Kind, int, int, str]

_COMM = r"(?<![\w.])(?:this->)?\w*comm_?(?:\.|->)"
_NAMES = r"(?:barrier|signal|wait|arrive|tell|meet)(?:_\w+)?"
_MEMBER = re.compile(rf"{_COMM}(?:template )?({_NAMES})\s*(?:<[^<>;(]*>)?\s*\(")
_STORE = re.compile(r"\b(?:pkb::)?(?:store_release|store_relaxed|store_tagged)\s*\(")
_LOAD = re.compile(r"\b(?:pkb::)?load_acquire\s*\(")
_TAGGED = re.compile(r"\b(?:pkb::)?wait_tagged\s*\(")
_PARITY = re.compile(rf"({_COMM}epoch)\s*(?:%\s*\w+|&\s*1\b)")
_EPOCH = re.compile(rf"({_COMM}epoch)\b(?!\s*[%&])")
_FENCE = re.compile(r"\b(?:__threadfence(?:_system)?|(?:\w+::)*fence_async_\w+|std::atomic_thread_fence)\s*\(")
_COMPARISON = re.compile(r"\s*(<=|>=|<|>|==|!=)\s*")
_NOTHING = "((void)0)"
_NO_OPERATION = frozenset({"signal_word", "barrier_counts"})
_ENTRY = frozenset({"tell_begun", "wait_begun", "wait_all_begun"})
"""Functions of a kernel that go by one of these names do what the communicator's do."""


def _spans(code: str) -> Iterator[_Span]:
    direct = list(_direct_spans(code))
    yield from direct
    yield from _calls_of_wrappers(code, direct)
    for match in _PARITY.finditer(code):
        yield Kind.PARITY, match.start(), match.end(), f"({match[1]} * 0)"
    for match in _EPOCH.finditer(code):
        if not re.match(r"\s*=[^=]", code[match.end() :]):
            yield Kind.EPOCH, match.start(), match.end(), f"({match[1]} * 0 + 1)"
    for match in _FENCE.finditer(code):
        end = _closing(code, match.end() - 1)
        if _is_statement(code, end):
            yield Kind.FENCE, match.start(), end, _NOTHING


def _direct_spans(code: str) -> Iterator[_Span]:
    for match in _MEMBER.finditer(code):
        if match[1] not in _NO_OPERATION:
            yield _kind_of(match[1]), match.start(), _closing(code, match.end() - 1), _NOTHING
    for match in _STORE.finditer(code):
        end = _closing(code, match.end() - 1)
        if _is_statement(code, end):
            yield Kind.SIGNAL, match.start(), end, _NOTHING
    for match in _LOAD.finditer(code):
        comparison = _COMPARISON.match(code, _closing(code, match.end() - 1))
        if comparison is not None:
            end = _operand_end(code, comparison.end())
            yield Kind.WAIT, match.start(), end, "true" if comparison[1] in (">=", ">", "==") else "false"
    for match in _TAGGED.finditer(code):
        end = _closing(code, match.end() - 1)
        yield Kind.WAIT, match.start(), end, f"pkb::read_tagged({code[match.end() : end]}"


def _calls_of_wrappers(code: str, direct: list[_Span]) -> Iterator[_Span]:
    """Calls of functions that do nothing but synchronise, by their names and their bodies."""
    wrappers = set()
    for match in re.finditer(rf"(?<![\w.>])({_NAMES})\s*\(", code):
        body = re.match(r"\s*(?:const\s*)?\{", code[_closing(code, match.end() - 1) :])
        if body is not None:
            opening = _closing(code, match.end() - 1) + body.end() - 1
            synchronises = any(opening < start < _closing(code, opening) for _, start, _, _ in direct)
            if synchronises or match[1] in _ENTRY:
                wrappers.add(match[1])
    for name in sorted(wrappers):
        for match in re.finditer(rf"(?<![\w.>:]){name}\s*(?:<[^<>;(]*>)?\s*\(", code):
            end = _closing(code, match.end() - 1)
            if _is_statement(code, end):
                yield _kind_of(name), match.start(), end, _NOTHING


def _kind_of(name: str) -> Kind:
    verb = name.partition("_")[0]
    return {"barrier": Kind.BARRIER, "meet": Kind.BARRIER, "wait": Kind.WAIT}.get(verb, Kind.SIGNAL)


def _arguments(inside: str) -> int:
    """How many arguments stand between the brackets of a call."""
    depth = commas = 0
    for character in inside:
        depth += (character in "({[") - (character in ")}]")
        commas += character == "," and depth == 0
    return commas + 1 if inside.strip() else 0


def _is_statement(code: str, end: int) -> bool:
    return code[end:].lstrip().startswith(";")


def _closing(code: str, opening: int) -> int:
    """Behind the bracket that closes the one at `opening`.

    Raises:
        ValueError: nothing closes it.
    """
    depth = 0
    for position in range(opening, len(code)):
        depth += (code[position] in "({[") - (code[position] in ")}]")
        if depth == 0:
            return position + 1
    line = code.count("\n", 0, opening) + 1
    raise ValueError(f"line {line} of the inlined source: nothing closes {code[opening]!r}")


def _operand_end(code: str, start: int) -> int:
    """The end of the right operand of a comparison: names, members, calls and additions."""
    position = start
    while position < len(code):
        if code[position] == "(":
            position = _closing(code, position)
        elif re.match(r"[\w.:+\- ]|->", code[position:]):
            position += 1
        else:
            break
    return start + len(code[start:position].rstrip())


def _without_comments(text: str) -> str:
    """The text with comments and literals blanked; every other character keeps its place."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    # An include keeps its name.
    return re.sub(
        rf"(?:^#include[^\n]*$)|{pattern}",
        lambda match: match[0] if match[0].startswith("#") else re.sub(r"[^\n]", " ", match[0]),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )


# ---- parts of mutants -----------------------------------------------------------------------------------------------


def _with_untested_reads(mutant: str) -> str:
    """Adds `read_tagged`: `wait_tagged` that takes whatever word it finds."""
    header = (HEADERS / "tagged_cuda.h").read_text(encoding="utf-8")
    waits = re.findall(r"^__device__[^\n]*\bwait_tagged\(.*?^}\n", header, re.MULTILINE | re.DOTALL)
    reads = "".join(
        re.sub(r"while \(.*?\);", "while (false);", function.replace("wait_tagged", "read_tagged"), flags=re.DOTALL)
        for function in waits
    )
    return _after_includes(mutant, f'#include "pkb/tagged_cuda.h"\nnamespace pkb {{\n{reads}}}\n')


def _after_includes(source: str, text: str) -> str:
    """Puts text before the first line that is neither an include nor a comment nor empty, outside of namespaces."""
    begin = re.search(r"^(?!#include|#pragma|//|\s*$)", source, re.MULTILINE)
    position = begin.start() if begin else len(source)
    return source[:position] + text + source[position:]


_MARKS = """
#include "pkb/symm.h"
#include <cstdio>
#ifndef __CUDACC__
#define PKB_REACH_BOTH inline
#else
#define PKB_REACH_BOTH __host__ __device__ inline
#endif
namespace pkb_reach {
static volatile unsigned on_host[OPERATIONS + 1];
static volatile unsigned* marks = on_host;
#ifdef __CUDACC__
// Mapped host memory: neither a copy nor a synchronisation is needed to read it.
__device__ volatile unsigned* on_device;
static const bool is_mapped = [] {
  void *host = nullptr, *device = nullptr;
  if (cudaHostAlloc(&host, sizeof(on_host), cudaHostAllocMapped) != cudaSuccess) return false;
  for (int i = 0; i <= OPERATIONS; ++i) static_cast<volatile unsigned*>(host)[i] = 0;
  cudaHostGetDevicePointer(&device, host, 0);
  cudaMemcpyToSymbol(on_device, &device, sizeof(device));
  marks = static_cast<volatile unsigned*>(host);
  return true;
}();
#endif
PKB_REACH_BOTH void mark(int i) {
#ifdef __CUDA_ARCH__
  on_device[i] = 1;
#else
  marks[i] = 1;
#endif
}
// At the beginning of a call: those of the calls before.
inline void report() {
  static bool is_told[OPERATIONS + 1];
  for (int i = 0; i < OPERATIONS; ++i) {
    if (marks[i] && !is_told[i]) std::fprintf(stderr, "pkb-reach %d\\n", i);
    is_told[i] = marks[i];
  }
}
}  // namespace pkb_reach
"""
