"""How kernels run on emulated GPUs: divergence, barriers, clusters, copies, deadlocks, schedules and their errors."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.tests.worlds import EmulatorLibrary, entry, store_each
from rank_emulator import Outcome

LANES = np.arange(32)


def test_lanes_that_part_meet_again(emulator: EmulatorLibrary) -> None:
    """After the branch all lanes vote together; in it only those that took it are active."""
    body = """
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p1, %r2, 0;
    mov.u32 %r4, 0;
    @%p1 bra EVEN;
    activemask.b32 %r3;
    bra MEET;
EVEN:
    activemask.b32 %r3;
    add.u32 %r4, %r1, 100;
MEET:
    activemask.b32 %r5;
    add.u32 %r6, %r3, %r4;
    xor.b32 %r6, %r6, %r5;
"""
    ended = emulator.run(entry(body + store_each("%r6")))
    masks = np.where(LANES % 2 == 0, 0x55555555 + LANES + 100, 0xAAAAAAAA).astype(np.uint32)
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(32), masks ^ 0xFFFFFFFF)


def test_a_loop_of_another_length_in_each_lane(emulator: EmulatorLibrary) -> None:
    body = """
    mov.u32 %r2, 0;
    mov.u32 %r3, 0;
LOOP:
    setp.gt.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    add.u32 %r3, %r3, %r2;
    add.u32 %r2, %r2, 1;
    bra LOOP;
DONE:
    vote.sync.ballot.b32 %r4, 1, 0xffffffff;
    sub.u32 %r3, %r3, %r4;
"""
    ended = emulator.run(entry(body + store_each("%r3")))
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(32), (LANES * (LANES + 1) // 2 + 1).astype(np.uint32))


def test_lanes_of_a_warp_may_wait_for_each_other(emulator: EmulatorLibrary) -> None:
    """Lane 0 waits for a word that lane 1 writes in the other branch, as threads of sm_70 and later may."""
    body = """
    setp.eq.u32 %p1, %r1, 0;
    @!%p1 bra OTHERS;
WAIT:
    ld.acquire.gpu.global.u32 %r2, [%rd0+512];
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra WAIT;
    bra MEET;
OTHERS:
    mov.u32 %r2, 7;
    st.release.gpu.global.u32 [%rd0+512], %r2;
MEET:
"""
    ended = emulator.run(entry(body + store_each("%r2")))
    assert ended.outcome == Outcome.OK, ended.message
    assert set(ended.words(32)) == {7}


def test_registers_are_declared_without_blanks(emulator: EmulatorLibrary) -> None:
    """The h2exp of cuda_fp16.h declares them so; its kernels were refused."""
    swap = "mov.b32 {low, high}, %r1;\nmov.b32 both, {high, low};\nmov.b32 %r2, both;"
    body = f"{{{{.reg.b16 low, high;\n.reg.b32 both;\n{swap}}}}}\n"
    ended = emulator.run(entry(body + store_each("%r2")))
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.segments[0].view(np.uint32)[:32], np.arange(32) << 16)


def test_a_call_has_registers_of_its_own(emulator: EmulatorLibrary) -> None:
    function = """
.func (.param .b32 result) square(.param .b32 value) {
    .reg .pred %p<2>; .reg .b32 %r<5>;
    ld.param.u32 %r1, [value];
    setp.gt.u32 %p1, %r1, 15;
    @%p1 bra LARGE;
    mul.lo.u32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
LARGE:
    st.param.b32 [result], 1;
    ret;
}
"""
    body = """
    { .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r1;
    call.uni (b), square, (a);
    ld.param.b32 %r2, [b]; }
    add.u32 %r2, %r2, %r1;
"""
    ended = emulator.run(entry(body + store_each("%r2"), before=function))
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(32), np.where(LANES > 15, 1, LANES * LANES) + LANES)


def test_a_barrier_of_all_warps_orders_shared_memory(emulator: EmulatorLibrary) -> None:
    body = """
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, tile;
    add.u32 %r4, %r3, %r2;
    st.shared.u32 [%r4], %r1;
    bar.sync 0;
    sub.u32 %r5, 127, %r1;
    shl.b32 %r5, %r5, 2;
    add.u32 %r5, %r5, %r3;
    ld.shared.u32 %r6, [%r5];
