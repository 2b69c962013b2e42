"""Waits: loops that change nothing others can see give way, and are a deadlock only where none can end."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.tests.whole_tables import IS_WHOLE
from emulator.tests.worlds import EmulatorLibrary, entry, store_each
from rank_emulator import Outcome

SHARED = ".shared .align 8 .b8 tile[64];"

# Block 0 waits for the word at byte 0 to become 1, by each of its threads or by some of them. %r1: the thread.
WAITS = {
    "each lane": """
WAIT: ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "volatile": """
WAIT: ld.volatile.global.u32 %r3, [%rd0];
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "plain load and fence": """
WAIT: ld.global.u32 %r3, [%rd0];
    fence.sc.gpu;
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "atomic add of 0": """
WAIT: atom.add.acquire.gpu.global.u32 %r3, [%rd0], 0;
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "compare and swap": """
WAIT: atom.cas.acquire.gpu.global.b32 %r3, [%rd0], 1, 1;
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "one lane, then a shuffle": """
    mov.u32 %r3, 0;
    mov.u32 %r5, %laneid;
WAIT: setp.ne.u32 %p1, %r5, 0;
    @%p1 bra MEET;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
MEET: shfl.sync.idx.b32 %r4, %r3, 0, 31, 0xffffffff;
    setp.ne.u32 %p2, %r4, 1;
    @%p2 bra WAIT;""",
    "two lanes, then a vote": """
WAIT: mov.u32 %r3, 1;
    setp.gt.u32 %p1, %r1, 1;
    @%p1 bra MEET;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
MEET: setp.ne.u32 %p2, %r3, 1;
    vote.sync.any.pred %p3, %p2, 0xffffffff;
    @%p3 bra WAIT;""",
    "one lane, then shared memory and barriers": """
    mov.u32 %r5, tile;
    setp.ne.u32 %p1, %r1, 0;
WAIT: @%p1 bra MEET;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
    st.shared.u32 [%r5], %r3;
MEET: bar.sync 0;
    ld.shared.u32 %r4, [%r5];
    bar.sync 0;
    setp.ne.u32 %p2, %r4, 1;
    @%p2 bra WAIT;""",
    "shared memory that changes in each turn": """
    mov.u32 %r5, tile;
    setp.ne.u32 %p1, %r1, 0;
WAIT: @%p1 bra MEET;
    st.shared.u32 [%r5], 1;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
    st.shared.u32 [%r5], %r3;
MEET: bar.warp.sync 0xffffffff;
    ld.shared.u32 %r4, [%r5];
    bar.warp.sync 0xffffffff;
    setp.ne.u32 %p2, %r4, 1;
    @%p2 bra WAIT;""",
    "a barrier that reduces": """
WAIT: ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.ne.u32 %p2, %r3, 1;
    bar.red.or.pred %p3, 0, %p2;
    @%p3 bra WAIT;""",
    "two words in turn, with a count": """
    mov.u32 %r4, 0;
WAIT: and.b32 %r5, %r4, 1;
    mul.wide.u32 %rd2, %r5, 256;
    add.u64 %rd2, %rd2, %rd0;
    ld.acquire.gpu.global.u32 %r3, [%rd2];
    add.u32 %r4, %r4, 1;
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "all of four words": """
WAIT: mov.u32 %r4, 0;
    mov.u32 %r6, 0;
EACH: mul.wide.u32 %rd2, %r4, 64;
    add.u64 %rd2, %rd2, %rd0;
    ld.acquire.gpu.global.u32 %r3, [%rd2];
    add.u32 %r6, %r6, %r3;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p2, %r4, 4;
    @%p2 bra EACH;
    setp.eq.u32 %p2, %r6, 0;
    @%p2 bra WAIT;""",
    "sleeps": """
    mov.u32 %r4, 8;
WAIT: nanosleep.u32 %r4;
    shl.b32 %r4, %r4, 1;
    min.u32 %r4, %r4, 256;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "delays by the clock": """
WAIT: mov.u64 %rd2, %clock64;
DELAY: mov.u64 %rd3, %clock64;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, 5000;
    @%p1 bra DELAY;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "signals again in each turn": """
WAIT: st.release.gpu.global.u32 [%rd0+512], 5;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra WAIT;""",
    "one warp polls what another hands on": """
    mov.u32 %r5, tile;
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bra FIRST;
HAND: ld.volatile.shared.u32 %r3, [%r5];
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra HAND;
    bra DONE;
FIRST: ld.acquire.gpu.global.u32 %r3, [%rd0];
    st.volatile.shared.u32 [%r5], %r3;
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra FIRST;
DONE:""",
    "one warp counts in shared memory while it polls": """
    mov.u32 %r5, tile;
    mov.u32 %r6, 0;
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bra FIRST;
HAND: ld.volatile.shared.u32 %r3, [%r5];
    setp.ne.u32 %p2, %r3, 0xffff;
    @%p2 bra HAND;
    bra DONE;
FIRST: add.u32 %r6, %r6, 1;
    and.b32 %r6, %r6, 7;
    st.volatile.shared.u32 [%r5], %r6;
    ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.ne.u32 %p2, %r3, 1;
    @%p2 bra FIRST;
    st.volatile.shared.u32 [%r5], 0xffff;
DONE:""",
}

# These end by themselves where the word does not change, after a time or a number of turns.
TIMEOUTS = {
    "by the clock": """
    mov.u64 %rd2, %clock64;
