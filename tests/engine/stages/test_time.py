"""Stage time: both sides in turn on the same fresh inputs, and what is found out meanwhile."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace

import pytest

from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.hardware import host
from pkb_gym.engine.problem.drawn_together import CALLS_DRAWN_TOGETHER
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.timing import Block, Timing
from pkb_gym.engine.reference.block_conditioner import BUSY_GPU_US
from pkb_gym.engine.reference.orders import ServeHandovers
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages import time as time_stage
from pkb_gym.engine.stages import timing_statistics as statistics
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.overhead import Overhead
from pkb_gym.engine.stages.run_delays import TimedPair, counted
from pkb_gym.engine.stages.time import (
    CALLS_VARY,
    CONGESTED_CALLS,
    DELAYED_CALLS,
    DELAYS_US,
    LAST_DISTURBED,
    baseline_alone_us,
    measured_overhead,
    time_blocks,
)
from tests.engine.records.mismatches import mismatch
from tests.engine.stages.fake_gangs import PYTHON, Bench

NOTHING = Overhead(0.0, 0.0, 0.0, 0.0, 0)


def timed(bench: Bench, *, candidate_us: float = 50.0, overhead: Overhead = NOTHING) -> Timing:
    """What `time_blocks` finds of a candidate that was checked."""
    with bench.run() as run:
        time_blocks(run, bench.reference.call_us, candidate_us, overhead)
    assert bench.feedback.timing is not None
    return bench.feedback.timing


def sides(bench: Bench) -> list[str]:
    """Who ran, block after block."""
    return [entry.split()[0] for entry in bench.logged("baseline", "candidate")]


def disturbed(bench: Bench) -> list[int]:
    """Blocks in which a rank was delayed or stopped."""
    found = []
    for index, orders in enumerate(bench.reference.staged):
        late = any(order.delays_us or order.pulses_us for order in orders if isinstance(order, ServeHandovers))
        if late:
            found.append(index)
    return found


def test_sides_take_turns_in_going_first() -> None:
    bench = Bench()
    timing = timed(bench)
    pairs = list(zip(sides(bench)[::2], sides(bench)[1::2], strict=True))
    warm, *counted = [pair for index, pair in enumerate(pairs) if index not in disturbed(bench)]
    assert warm == ("baseline", "candidate")
    assert counted == [("baseline", "candidate"), ("candidate", "baseline")] * 2 + [("baseline", "candidate")]
    assert len(timing.blocks) == len(counted) == statistics.MIN_BLOCKS, "the first pair is not counted"
    assert timing.converged and timing.speedup == pytest.approx(2.0)
    assert (timing.baseline_us, timing.candidate_us) == (pytest.approx(100), pytest.approx(50))


def test_every_block_has_inputs_of_its_own_and_its_outputs_are_compared() -> None:
    bench = Bench()
    timed(bench)
    made = [trial for trials in bench.reference.trials for trial in trials]
    assert made == sorted(set(made))
    drawn = [{trial // CALLS_DRAWN_TOGETHER for trial in trials} for trials in bench.reference.trials]
    assert sum(map(len, drawn)) == len(set.union(*drawn)), "no two blocks share what is drawn together"
    blocks = bench.logged("make", "candidate", "compare")
    calls = [len(trials) for trials in bench.reference.trials]
    expected = []
    for count in calls:
        expected += [f"make {count} timed", f"candidate {count} in 10 s", f"compare {count}"]
    assert blocks == expected


def test_before_the_baseline_as_many_bytes_are_moved_as_staging_moves_before_the_candidate() -> None:
    bench = Bench()
    with bench.run() as run:
        time_blocks(run, bench.reference.call_us, 50.0, NOTHING)
        a_call = {run.prepare(1, timed=True).nbytes for _ in range(3)}
    *timed_calls, _, _, _ = [len(trials) for trials in bench.reference.trials]
    assert len(a_call) == 1 and a_call != {0}
    assert bench.reference.staged_bytes == [count * min(a_call) for count in timed_calls]


def test_the_number_of_calls_of_a_block_is_drawn() -> None:
    """So that no call knows whether another one follows."""
    counts = []
    for seed in (0, 1):
        bench = Bench(seed=seed)
        timed(bench)
        counts.append([len(trials) for trials in bench.reference.trials[1:]])
        middle = statistics.calls_per_block("cpu", 100, 50, 10_000)
        assert len(set(counts[-1])) > 1
        assert all(abs(count - middle) <= CALLS_VARY * middle + 1 for count in counts[-1])
    assert counts[0] != counts[1]


def test_calls_of_both_sides_have_handovers() -> None:
    bench = Bench()
    timed(bench)
    assert all(entry.endswith("with handovers") for entry in bench.logged("baseline"))
    assert {setting.handovers for setting in bench.candidate.settings} == {"waiting"}
    on_gpus = Bench(gpus=2)
    timed(on_gpus, overhead=Overhead(0.0, 0.0, 0.0, 0.0, 700))
    assert {(setting.handovers, setting.pad_ns) for setting in on_gpus.candidate.settings} == {("enqueued", 700)}


def test_blocks_are_disturbed_and_decide_no_time() -> None:
    """A candidate cannot recognise one before a delay meets it."""
    bench = Bench()
    timing = timed(bench)
    indices = disturbed(bench)
    assert len(bench.reference.staged) == 1 + len(timing.blocks) + len(indices)
    for index in indices:
        for order in bench.reference.staged[index]:
            assert isinstance(order, ServeHandovers)
            delays_us = [delay_us for delay_us in order.delays_us if delay_us]
            assert len(delays_us) == DELAYED_CALLS and all(DELAYS_US[0] <= each <= DELAYS_US[1] for each in delays_us)
    stopped = [index for index, setting in enumerate(bench.candidate.settings) if setting.stopped_rank is not None]
    assert stopped == indices


@pytest.mark.parametrize("counted", [statistics.MIN_BLOCKS, 40])
def test_blocks_are_disturbed_all_along_and_at_the_end(counted: int) -> None:
    """One that was to be met among the first five was all that a candidate had to fear, which waited for peers in its
    first calls alone."""
    shares, ends = [], set()
    for seed in range(12):
        bench = Bench(timing_budget_s=1e-9 if counted == statistics.MIN_BLOCKS else 1000.0, seed=seed)
        noisy = [us for pair in range(counted) for us in (50.0, 50.0 * (1 + pair % 5))]
        bench.candidate.blocks_us = noisy if counted == 40 else []
        blocks = len(timed(bench).blocks)
        indices = disturbed(bench)
        last = len(bench.reference.staged) - 1
        assert indices[-LAST_DISTURBED:] == list(range(last + 1 - LAST_DISTURBED, last + 1))
        shares.append((len(indices) - LAST_DISTURBED) / blocks)
        ends.add(indices[0])
    assert 0.1 < sum(shares) / len(shares) < 0.45 and len(ends) > 3, "at drawn places"


def test_on_gpus_a_rank_is_congested_or_disturbed_by_short_kernels_by_turns() -> None:
    bench = Bench(gpus=2)
    timed(bench)
    for number, index in enumerate(disturbed(bench)):
        pulses = [order.pulses_us > 0 for order in bench.reference.staged[index] if isinstance(order, ServeHandovers)]
        congested = [sum(map(bool, of_rank)) for of_rank in bench.candidate.settings[index].congestions_ns]
        if number % 2:
            assert sorted(pulses) == [False, True] and not any(congested)
        else:
            calls = len(bench.candidate.settings[index].congestions_ns[0])
            assert sorted(congested) == [0, min(calls, CONGESTED_CALLS)] and not any(pulses)
    assert all(setting.stopped_rank is None for setting in bench.candidate.settings)


def test_ranks_that_share_a_gpu_are_disturbed_by_short_kernels_alone() -> None:
    bench = Bench(gpus=2, world_size=2)
    bench.feedback.config = bench.feedback.config.model_copy(update={"ranks_per_gpu": 2})
    timed(bench)
    assert not any(any(map(any, setting.congestions_ns)) for setting in bench.candidate.settings)


def test_the_overhead_of_a_block_is_subtracted() -> None:
    bench = Bench()
    bench.reference.block_us = bench.candidate.block_us = 400.0
    bench.reference.handover_us, bench.candidate.handover_us = 7.0, 9.0
    timing = timed(bench, overhead=Overhead(400.0, 0.0, 7.0, 9.0, 0))
    assert timing.gate_us == 400.0 and timing.context_switch_us is None
    assert (timing.baseline_handover_us, timing.candidate_handover_us) == (7.0, 9.0)
    assert (timing.baseline_us, timing.candidate_us) == (pytest.approx(100), pytest.approx(50))


def test_on_gpus_the_context_switch_is_subtracted_from_the_candidate_alone() -> None:
    bench = Bench(gpus=2)
    bench.reference.block_us, bench.candidate.block_us = 400.0, 520.0
    timing = timed(bench, overhead=Overhead(400.0, 120.0, 0.0, 0.0, 0))
    assert (timing.gate_us, timing.context_switch_us) == (400.0, 120.0)
    assert (timing.baseline_us, timing.candidate_us) == (pytest.approx(100), pytest.approx(50))


def test_calls_of_a_block_follow_the_times_of_the_first_pair() -> None:
    """The first calls of a block take longer than those that follow, and the check is no measure of a candidate."""
    bench = Bench()
    bench.reference.call_us = 1000.0
    bench.candidate.call_us = 1000.0
    with bench.run() as run:
        time_blocks(run, 2500.0, 5000.0, NOTHING)
    (first, *_), timing = bench.logged("candidate"), bench.feedback.timing
    assert first == "candidate 2 in 10 s", "as the check was so slow"
    assert timing is not None and all(8 <= block.calls <= 12 for block in timing.blocks)


@pytest.mark.parametrize("slow_blocks", [1, 3])
def test_a_candidate_that_is_slow_at_first_gains_no_short_blocks(slow_blocks: int) -> None:
    """One that slept in its first calls was timed in blocks of one call, as 7.5 times as fast instead of 3.3."""
    bench = Bench(timing_budget_s=1000.0)
    bench.candidate.blocks_us = [100_000.0] * slow_blocks
    timing = timed(bench, candidate_us=100_000.0)
    wanted = statistics.calls_per_block("cpu", 100, 50, 10_000)
    assert len(timing.blocks) == statistics.MIN_BLOCKS and timing.speedup == pytest.approx(2.0)
    assert all(block.calls >= (1 - CALLS_VARY) * wanted - 1 for block in timing.blocks), "short ones are not counted"


def test_the_deadline_follows_the_baseline() -> None:
    bench = Bench(timeout_s=0.001)
    timed(bench)
    calls = statistics.calls_per_block("cpu", 100, 50, 10_000)
    assert bench.logged("candidate")[-1].endswith(f" in {30 * 100e-6 * calls:g} s")


def test_timing_ends_with_its_budget() -> None:
    """After as many pairs as keep one slow block from ruining the interval."""
    bench = Bench(timing_budget_s=1e-9)
    bench.candidate.blocks_us = [5000.0 * (1 + index) for index in range(9)]
    timing = timed(bench)
    assert (len(timing.blocks), timing.converged) == (statistics.MIN_BLOCKS, False)


def test_a_clearly_slow_candidate_is_not_timed_to_the_last_digit() -> None:
    """It would otherwise take the whole budget, while others wait."""
    bench = Bench(timing_budget_s=1000.0)
    bench.candidate.blocks_us = [200_000.0 * (1 + index % 3) for index in range(200)]
    timing = timed(bench)
    assert (len(timing.blocks), timing.converged) == (statistics.MIN_BLOCKS, False)
    assert timing.speedup_high < statistics.SLOW_SPEEDUP


@pytest.mark.parametrize(("gpus", "most"), [(0, statistics.MAX_BLOCKS["cpu"]), (2, statistics.MAX_BLOCKS["cuda"])])
def test_times_that_scatter_are_taken_so_often_and_no_more(gpus: int, most: int) -> None:
    bench = Bench(gpus=gpus, timing_budget_s=1000.0)
    bench.candidate.blocks_us = [5000.0 * (1 + index % 7) for index in range(2 * most)]
    timing = timed(bench)
    assert (len(timing.blocks), timing.converged) == (most, False)


@pytest.fixture
def enough_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor for each rank."""
    monkeypatch.setattr(host, "processors", lambda: 2)


