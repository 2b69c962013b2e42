"""Long computations that change registers, local or shared memory alone: no waits, though others wait for them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from emulator.tests.worlds import HEADER, EmulatorLibrary, entry
from rank_emulator import World

# Thread 0 of block 0 computes; %r3 has the result. Numbers begin at byte 4096.
COMPUTATIONS = {
    # More numbers than are remembered as those of a wait.
    "bisection over 65,534 numbers": """
    mov.u32 %r4, 0;                  // turn
    mov.u32 %r5, 0;                  // low
    mov.u32 %r6, 0x7fffffff;         // high
TURN: add.u32 %r7, %r5, %r6;
    shr.u32 %r7, %r7, 1;
    mov.u32 %r8, 0;                  // number
    mov.u32 %r9, 0;                  // how many are larger
EACH: mul.wide.u32 %rd2, %r8, 4;
    add.u64 %rd2, %rd2, %rd0;
    ld.global.u32 %r10, [%rd2+4096];
    setp.gt.u32 %p1, %r10, %r7;
    selp.u32 %r11, 1, 0, %p1;
    add.u32 %r9, %r9, %r11;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, 65534;
    @%p2 bra EACH;
    setp.gt.u32 %p3, %r9, 100;
    selp.u32 %r5, %r7, %r5, %p3;
    selp.u32 %r6, %r6, %r7, %p3;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 54;
    @%p4 bra TURN;
    mov.u32 %r3, 1;""",
    "sums of 100 numbers, again and again": """
    mov.u32 %r4, 0;
    mov.u32 %r9, 1;
TURN: mov.u32 %r8, 0;
EACH: mul.wide.u32 %rd2, %r8, 4;
    add.u64 %rd2, %rd2, %rd0;
    ld.global.u32 %r10, [%rd2+4096];
    mad.lo.u32 %r9, %r9, 1664525, %r10;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, 100;
    @%p2 bra EACH;
    setp.eq.u32 %p3, %r9, 12345;
    @%p3 bra DONE;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 9000;
    @%p4 bra TURN;
DONE: mov.u32 %r3, 1;""",
    "a search that reads one word in each turn": """
    mov.u32 %r4, 0;
    mov.u32 %r9, 1;
TURN: ld.volatile.global.u32 %r10, [%rd0+4096];
    mad.lo.u32 %r9, %r9, 1664525, %r10;
    setp.eq.u32 %p3, %r9, %r10;
    @%p3 bra DONE;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 1500000;
    @%p4 bra TURN;
DONE: mov.u32 %r3, 1;""",
    "a search that reads a clock in each turn": """
    mov.u32 %r4, 0;
    mov.u32 %r9, 1;
TURN: mov.u64 %rd3, %clock64;
    ld.volatile.global.u32 %r10, [%rd0+4096];
    mad.lo.u32 %r9, %r9, 1664525, %r10;
    setp.eq.u32 %p3, %r9, %r10;
    @%p3 bra DONE;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 1500000;
    @%p4 bra TURN;
DONE: mov.u32 %r3, 1;""",
    "comparisons of all pairs, which are in order": """
    mov.u32 %r4, 0;
TURN: mov.u32 %r8, 0;
EACH: mul.wide.u32 %rd2, %r8, 4;
    add.u64 %rd2, %rd2, %rd0;
    ld.global.u32 %r10, [%rd2+4096];
    ld.global.u32 %r11, [%rd2+4100];
    setp.gt.u32 %p1, %r10, %r11;
    @%p1 trap;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, 1023;
    @%p2 bra EACH;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 1023;
    @%p4 bra TURN;
    mov.u32 %r3, 1;""",
    "a sort in shared memory": """
    mov.u32 %r5, tile;
    mov.u32 %r4, 0;
FILL: shl.b32 %r6, %r4, 2;
    add.u32 %r6, %r6, %r5;
    sub.u32 %r7, 900, %r4;
    st.shared.u32 [%r6], %r7;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, 900;
    @%p1 bra FILL;
    mov.u32 %r4, 0;
TURN: mov.u32 %r8, 0;
    mov.u32 %r6, %r5;
EACH: ld.shared.u32 %r10, [%r6];
    ld.shared.u32 %r11, [%r6+4];
    setp.le.u32 %p1, %r10, %r11;
    @%p1 bra NEXT;
    st.shared.u32 [%r6], %r11;
    st.shared.u32 [%r6+4], %r10;