WAIT: ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.eq.u32 %p2, %r3, 1;
    @%p2 bra MEET;
    mov.u64 %rd3, %clock64;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p3, %rd3, LIMIT;
    @%p3 bra WAIT;
    trap;
MEET: bar.sync 0;""",
    "by the global timer and a vote": """
    mov.u64 %rd2, %globaltimer;
WAIT: ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.eq.u32 %p2, %r3, 1;
    vote.sync.all.pred %p2, %p2, 0xffffffff;
    @%p2 bra MEET;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p3, %rd3, LIMIT;
    @%p3 bra WAIT;
    trap;
MEET: bar.sync 0;""",
    "by turns": """
    mov.u32 %r4, 0;
WAIT: ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.eq.u32 %p2, %r3, 1;
    @%p2 bra MEET;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p3, %r4, 100000;
    @%p3 bra WAIT;
    trap;
MEET: bar.sync 0;""",
}

# Block 1 works for some 10^5 instructions, all in registers, then sets the word.
SIGNAL = """
WORK:
    setp.ne.u32 %p5, %r1, 0;
    @%p5 ret;
    mov.u32 %r10, 0;
TURN: add.u32 %r10, %r10, 1;
    setp.lt.u32 %p6, %r10, 30000;
    @%p6 bra TURN;
    st.release.gpu.global.u32 [%rd0], 1;
"""


def program(wait: str, *, signal: bool = True) -> str:
    """Block 0 waits and stores 7 at byte 1024; block 1 signals."""
    end = "\n    st.global.u32 [%rd0+1024], 7;\n    ret;\n"
    choice = "    mov.u32 %r20, %ctaid.x;\n    setp.ne.u32 %p9, %r20, 0;\n    @%p9 bra WORK;\n"
    return entry(choice + wait + end + (SIGNAL if signal else "WORK:\n"), before=SHARED)


@pytest.mark.parametrize("policy", range(6))
@pytest.mark.parametrize("name", WAITS)
def test_a_wait_gives_way_until_memory_changes(emulator: EmulatorLibrary, name: str, policy: int) -> None:
    ended = emulator.run(program(WAITS[name]), blocks=2, threads=64, policy=policy, seed=4, max_steps=1_000_000)
    assert ended.outcome == Outcome.OK, ended.message
    assert ended.words(257)[256] == 7


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        (name, policy)
        for number, name in enumerate(WAITS)
        for policy in (0, 1)
        if IS_WHOLE or policy == number % 2  # each wait under one policy
    ],
)
def test_a_wait_that_cannot_end_is_a_deadlock(emulator: EmulatorLibrary, name: str, policy: int) -> None:
    ended = emulator.run(
        program(WAITS[name], signal=False), blocks=2, threads=64, policy=policy, seed=4, max_steps=60_000_000
    )
    assert ended.outcome == Outcome.DEADLOCK, ended.message


@pytest.mark.parametrize("policy", range(6))
@pytest.mark.parametrize("name", TIMEOUTS)
def test_time_does_not_run_out_while_others_work(emulator: EmulatorLibrary, name: str, policy: int) -> None:
    wait = TIMEOUTS[name].replace("LIMIT", "1000000")
    ended = emulator.run(program(wait), blocks=2, threads=64, policy=policy, seed=4, max_steps=1_000_000)
    assert ended.outcome == Outcome.OK, ended.message


@pytest.mark.parametrize("name", TIMEOUTS)
def test_time_runs_out_where_nobody_can_go_on(emulator: EmulatorLibrary, name: str) -> None:
    wait = TIMEOUTS[name].replace("LIMIT", "200000000000")
    ended = emulator.run(program(wait, signal=False), blocks=2, threads=64, max_steps=60_000_000)
    assert ended.outcome == Outcome.TRAP, ended.message


def test_waits_of_many_blocks_are_one_line_with_what_they_compare(emulator: EmulatorLibrary) -> None:
    body = """
.loc 1 9 1
WAIT: ld.acquire.gpu.global.u64 %rd3, [%rd0+64];
    shr.u64 %rd4, %rd3, 32;
    cvt.u32.u64 %r3, %rd4;
    setp.ne.u32 %p2, %r3, 7;
    @%p2 bra WAIT;
"""
    ended = emulator.run(
        entry(body) + '.file 1 "/a/kernel.cu"\n', blocks=3, threads=64, fill=lambda _: np.full(20, 5, dtype=np.uint32)
    )
    assert ended.outcome == Outcome.DEADLOCK
    lines = [line for line in ended.message.splitlines() if "polls" in line]
    assert lines == [
        "  rank 0, kernel kernel, ld.acquire.gpu.global.u64 at kernel.cu:9: polls segment of rank 0, byte 64, "
        "comparing 5 with 7 (setp.ne.u32) (6 warps of 3 blocks)"
    ]


def test_lanes_that_trap_are_not_waited_for_where_paths_meet(emulator: EmulatorLibrary) -> None:
    """After a loop that lanes leave in different turns, and that none leaves by its trap, the warp is whole."""
    body = """
    mov.u32 %r2, 0;
LOOP: setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra MEET;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p2, %r2, 100;
    @%p2 bra LOOP;
    trap;
MEET: activemask.b32 %r3;
"""
    ended = emulator.run(entry(body + store_each("%r3")))
    assert ended.outcome == Outcome.OK, ended.message
    assert set(ended.words(32)) == {0xFFFFFFFF}