@pytest.mark.usefixtures("enough_processors")
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_a_pair_that_other_work_delays_is_measured_again(side: str) -> None:
    """The first pair, which is not counted, has shown that side without delay."""
    bench = Bench()
    gang = bench.reference if side == "baseline" else bench.candidate
    gang.delays_us += [0.0, 5000.0]
    timing = timed(bench)
    assert timing.delayed_pairs == 1
    assert len(timing.blocks) == statistics.MIN_BLOCKS


@pytest.mark.usefixtures("enough_processors")
def test_delays_that_every_block_of_a_side_has_are_its_own() -> None:
    bench = Bench()
    bench.candidate.blocks_us += [5000.0] * 100
    bench.candidate.delays_us += [3000.0] * 100
    assert timed(bench).delayed_pairs == 0


def test_ranks_that_share_processors_delay_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "processors", lambda: 1)
    bench = Bench()
    bench.reference.delays_us += [0.0] + [5000.0] * 1000
    assert timed(bench).delayed_pairs == 0


@pytest.mark.usefixtures("enough_processors")
def test_where_most_pairs_are_delayed_all_count() -> None:
    """Such a machine is busy throughout, and to wait for better pairs would leave too few."""
    bench = Bench()
    bench.reference.delays_us += [0.0] + [5000.0] * 1000
    timing = timed(bench)
    assert timing.delayed_pairs == len(timing.blocks) == statistics.MIN_BLOCKS