NEXT: add.u32 %r6, %r6, 4;
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, 899;
    @%p2 bra EACH;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 899;
    @%p4 bra TURN;
    ld.shared.u32 %r3, [%r5];""",
    "random numbers in registers": """
    mov.u32 %r4, 0;
    mov.u32 %r9, 1;
TURN: mad.lo.u32 %r9, %r9, 1664525, 1013904223;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 9000000;
    @%p4 bra TURN;
    mov.u32 %r3, 1;""",
    "numbers in local memory": """
    mov.u32 %r4, 0;
    mov.u64 %rd4, store;
    cvta.local.u64 %rd4, %rd4;
TURN: and.b32 %r5, %r4, 15;
    mul.wide.u32 %rd2, %r5, 4;
    add.u64 %rd2, %rd2, %rd4;
    ld.u32 %r9, [%rd2];
    mad.lo.u32 %r9, %r9, 1664525, %r4;
    st.u32 [%rd2], %r9;
    ld.global.u32 %r10, [%rd0+4096];
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p4, %r4, 600000;
    @%p4 bra TURN;
    mov.u32 %r3, 1;""",
}

BEFORE = ".shared .align 8 .b8 tile[4096];"


def program(computation: str) -> str:
    """Block 0 computes and sets a flag; block 1 waits for it and stores the result."""
    return entry(
        "    .local .align 4 .b8 store[64];\n    mov.u32 %r20, %ctaid.x;\n    setp.ne.u32 %p8, %r1, 0;\n    @%p8 ret;\n"
        "    setp.ne.u32 %p9, %r20, 0;\n    @%p9 bra WAIT;\n"
        + computation
        + """
    st.global.u32 [%rd0+4], %r3;
    st.release.gpu.global.u32 [%rd0], 1;
    ret;
WAIT: ld.acquire.gpu.global.u32 %r12, [%rd0];
    setp.ne.u32 %p2, %r12, 1;
    @%p2 bra WAIT;
    ld.global.u32 %r13, [%rd0+4];
    st.global.u32 [%rd0+8], %r13;
    ret;
""",
        before=BEFORE,
    )


def numbers(_: int) -> np.ndarray:
    """Numbers in order from byte 4096 on."""
    return np.concatenate([np.zeros(1024, dtype=np.uint32), np.arange(65534, dtype=np.uint32)])


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_a_long_computation_is_no_wait(emulator: EmulatorLibrary, name: str) -> None:
    policy = 5 if name.startswith("a s") else 0
    ended = emulator.run(program(COMPUTATIONS[name]), blocks=2, policy=policy, fill=numbers, max_steps=200_000_000)
    assert ended.outcome.name == "OK", ended.message
    assert list(ended.words(3)) == [1, 1, 1]


def test_a_long_computation_is_no_wait_while_the_host_queries(emulator: EmulatorLibrary) -> None:
    with World(emulator.path, 1, segment_bytes=1 << 20) as world:
        words = world.memory(0).cast("I")
        words[1024:2024] = memoryview(np.arange(1000, dtype=np.uint32))
        query = ctypes.CDLL(str(emulator.path)).CUDAStreamQuery
        query.argtypes = (ctypes.c_void_p,)

        def body(_: int) -> None:
            world.load_ptx(HEADER + program(COMPUTATIONS["sums of 100 numbers, again and again"]))
            segment = ctypes.c_uint64(world.segments[0])
            world.launch("kernel", [segment, ctypes.c_uint32(0)], grid=(2, 1, 1))
            while query(world.stream()) == 600:  # cudaErrorNotReady
                pass

        ended = world.run(body)
        assert ended.outcome.name == "OK", ended.message
        assert list(words[:3]) == [1, 1, 1]


def test_a_wait_that_counts_is_a_deadlock(emulator: EmulatorLibrary) -> None:
    body = """
    mov.u32 %r4, 0;
WAIT: ld.acquire.gpu.global.u32 %r3, [%rd0];
    add.u32 %r4, %r4, 1;
    setp.gt.u32 %p3, %r4, 2000000000;
    @%p3 trap;
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;
    ret;
"""
    ended = emulator.run(entry(body), blocks=2, threads=64, max_steps=60_000_000)
    assert ended.outcome.name == "DEADLOCK", ended.message


def test_an_endless_loop_that_reads_nothing_is_a_deadlock(emulator: EmulatorLibrary) -> None:
    body = "\nLOOP: add.u32 %r4, %r4, 1;\n    and.b32 %r4, %r4, 7;\n    bra LOOP;\n"
    ended = emulator.run(entry(body), blocks=2, threads=64, max_steps=100_000_000)
    assert ended.outcome.name == "DEADLOCK", ended.message