"""
    shared = ".shared .align 4 .b8 tile[512];"
    ended = emulator.run(entry(body + store_each("%r6"), before=shared), threads=128)
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(128), 127 - np.arange(128))


def test_a_thread_that_has_ended_is_not_waited_for(emulator: EmulatorLibrary) -> None:
    body = """
    setp.ge.u32 %p1, %r1, 40;
    @%p1 ret;
    bar.sync 0;
    add.u32 %r2, %r1, 1;
"""
    ended = emulator.run(entry(body + store_each("%r2")), threads=96)
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(64), np.where(np.arange(64) < 40, np.arange(64) + 1, 0))


def test_lanes_of_a_warp_pass_barriers_of_their_cluster_one_by_one(emulator: EmulatorLibrary) -> None:
    """Odd lanes arrive at the second barrier while even ones, on a path of their own, still leave the first."""
    barriers = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n" * 3
    body = f"""
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p0, %r2, 0;
    @%p0 bra EVEN;
    {barriers}
    bra DONE;
EVEN:
    {barriers}
DONE:
    """
    ended = emulator.run(entry(body + store_each("%r1")), blocks=2, cluster=2)
    assert ended.outcome == Outcome.OK, ended.message
    assert ended.words(32).tolist() == list(range(32))


def test_blocks_of_a_cluster_reach_each_others_shared_memory(emulator: EmulatorLibrary) -> None:
    body = """
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r3, tile;
    add.u32 %r4, %r2, 10;
    st.shared.u32 [%r3], %r4;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    xor.b32 %r5, %r2, 1;
    mapa.shared::cluster.u32 %r6, %r3, %r5;
    ld.shared::cluster.u32 %r7, [%r6];
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    mov.u32 %r8, %ctaid.x;
    mad.lo.u32 %r1, %r8, 32, %r1;
"""
    shared = ".shared .align 4 .b8 tile[4];"
    ended = emulator.run(entry(body + store_each("%r7"), before=shared), blocks=4, cluster=2)
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(128).reshape(4, 32)[:, 0], [11, 10, 11, 10])


BULK_COPY = """
    mov.u32 %r2, tile;
    mov.u32 %r3, bar;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra WAIT;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 128, [%r3];
WAIT:
    bar.warp.sync 0xffffffff;
AGAIN:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra AGAIN;
    shl.b32 %r4, %r1, 2;
    add.u32 %r4, %r4, %r2;
    ld.shared.u32 %r5, [%r4];
    add.u32 %r5, %r5, 1;
    st.shared.u32 [%r4], %r5;
    fence.proxy.async.shared::cta;
    bar.warp.sync 0xffffffff;
    @%p1 bra END;
    add.u64 %rd2, %rd0, 256;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
END:
"""


@pytest.mark.parametrize("policy", [0, 1])
def test_bulk_copies_are_counted_and_waited_for(emulator: EmulatorLibrary, policy: int) -> None:
    shared = ".shared .align 128 .b8 tile[128];\n.shared .align 8 .b8 bar[8];"
    ended = emulator.run(
        entry(BULK_COPY, before=shared), policy=policy, seed=3, fill=lambda _: np.arange(32, dtype=np.uint32)
    )
    assert ended.outcome == Outcome.OK, ended.message
    np.testing.assert_array_equal(ended.words(96)[64:], np.arange(32) + 1)


SPIN = """
    mov.u32 %r2, %ctaid.x;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra SIGNAL;
WAIT:
    ld.relaxed.gpu.global.u32 %r3, [%rd0];
    setp.lt.u32 %p2, %r3, LAST;
    @%p2 bra WAIT;
    ret;
SIGNAL:
    setp.ne.u32 %p3, %r1, 0;
    @%p3 ret;
    st.relaxed.gpu.global.u32 [%rd0], %r2;