def test_as_many_calm_pairs_as_delayed_ones_count_alone() -> None:
    calm, delayed = (Block(calls=1, baseline_us=us, candidate_us=us) for us in (1.0, 9.0))
    assert counted([TimedPair(calm, False), TimedPair(delayed, True)]) == [calm]
    assert counted([TimedPair(calm, False), *[TimedPair(delayed, True)] * 2]) == [calm, delayed, delayed]


def test_ticks_of_a_frozen_candidate_are_interference() -> None:
    bench = Bench()
    bench.candidate.ticks = 100
    timing = timed(bench)
    assert bench.feedback.failed and timing.speedup == 2.0, "what was measured stands in the record"
    assert {finding.code for finding in bench.feedback.build().integrity} == {"interference"}


def test_a_tick_now_and_then_adds_up() -> None:
    """A tick in one block may be the clock's; one in every block is not."""
    bench = Bench()
    bench.candidate.ticks = 2  # as many as ranks: none of these blocks is too long by itself
    timed(bench)
    codes = [finding.detail for finding in bench.feedback.build().integrity]
    pairs = len(sides(bench)) // 2
    allowed = integrity.FROZEN_TICKS * 2 // 2
    assert len(codes) == pairs - allowed and codes[0].startswith("10 clock ticks")


def test_transmissions_of_a_frozen_candidate_are_interference() -> None:
    """Connections with a pace of their own had the kernel send 18,000 packets a second beside the baseline."""
    bench = Bench()
    bench.candidate.segments = integrity.FROZEN_SEGMENTS * 2
    timed(bench)
    assert not bench.feedback.failed
    bench.candidate.segments += 1
    timed(bench)
    finding = bench.feedback.build().integrity[0]
    assert (finding.code, finding.detail) == ("interference", "33 segments of TCP were sent beside the baseline")


