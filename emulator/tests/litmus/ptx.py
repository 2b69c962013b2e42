"""Kernels of litmus programs: one entry of a PTX module for each.

Parameters of an entry are the address of the program's memory (`Layout`), the rank, and delays of instructions. Its
threads meet at a counter of relaxed atomics first, which orders nothing, so that they begin close together. Line
numbers of the PTX say which instruction of which thread an access belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.tests.litmus.program import Instruction, Program

STRIDE_BYTES = 32
"""From one location to the next."""
MAX_REGISTERS = 4
LINES_PER_THREAD = 32
BULK_BYTES = 16
DELAYS = 16
"""Delays that a launch has, of 4 bits each; instructions take them in turn."""
LATE = 4
"""The delay before a thread's first instruction is longer by a factor of this power of two."""


@dataclass(frozen=True)
class Layout:
    """Offsets in a program's memory in bytes.

    Attributes:
        locations: Offset of each location; of one in shared memory that in the block's.
        counter: Offset of the counter at which the threads begin.
        results: Offset of the registers at the end, `MAX_REGISTERS` words for each thread.
        nbytes: Bytes of all.
        shared_bytes: Bytes of shared memory.
    """

    locations: dict[str, int]
    counter: int
    results: int
    nbytes: int
    shared_bytes: int

    @classmethod
    def of(cls, program: Program) -> Layout:
        """The layout of a program."""
        offsets, shared = {}, [name for name in program.locations if name.startswith("s")]
        others = [name for name in program.locations if name not in shared]
        for names in (shared, others):
            offsets.update({name: number * STRIDE_BYTES for number, name in enumerate(names)})
        counter = len(others) * STRIDE_BYTES
        results = counter + STRIDE_BYTES
        nbytes = results + 4 * MAX_REGISTERS * len(program.threads)
        return cls(offsets, counter, results, -(-nbytes // 128) * 128, len(shared) * STRIDE_BYTES)


def line(thread: int, index: int) -> int:
    """Line of an instruction of a thread, from 1."""
    return 1 + LINES_PER_THREAD * (thread + 1) + index


def place_of(number: int) -> tuple[int, int]:
    """Thread and index of the instruction at a line; thread -1 before the program."""
    return (number - 1) // LINES_PER_THREAD - 1, (number - 1) % LINES_PER_THREAD


def block_threads(program: Program) -> int:
    """Threads of a block: whole warps."""
    return (max(thread for _, _, thread in program.places) // 32 + 1) * 32


def blocks(program: Program) -> int:
    """Blocks of the grid of each rank."""
    return max(block for _, block, _ in program.places) + 1


def variants(program: Program) -> int:
    """Entries of a program: of threads within one warp, the emulator lets those go first that branch first."""
    warps = [(rank, block, thread // 32) for rank, block, thread in program.places]
    return len(warps) if len(set(warps)) < len(warps) else 1


def entry(name: str, program: Program, file: int, first: int = 0) -> str:
    """The entry of a program.

    Args:
        name: Name of the entry.
        program: The program.
        file: Number of the file whose lines it has.
        first: Thread that branches to its code first.
    """
    layout, ranks = Layout.of(program), {rank for rank, _, _ in program.places}
    lines = [
        f".visible .entry {name}(.param .u64 memory, .param .u32 rank, .param .u64 delays) {{",
        ".reg .pred %p<8>; .reg .b32 %r<24>; .reg .b64 %rd<16>;",
        f".shared .align 16 .b8 tile[{max(layout.shared_bytes, 16)}];" if layout.shared_bytes else "",
        f".loc {file} 1 0",
        "ld.param.u64 %rd0, [memory]; ld.param.u32 %r20, [rank]; ld.param.u64 %rd1, [delays];",
        "mov.u32 %r21, %ctaid.x; mov.u32 %r22, %tid.x;",
        "mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;",
    ]
    if layout.shared_bytes:
        lines += _filled_tile(layout)
    numbers = range(len(program.threads))
    turn = (*numbers[first:], *numbers[:first])
    for number in turn:
        rank, block, thread = program.places[number]
        lines += [
            f"setp.eq.u32 %p0, %r20, {rank}; setp.eq.and.u32 %p0, %r21, {block}, %p0;",
            f"setp.eq.and.u32 %p0, %r22, {thread}, %p0; @%p0 bra thread{number};",
        ]
    lines += [*_others(program), "bra end;"]
    for number in turn:
        instructions = program.threads[number]
        lines += [f"thread{number}:", *_meet(layout, len(program.threads))]
        for index, each in enumerate(instructions):
            label = f"{number}_{index}"
            lines += [_delay(label, number, index), f".loc {file} {line(number, index)} 0"]
            lines.append(_code(each, label, program, number, layout))
        lines += [f"done{number}:", f".loc {file} 1 0"]
        for register in range(MAX_REGISTERS):
            # A branch depends on each value, so that no load is one of data alone to the detector.
            lines.append(f"setp.eq.u32 %p5, %r{register}, 0xffffffff; @%p5 bra end;")
            offset = layout.results + 4 * (number * MAX_REGISTERS + register)
            lines.append(f"st.global.u32 [%rd0+{offset}], %r{register};")
        lines.append("bra end;")
    assert ranks <= {0, 1}
    return "\n".join([*filter(None, lines), "end: ret;", "}"])


def _filled_tile(layout: Layout) -> list[str]:
    """Fills shared memory with zeros for both proxies, before the program."""
    stores = [
        f"@%p1 st.shared.v4.u32 [tile+{offset}], {{%r0, %r0, %r0, %r0}};"
        for offset in range(0, layout.shared_bytes, BULK_BYTES)
    ]
    return ["setp.eq.u32 %p1, %r22, 0;", *stores, "fence.proxy.async;", "barrier.sync 0;"]


def _others(program: Program) -> list[str]:
    """Threads beside those of the program take part in barriers of their block and cluster."""
    lines = []
    for (rank, block, _), thread in zip(program.places, program.threads, strict=True):
        if bars := sum(each.verb == "bar" for each in thread):
            lines = [
                f"setp.ne.u32 %p0, %r20, {rank}; setp.ne.or.u32 %p0, %r21, {block}, %p0; @%p0 bra end;",
                *["barrier.sync 0;"] * bars,
            ]
    clusters = max(sum(each.verb == "cluster" for each in thread) for thread in program.threads)
    return lines + ["barrier.cluster.arrive;\nbarrier.cluster.wait;"] * clusters


def _meet(layout: Layout, threads: int) -> list[str]:
    label = f"MEET{threads}"
    return [
        f"atom.relaxed.sys.global.add.u32 %r10, [%rd0+{layout.counter}], 1;",
        "{",
        f"{label}:",
        f"ld.relaxed.sys.global.u32 %r10, [%rd0+{layout.counter}];",
        f"setp.lt.u32 %p2, %r10, {threads};",
        f"@%p2 bra {label};",
        "}",
    ]


def _delay(label: str, thread: int, index: int) -> str:
    """A loop that takes as many turns as the instruction's delay says."""
    return (
        f"shr.u64 %rd2, %rd1, {4 * ((5 * thread + index) % DELAYS)}; cvt.u32.u64 %r12, %rd2; and.b32 %r12, %r12, 15;\n"
        f"{f'shl.b32 %r12, %r12, {LATE};' if index == 0 else ''}\n"
        f"delay{label}: setp.eq.u32 %p4, %r12, 0; @%p4 bra go{label}; sub.u32 %r12, %r12, 1; bra delay{label};\n"
        f"go{label}:"
    )


def _code(each: Instruction, label: str, program: Program, thread: int, layout: Layout) -> str:
    scope = each.scope or ""
    if each.verb == "fence":
        return f"fence.{each.order}.{scope};"
    if each.verb == "if":
        return f"setp.ne.u32 %p3, %{each.register}, {each.value};\n@%p3 bra done{thread};"
    if each.verb == "bar":
        return "barrier.sync 0;"
    if each.verb == "warp":
        return f"bar.warp.sync {_warp_mask(program, thread):#x};"
    if each.verb == "cluster":
        return "barrier.cluster.arrive;\nbarrier.cluster.wait;"
    if each.verb == "proxy":
        return "fence.proxy.async;"
    if each.verb == "done":
        read = ".read" if each.waits_for_reads_only else ""
        return f"cp.async.bulk.commit_group;\ncp.async.bulk.wait_group{read} 0;"
    if each.verb == "bulk":
        return (
            f"cp.async.bulk.global.shared::cta.bulk_group [%rd0+{layout.locations[each.location]}], "
            f"[tile+{layout.locations[each.source]}], {BULK_BYTES};"
        )
    code = _access(each, layout)
    if each.until is None:
        return code
    register = each.register
    return f"again{label}:\n{code}\nsetp.ne.u32 %p3, %{register}, {each.until};\n@%p3 bra again{label};"


def _access(each: Instruction, layout: Layout) -> str:
    is_shared = each.location.startswith("s")
    address = f"[{'tile' if is_shared else '%rd0'}+{layout.locations[each.location]}]"
    space = "shared" if is_shared else "global"
    parts = [] if each.order == "weak" else [each.order]
    if each.scope and each.order != "volatile":
        parts.append(each.scope)
    suffix = ".".join([*parts, space])
    value = f"%{each.value}" if isinstance(each.value, str) else str(each.value)
    if each.verb == "ld":
        return f"ld.{suffix}.u32 %{each.register}, {address};"
    if each.verb == "st":
        return f"st.{suffix}.u32 {address}, {value};"
    operation = {"exch": "exch.b32", "add": "add.u32", "cas": "cas.b32", "red": "add.u32"}[each.verb]
    if each.verb == "red":
        return f"red.{suffix}.{operation} {address}, {value};"
    compared = f"{each.source}, " if each.verb == "cas" else ""
    return f"atom.{suffix}.{operation} %{each.register}, {address}, {compared}{value};"


def _warp_mask(program: Program, thread: int) -> int:
    rank, block, number = program.places[thread]
    return sum(
        1 << other % 32
        for other_rank, other_block, other in program.places
        if (other_rank, other_block, other // 32) == (rank, block, number // 32)
    )


def module(programs: Sequence[Program]) -> str:
    """A module of all programs; entries are named `p0_0`, `p0_1` ..., the files of their lines `p0` ..."""
    files = "\n".join(f'.file {number + 1} "p{number}"' for number in range(len(programs)))
    entries = [
        entry(f"p{number}_{first}", program, number + 1, first)
        for number, program in enumerate(programs)
        for first in range(variants(program))
    ]
    return "\n".join([".version 8.6\n.target sm_90a\n.address_size 64", files, *entries]) + "\n"