"""


def test_a_spin_on_a_block_that_cannot_start_is_a_deadlock(emulator: EmulatorLibrary) -> None:
    """Two blocks of 1024 threads fit on each of the two multiprocessors; the others start once one of them ends."""
    waits_in_turn = entry(SPIN.replace("LAST", "7"))
    assert emulator.run(waits_in_turn, blocks=8, threads=1024).outcome == Outcome.OK
    wait_for_the_next = SPIN.replace("SIGNAL:", "SIGNAL:\nbra WAIT2;\nWAIT2:").replace("setp.ne.u32 %p3, %r1, 0;", "")
    spin = wait_for_the_next.replace(
        "@%p3 ret;", "ld.relaxed.gpu.global.u32 %r4, [%rd0+64];\nsetp.eq.u32 %p3, %r4, 0;\n@%p3 bra WAIT2;"
    )
    ended = emulator.run(entry(spin.replace("LAST", "7")), blocks=8, threads=1024)
    assert ended.outcome == Outcome.DEADLOCK
    assert "blocks that are not resident: 4" in ended.message
    assert "polls segment of rank 0, byte 64" in ended.message


EXCHANGE = """
    xor.b32 %r2, %r0, 1;
    setp.eq.u32 %p1, %r2, 0;
    selp.b64 %rd2, %rd0, %rd1, %p1;
    selp.b64 %rd3, %rd1, %rd0, %p1;
    add.u32 %r3, %r0, 5;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 ret;
    st.global.u32 [%rd2+128], %r3;
    st.release.sys.global.u32 [%rd2], 1;
WAIT:
    ld.acquire.sys.global.u32 %r4, [%rd3];
    setp.eq.u32 %p3, %r4, 0;
    @%p3 bra WAIT;
    ld.global.u32 %r5, [%rd3+128];
    st.global.u32 [%rd3+256], %r5;
"""


@pytest.mark.parametrize("policy", range(6))
def test_ranks_meet_under_every_schedule_and_seeds_replay(emulator: EmulatorLibrary, policy: int) -> None:
    steps = set()
    for seed in (1, 1, 2):
        ended = emulator.run(entry(EXCHANGE, ranks=2), ranks=2, policy=policy, seed=seed)
        assert ended.outcome == Outcome.OK, ended.message
        assert [int(ended.words(65, rank)[64]) for rank in (0, 1)] == [6, 5]
        steps.add((seed, ended.steps))
    assert len(steps) == 2  # the same seed takes the same steps


def test_a_signal_that_never_comes_is_a_deadlock_of_all(emulator: EmulatorLibrary) -> None:
    ended = emulator.run(entry(EXCHANGE.replace("st.release.sys.global.u32 [%rd2], 1;", ""), ranks=2), ranks=2)
    assert ended.outcome == Outcome.DEADLOCK
    assert "rank 0, kernel kernel, ld.acquire.sys.global.u32" in ended.message
    assert "host: waits for a stream" in ended.message


def test_an_unknown_instruction_is_named_with_its_line(emulator: EmulatorLibrary) -> None:
    body = ".loc 1 42 3\n    txq.width.b32 %r2, [%rd0];\n"
    ended = emulator.run(entry(body) + '.file 1 "/tmp/kernel.cu"\n')
    assert ended.outcome == Outcome.UNKNOWN_INSTRUCTION
    assert "unknown instruction txq.width.b32 at kernel.cu:42" in ended.message


@pytest.mark.parametrize(
    ("body", "outcome", "message"),
    [
        ("st.global.u32 [%rd0+1048576], %r1;", Outcome.ILLEGAL_ADDRESS, "0 bytes beyond the end of segment of rank 0"),
        ("mov.u64 %rd2, 64;\nld.u32 %r2, [%rd2];", Outcome.ILLEGAL_ADDRESS, "no memory of any rank"),
        ("ld.global.u32 %r2, [%rd0+2];", Outcome.MISALIGNED, "must be a multiple of 4"),
        ("mov.u32 %r2, 4096;\nld.shared.u32 %r3, [%r2];", Outcome.ILLEGAL_ADDRESS, "0 bytes of shared memory"),
        ("mov.u32 %r2, 0;\nmbarrier.arrive.shared::cta.b64 _, [tile];", Outcome.TRAP, "there is no mbarrier"),
        ("trap;", Outcome.TRAP, "trap"),
    ],
)
def test_wrong_accesses_end_with_their_place(
    emulator: EmulatorLibrary, body: str, outcome: Outcome, message: str
) -> None:
    shared = ".shared .align 8 .b8 tile[8];" if "tile" in body else ""
    ended = emulator.run(entry(".loc 1 7 1\n" + body, before=shared) + '.file 1 "a/kernel.cu"\n')
    assert ended.outcome == outcome, ended.message
    assert message in ended.message
    assert "at kernel.cu:7" in ended.message