def test_a_busy_gpu_is_interference() -> None:
    bench = Bench(gpus=2)
    bench.reference.idle_us = BUSY_GPU_US + 1
    timed(bench)
    findings = bench.feedback.build().integrity
    assert {finding.code for finding in findings} == {"interference"}
    assert len(findings) == len(sides(bench)), "looked at beside each side's block"
    idle = Bench(gpus=2)
    idle.reference.idle_us = 20.0
    timed(idle)
    assert not idle.feedback.failed


def test_an_output_that_is_wrong_while_timed_is_an_integrity_failure() -> None:
    bench = Bench()
    wrong = mismatch(rank=0, trial=300)
    bench.reference.mismatches = [[], [], [wrong], [wrong]]
    with pytest.raises(Stopped):
        timed(bench)
    assert len(bench.logged("compare")) == 5, "the block was repeated, at its place and elsewhere"
    found = bench.feedback.build()
    assert (found.failure, found.timing) == (Failure.INTEGRITY, None)
    assert found.message == f"wrong while timed: {wrong}"
    (finding,) = found.integrity
    assert finding.code == "wrong_while_timed" and str(wrong) in finding.detail


def test_an_output_that_is_wrong_while_timed_alone_is_a_race() -> None:
    bench = Bench()
    bench.reference.mismatches = [[], [], [mismatch(rank=0, trial=300)]]
    with pytest.raises(Stopped):
        timed(bench)
    found = bench.feedback.build()
    assert (found.failure, found.timing, found.integrity) == (Failure.RACE, None, ())


