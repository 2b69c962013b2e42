"""Writes random programs.

A program has registers of each kind. Some hold inputs and are only read, the others are computed. Each form that it
uses is traced: a thread stores the operands, then the results, each to a cell of 8 bytes of its own, and results are
compared where operands are equal. Results that may differ from a GPU within a bound go to registers that nothing reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from emulator.tests.random_ptx.form import Form, Kind, Where
from emulator.tests.random_ptx.forms_conversion import conversion_forms
from emulator.tests.random_ptx.forms_float import float_forms
from emulator.tests.random_ptx.forms_integer import integer_forms
from emulator.tests.random_ptx.forms_memory import memory_forms
from emulator.tests.random_ptx.operands import literal, random_value

READ_ONLY, COMPUTED = 5, 9
"""Registers of each kind. Of the computed ones a form uses at most eight."""

CELL_BYTES = 8
SCRATCH_AT = 64 << 10
"""Words that all threads share, then 16 bytes of each thread."""
SHARED_WORDS_BYTES = 256
TRACE_AT = 128 << 10
TRACE_BYTES = (1 << 20) - TRACE_AT
POISON = 0xEE
MAX_DEPTH = 2

PRELUDE = """
.const .align 16 .b8 table[256] = {TABLE};
.func (.param .b32 fr) twist(.param .b32 fa, .param .b32 fb) {
.reg .b32 %x<6>; .reg .pred %y<2>;
ld.param.b32 %x0, [fa];
ld.param.b32 %x1, [fb];
setp.lt.s32 %y0, %x0, %x1;
@%y0 bra TWIST;
mad.lo.u32 %x0, %x1, 12345, %x0;
bra.uni TWISTED;
TWIST:
shf.l.wrap.b32 %x0, %x0, %x1, 7;
TWISTED:
xor.b32 %x0, %x0, %x1;
st.param.b32 [fr], %x0;
ret;
}
""".replace("TABLE", ", ".join(str((37 * i * i + 11 * i + 5) % 256) for i in range(256)))
"""The parts that programs of one module share."""

HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"


@dataclass(frozen=True)
class Slot:
    """The bytes that one use of a form leaves in memory.

    Attributes:
        form: Form of the instruction.
        text: Text of the instruction in the program.
        cell: Index of its first cell; operands come first, then results.
        operands: Kinds of the operands, of the guard and the earlier result too where it has a guard.
    """

    form: Form
    text: str
    cell: int
    operands: tuple[Kind, ...]

    @property
    def result_cells(self) -> range:
        """Numbers of the cells of its results."""
        begin = self.cell + len(self.operands)
        return range(begin, begin + len(self.form.results))


@dataclass(frozen=True)
class Program:
    """A kernel and its memory.

    Attributes:
        seed: Seed of the program.
        kernel: Name of the kernel.
        ptx: Text of the kernel, without `PRELUDE`.
        blocks: Number of blocks of the launch.
        threads: Number of threads of a block.
        memory: Content of memory before the launch.
        slots: Slots in the order of the text.
    """

    seed: int
    kernel: str
    ptx: str
    blocks: int
    threads: int
    memory: np.ndarray
    slots: tuple[Slot, ...]

    @property
    def all_threads(self) -> int:
        """The threads of all blocks."""
        return self.blocks * self.threads

    def cells(self, memory: np.ndarray) -> np.ndarray:
        """The trace in memory after a run: cells by threads, as words of 64 bits."""
        return memory[TRACE_AT:].view(np.uint64).reshape(-1, self.all_threads)

    def scratch(self, memory: np.ndarray) -> np.ndarray:
        """The scratch in memory after a run."""
        return memory[SCRATCH_AT : SCRATCH_AT + SHARED_WORDS_BYTES + 16 * self.all_threads]


@cache
def all_forms() -> tuple[Form, ...]:
    """Every form, those of the same group beside each other."""
    return (*integer_forms(), *float_forms(), *conversion_forms(), *memory_forms())


@cache
def _by_place() -> dict[Where, tuple[tuple[Form, ...], ...]]:
    """Forms that are possible at a place, by group."""
    allowed = {Where.ANYWHERE: {Where.ANYWHERE}, Where.WARP: {Where.ANYWHERE, Where.WARP}, Where.BLOCK: set(Where)}
    found = {}
    for place, wheres in allowed.items():
        groups: dict[str, list[Form]] = {}
        for form in all_forms():
            if form.where in wheres:
                groups.setdefault(form.group, []).append(form)
        found[place] = tuple(tuple(forms) for forms in groups.values())
    return found


def make_program(seed: int, forms: Sequence[Form] | None = None) -> Program:
    """A program.

    Args:
        seed: Seed of everything in it.
        forms: Forms that are used once each, in this order and without branches; None for random ones.
    """
    return _Writer(seed).program(forms)


class _Writer:
    def __init__(self, seed: int) -> None:
        self._rng = Random(f"random PTX {seed}")
        self._seed = seed
        self._blocks, self._threads = ((1, 32), (1, 64), (2, 32))[self._below(3)]
        self._lines: list[str] = []
        self._slots: list[Slot] = []
        self._cell = 0
        self._unique = 0

    def program(self, forms: Sequence[Form] | None) -> Program:
        if forms is None:
            self._body(self._below(20) + 30, 0, Where.BLOCK, "0xffffffff")
        else:
            for form in forms:
                self._use(form, "0xffffffff", may_guard=False)
        kernel = f"program{self._seed}"
        ptx = f".visible .entry {kernel}(.param .u64 heap, .param .u32 rank) {{\n{self._start()}"
        ptx += "\n".join(self._lines) + "\nret;\n}\n"
        return Program(self._seed, kernel, ptx, self._blocks, self._threads, self._memory(), tuple(self._slots))

    @property
    def _all_threads(self) -> int:
        return self._blocks * self._threads

    def _below(self, most: int) -> int:
        return self._rng.getrandbits(30) % most

    def _memory(self) -> np.ndarray:
        memory = np.zeros(TRACE_AT + self._cell * CELL_BYTES * self._all_threads, np.uint8)
        values = [
            random_value(self._rng, kind) for kind in Kind for _ in range(READ_ONLY) for _ in range(self._all_threads)
        ]
        inputs = np.array(values, np.uint64).view(np.uint8)
        memory[: len(inputs)] = inputs
        memory[SCRATCH_AT : SCRATCH_AT + SHARED_WORDS_BYTES] = 0x5A
        memory[TRACE_AT:] = POISON
        return memory

    def _start(self) -> str:
        lines = [f".reg .{kind.declared} %{kind.prefix}<{READ_ONLY + COMPUTED + 4}>;" for kind in Kind]
        lines.append(
            ".reg .b32 %t<8>; .reg .b64 %w<4>; .reg .b64 %rd<4>; .reg .b32 %c<4>; .reg .b32 %m<3>; .reg .pred %u<3>;"
        )
        lines.append(".reg .b64 %ag; .reg .b32 %as; .reg .b32 %an; .reg .b64 %al; .reg .b64 %ax; .reg .b64 %ai;")
        lines.append(".shared .align 16 .b8 block_memory[1024];\n.local .align 16 .b8 lane_memory[16];")
        lines.append(
            "ld.param.u64 %rd0, [heap];\nmov.u32 %t0, %ctaid.x;\nmov.u32 %t1, %ntid.x;\nmov.u32 %t2, %tid.x;\n"
            "mad.lo.u32 %t3, %t0, %t1, %t2;\nmul.wide.u32 %w0, %t3, 8;\nadd.u64 %rd2, %rd0, %w0;\n"
            f"add.u64 %rd3, %rd2, {TRACE_AT};\nadd.u64 %rd1, %rd0, {SCRATCH_AT};\nmul.wide.u32 %w0, %t3, 16;\n"
            f"add.u64 %ag, %rd1, %w0;\nadd.u64 %ag, %ag, {SHARED_WORDS_BYTES};\nmov.u32 %as, block_memory;\n"
            "shl.b32 %t4, %t2, 4;\nadd.u32 %t5, %t2, 5;\nrem.u32 %t5, %t5, %t1;\nshl.b32 %t5, %t5, 4;\n"
            "add.u32 %an, %as, %t5;\nadd.u32 %as, %as, %t4;\nmov.u64 %al, lane_memory;\nmov.u64 %ai, %rd2;\n"
            "cvt.u64.u32 %ax, %as;\ncvta.shared.u64 %ax, %ax;\nmov.b64 %w0, 0;\n"
            "st.local.v2.b64 [%al], {%w0, %w0};\nst.shared.v2.b64 [%as], {%w0, %w0};"
        )
        for number, kind in enumerate(Kind):
            for index in range(READ_ONLY):
                at = (number * READ_ONLY + index) * CELL_BYTES * self._all_threads
                register = f"%{kind.prefix}{index}"
                if kind is Kind.PREDICATE:
                    lines.append(f"ld.global.u32 %t0, [%rd2+{at}];\nsetp.ne.u32 {register}, %t0, 0;")
                else:
                    lines.append(f"ld.global.{kind.declared} {register}, [%rd2+{at}];")
            for index in range(COMPUTED):
                names = (f"%{kind.prefix}{READ_ONLY + index}", f"%{kind.prefix}{index % READ_ONLY}")
                lines.append(f"mov.{kind.declared} {names[0]}, {names[1]};")
        return "\n".join(lines) + "\n"

    def _body(self, count: int, depth: int, where: Where, mask: str) -> None:
        for _ in range(count):
            choice = self._below(16)
            if choice == 0 and depth < MAX_DEPTH:
                self._branch(depth, where)
            elif choice == 1 and depth < MAX_DEPTH:
                self._loop(depth)
            else:
                groups = _by_place()[where]
                forms = groups[self._below(len(groups))]
                self._use(forms[self._below(len(forms))], mask)

    def _branch(self, depth: int, where: Where) -> None:
        """One part for lanes where a predicate holds, one for the others; outermost, a warp's lanes know who comes."""
        unique = self._next_unique()
        predicate = self._register(Kind.PREDICATE)
        known = where is Where.BLOCK
        inner = Where.WARP if known else Where.ANYWHERE
        if known:
            self._lines.append(f"vote.sync.ballot.b32 %m0, {predicate}, 0xffffffff;\nnot.b32 %m1, %m0;")
        self._lines.append(f"@{predicate} bra YES{unique};")
        self._body(1 + self._below(4), depth + 1, inner, "%m1")
        self._lines.append(f"bra JOIN{unique};\nYES{unique}:")
        self._body(1 + self._below(4), depth + 1, inner, "%m0")
        self._lines.append(f"JOIN{unique}:")
        if known:
            self._lines.append("bar.warp.sync 0xffffffff;")

    def _loop(self, depth: int) -> None:
        """One to four rounds, by lane."""
        unique = self._next_unique()
        counter = f"%c{depth}"
        self._lines.append(f"and.b32 {counter}, {self._register(Kind.I32)}, 3;\nLOOP{unique}:")
        self._body(1 + self._below(3), depth + 1, Where.ANYWHERE, "")
        self._lines.append(
            f"sub.s32 {counter}, {counter}, 1;\nsetp.ge.s32 %u0, {counter}, 0;\n@%u0 bra LOOP{unique};"
            + ("\nbar.warp.sync 0xffffffff;" if depth == 0 else "")
        )

    def _next_unique(self) -> int:
        self._unique += 1
        return self._unique

    def _register(self, kind: Kind) -> str:
        return f"%{kind.prefix}{self._below(READ_ONLY + COMPUTED)}"

    def _use(self, form: Form, mask: str, *, may_guard: bool = True) -> None:
        """Adds a form and its trace."""
        guarded = may_guard and form.is_single and bool(form.results) and not form.bound and self._below(8) == 0
        operands = [self._register(kind) for kind in form.operands]
        results: list[str] = []
        while len(results) < len(form.results):
            kind = form.results[len(results)]
            # Nothing reads results that may differ from a GPU's.
            first, count = (READ_ONLY + COMPUTED, 4) if form.bound else (READ_ONLY, COMPUTED)
            register = f"%{kind.prefix}{first + self._below(count)}"
            if register not in results and (form.is_single or register not in operands):
                results.append(register)
        traced = list(zip(operands, form.operands, strict=True))
        words = list(operands)
        if form.is_single and len(operands) > 1 and "x2" not in form.text and self._below(8) == 0:
            index = self._below(len(operands))
            words[index] = literal(self._rng, form.operands[index]) or words[index]
        text = as_ptxas_takes(form.text.format(*results, *words, n=self._next_unique(), mask=mask))
        if guarded:
            predicate = self._register(Kind.PREDICATE)
            text = f"@{predicate} {text}"
            traced += [(predicate, Kind.PREDICATE), *zip(results, form.results, strict=True)]
        kinds = tuple(kind for _, kind in traced)
        cells = len(traced) + len(results)
        if (self._cell + cells) * CELL_BYTES * self._all_threads > TRACE_BYTES:
            return
        self._slots.append(Slot(form, text, self._cell, kinds))
        for index, (register, kind) in enumerate(traced):
            self._store(self._cell + index, register, kind)
        self._lines.append(text)
        for index, (register, kind) in enumerate(zip(results, form.results, strict=True)):
            self._store(self._cell + len(traced) + index, register, kind)
        self._cell += cells

    def _store(self, cell: int, register: str, kind: Kind) -> None:
        at = cell * CELL_BYTES * self._all_threads
        if kind is Kind.PREDICATE:
            self._lines.append(f"selp.u32 %t7, 1, 0, {register};")
            register = "%t7"
        self._lines.append(f"st.global.{'b32' if kind is Kind.PREDICATE else kind.declared} [%rd3+{at}], {register};")


_FIELD = re.compile(r"(bf[ei]\.\w+ .*%\w+, )(\d+)(?=(?:, [%\w]+)?;)")
_MOST_OF_A_FIELD = 255


def as_ptxas_takes(text: str) -> str:
    """A form without what ptxas refuses, though the manual allows it.

    That is a literal position or length of a field of bits above 255, and a list of branch targets with the label A7.
    """
    return _FIELD.sub(lambda found: f"{found[1]}{int(found[2]) & _MOST_OF_A_FIELD}", re.sub(r"\bA7\b", "A7_", text))