def test_a_candidate_that_falls_while_it_is_timed() -> None:
    bench = Bench()
    bench.candidate.fails["candidate"] = GangFailed(Failure.RUNTIME_ERROR, 1, "rank 1 was killed by SIGSEGV")
    with pytest.raises(Stopped):
        timed(bench)
    assert bench.feedback.build().failure is Failure.RUNTIME_ERROR


def test_the_published_protocol_warms_up_and_times_as_published() -> None:
    bench = Bench(protocol="published", timeout_s=0.001)
    timing = timed(bench)
    calls = timing.blocks[0].calls
    order = bench.logged("warm up", "candidate", "compare")
    deadline = f"in {30 * 100e-6 * statistics.PUBLISHED_WARMUP_CALLS:g} s"
    warm = order.index(f"warm up {statistics.PUBLISHED_WARMUP_CALLS}")
    assert order[warm + 1] == f"candidate {statistics.PUBLISHED_WARMUP_CALLS} {deadline}"
    assert order[warm + 2] == f"candidate {calls} {deadline}", "nobody compares what was warmed up with"
    assert sum(block.calls for block in timing.blocks) >= statistics.PUBLISHED_TIMED_CALLS
    assert sum(block.calls for block in timing.blocks[:-1]) < statistics.PUBLISHED_TIMED_CALLS
    assert (timing.protocol, timing.converged) == ("published", True)


def test_whether_times_contain_the_copies_of_results() -> None:
    assert not timed(Bench()).delivers
    module = Bench(source=PYTHON)
    assert timed(module).delivers
    assert module.logged("baseline")[-1].endswith("python with handovers"), "the baseline then copies its results too"


def test_the_baseline_alone() -> None:
    bench = Bench()
    with bench.run() as run:
        assert baseline_alone_us(run) == 100.0
    assert bench.logged("make", "warm", "baseline") == ["make 2 timed", "baseline 2 native"]
    assert bench.reference.staged_bytes == [0], "nothing is staged yet"


def test_on_gpus_the_baseline_is_warmed_up_on_other_inputs() -> None:
    """Its first call makes groups and loads kernels."""
    bench = Bench(gpus=2)
    with bench.run() as run:
        assert baseline_alone_us(run) == 100.0
    order = bench.logged("make", "warm", "baseline")
    assert order == ["make 2 timed", "warm up 2", "make 2 timed", "baseline 2 native"]


def noting_in(log: list[str]) -> Callable[[], AbstractContextManager[None]]:
    """Holds no devices, and says so."""
    return lambda: contextlib.nullcontext(log.append("devices held"))  # type: ignore[func-returns-value]


def test_the_overhead_is_measured_for_each_case_while_nothing_else_runs() -> None:
    cache = BaselineCache()
    for source, switch_us in (("", 120.0), (PYTHON, 80.0)):
        bench = Bench(gpus=2, **({"source": source} if source else {}))
        bench.candidate.block_us, bench.reference.block_us = 300.0, 300.0 - switch_us
        with bench.run() as run:
            found = measured_overhead(run, cache, noting_in(bench.log), bench.log.append)
        assert found.context_switch_us == pytest.approx(switch_us)
        blocks = bench.logged("devices", "null block of the candidate")
        assert blocks[0] == "devices held" and len(blocks) > 2


def test_enough_calm_pairs_count_alone_however_many_were_delayed() -> None:
    calm, delayed = (Block(calls=1, baseline_us=us, candidate_us=us) for us in (1.0, 9.0))
    enough = [TimedPair(calm, False)] * statistics.MIN_BLOCKS
    assert counted([*enough, *[TimedPair(delayed, True)] * 9]) == [calm] * statistics.MIN_BLOCKS


@pytest.mark.usefixtures("enough_processors")
@pytest.mark.parametrize(("gpus", "is_delayed", "pairs"), [(0, True, 6), (2, True, 13), (2, False, 6)])
def test_gpus_wait_longer_for_pairs_that_nothing_delays(
    monkeypatch: pytest.MonkeyPatch, gpus: int, is_delayed: bool, pairs: int
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time_stage, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    bench = Bench(gpus=gpus, timing_budget_s=7.0)
    bench.candidate.blocks_us = [5000.0 * (1 + index % 7) for index in range(100)]
    bench.reference.delays_us += [0.0] + [5000.0 * is_delayed] * 1000
    assert len(timed(bench).blocks) == pairs
