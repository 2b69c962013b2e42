"""Stage check: the candidate's outputs on fresh inputs, under conditions that show each breach of the contract."""

from __future__ import annotations

import dataclasses

import pytest

from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.reference.orders import BlockEnded, ConductCalls, LateOutput, ServeHandovers
from pkb_gym.engine.stages.block_staging import (
    ANSWERS_OF_DELAY,
    CALLS_OF_DELAY,
    MIN_PREEMPTED_S,
    RUN_SHARE,
    Pace,
    check_conditions,
    longest_delays_s,
)
from pkb_gym.engine.stages.check import (
    MAX_CONGESTED,
    MAX_INTERRUPTED,
    MAX_PREEMPTED,
    MIN_CONGESTED,
    MIN_INTERRUPTED,
    RETURNING,
    check,
)
from pkb_gym.engine.stages.feedback_builder import Stopped
from tests.engine.records.mismatches import mismatch
from tests.engine.stages.fake_gangs import KERNEL, PYTHON, Bench


def deadlines_s(bench: Bench, calls: int, requested_s: float) -> list[str]:
    """Of the two blocks of so many calls."""
    config, pace = bench.feedback.config, Pace(bench.reference.call_us)
    conditions = check_conditions(config.world_size, calls, "native")
    blocks = conditions[:-RETURNING], conditions[-RETURNING:]
    return [f"{requested_s + longest_delays_s(config, block, pace):g} s" for block in blocks]


def test_delays_are_longer_where_a_gpu_is_slow_to_answer() -> None:
    """A GPU is slow to answer while other processes use it."""
    delays_s = {}
    for idle_us in (None, 5000.0):
        bench = Bench()
        bench.reference.idle_us = idle_us
        with bench.run() as run:
            check(run)
        order = bench.reference.staged[0][0]
        assert isinstance(order, ConductCalls)
        delays_s[idle_us] = order.calls[1].delay_s
    assert delays_s[5000.0] == pytest.approx(delays_s[None] + ANSWERS_OF_DELAY * 5e-3)


def test_a_right_candidate_is_checked_on_every_trial() -> None:
    bench = Bench()
    with bench.run() as run:
        assert check(run) == bench.reference.conducted_us
    first_s, then_s = deadlines_s(bench, 9, 10)
    assert bench.log[3:20] == [
        "make 5 checked",
        "baseline 5 native",
        f"load in {first_s}",
        "thaw",
        "bind 5",
        "stage ConductCalls",
        f"candidate 5 in {first_s}",
        "end block",
        "compare 5",
        "make 4 checked",
        "baseline 4 native",
        "thaw",
        "bind 4",
        "stage ConductCalls",
        f"candidate 4 in {then_s}",
        "end block",
        "compare 4",
    ]
    report = bench.feedback.check
    assert report is not None and report.passed and report.trials == 9


def test_calls_that_do_not_fit_into_the_heap_together_are_checked_in_several_blocks() -> None:
    bench = Bench(trials=11)
    with bench.run() as run:
        segment_bytes = run.workload.plan(range(4), False, run.layout.scratch_bytes).end
        run.layout = dataclasses.replace(run.layout, segment_bytes=segment_bytes)
        check(run)
    assert bench.logged("make") == [f"make {calls} checked" for calls in (4, 4, 3, 4, 4)]
    assert len(bench.logged("load")) == 1
    late = [call.late_rank for (order, _) in bench.reference.staged[:3] for call in order.calls]  # type: ignore[union-attr]
    assert late == [None, 0, 1, None, None, 0, 1, None, None, None, None], "as in one block"
    report = bench.feedback.check
    assert report is not None and (report.trials, report.outputs_compared, report.passed) == (11, 22, True)


def test_a_call_takes_what_its_slowest_rank_takes_in_the_fastest_call() -> None:
    """The others were delayed."""
    bench = Bench()
    of_ranks = [(100.0, 4000.0, 90.0, 95.0, 900.0), (70.0, 4000.0, 130.0, 40.0, 900.0)]
    bench.reference.ended = [
        [BlockEnded(True, (), calls_us) for calls_us in of_ranks],
        [BlockEnded(True, (), (900.0,) * 4)] * 2,
    ]
    with bench.run() as run:
        assert check(run) == 95.0


def test_each_rank_is_late_twice_and_held_twice() -> None:
    bench = Bench()
    with bench.run() as run:
        check(run)
    calls = [
        [call for order in orders if isinstance(order, ConductCalls) for call in order.calls]
        for orders in zip(*bench.reference.staged[:2], strict=True)
    ]
    assert len(calls) == 2
    assert [[at for at in range(9) if of_rank[at].is_held] for of_rank in calls] == [[4, 8], [3, 7]]
    assert [call.together for call in calls[0]] == [True] + [False] * 8
    assert [call.late_rank for call in calls[0]] == [None, 0, 1, None, None, 0, 1, None, None]
    settings = [setting.holds_ns for setting in bench.candidate.settings[:2]]
    held = [[bool(hold_ns) for of_block in of_rank for hold_ns in of_block] for of_rank in zip(*settings, strict=True)]
    assert [[call for call in range(9) if of_rank[call]] for of_rank in held] == [[4, 8], [3, 7]]


@pytest.mark.parametrize("source", [KERNEL, PYTHON])
def test_each_rank_of_gpus_is_congested_while_others_are_not(source: str) -> None:
    bench = Bench(source=source, gpus=2)
    with bench.run() as run:
        check(run)
    *conducted, _, _, served = bench.candidate.settings
    handovers = [setting.handovers for setting in bench.candidate.settings]
    assert handovers == ["waiting", "waiting", "waiting", "waiting", "enqueued"]
    for first, setting in zip((0, RETURNING), conducted, strict=True):
        calls = [[first + call for call, ns in enumerate(of_rank) if ns] for of_rank in setting.congestions_ns]
        assert calls == ([[4], [3]] if first == 0 else [[7], [6]])
    assert bench.reference.staged[-1] == (ServeHandovers(takes_outputs=True),) * 2
    calls = [[call for call, ns in enumerate(of_rank) if ns] for of_rank in served.congestions_ns]
    assert len(served.congestions_ns[0]) == MAX_CONGESTED
    assert calls == [[call for call in range(MAX_CONGESTED) if call // 4 % 2 == rank] for rank in (0, 1)]


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("source", [KERNEL, PYTHON])
def test_each_rank_is_preempted_in_every_second_call_in_its_turn(source: str, gpus: int) -> None:
    bench = Bench(source=source, gpus=gpus)
    with bench.run() as run:
        check(run)
    of_ranks = [order.calls for order in bench.reference.staged[3] if isinstance(order, ConductCalls)]
    assert len(of_ranks) == 2
    for calls in of_ranks:
        assert [call.preempted_rank for call in calls] == [0, None, 1, None] * (MAX_PREEMPTED // 4)
        assert {call.preempted_s for call in calls} == {MIN_PREEMPTED_S["cuda" if gpus else "cpu"]}


def test_ranks_stand_still_for_longer_in_long_calls_of_which_there_are_fewer() -> None:
    bench = Bench(gpus=2)
    bench.reference.conducted_us = 20e3
    with bench.run() as run:
        check(run)
    preempted = bench.reference.staged[3]
    assert isinstance(preempted[0], ConductCalls)
    assert [call.preempted_rank for call in preempted[0].calls] == [0, None, 1, None, 0]
    assert preempted[0].calls[0].preempted_s == pytest.approx(CALLS_OF_DELAY * 20e-3)
    congestions_ns = bench.candidate.settings[-1].congestions_ns
    assert len(congestions_ns[0]) == MIN_CONGESTED and max(congestions_ns[0]) == pytest.approx(CALLS_OF_DELAY * 20e6)


def test_an_output_that_is_wrong_in_a_preempted_call_is_a_race() -> None:
    bench = Bench(gpus=2)
    wrong = mismatch(rank=1, trial=9 + MAX_INTERRUPTED + 2)
    bench.reference.mismatches = [[], [], [], [wrong], []]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    assert found.failure is Failure.RACE and found.race is not None and found.race.kind == "reuse"
    assert "rank 1 was slower" in found.message


def test_fewer_calls_are_congested_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pkb_gym.engine.stages.check.CONGESTED_BYTES", 1)
    bench = Bench(gpus=2)
    with bench.run() as run:
        check(run)
    assert len(bench.candidate.settings[-1].congestions_ns[0]) == MIN_CONGESTED


def test_ranks_without_a_peer_or_a_gpu_of_their_own_are_neither_congested_nor_preempted() -> None:
    for bench in (Bench(world_size=1), Bench(gpus=1, world_size=1), Bench(gpus=1, ranks_per_gpu=2)):
        with bench.run() as run:
            check(run)
        assert not any(any(map(any, setting.congestions_ns)) for setting in bench.candidate.settings)
        orders = [order for staged in bench.reference.staged for order in staged if isinstance(order, ConductCalls)]
        assert not any(call.preempted_rank is not None for order in orders for call in order.calls)


def test_ranks_of_the_cpu_are_not_congested() -> None:
    bench = Bench()
    with bench.run() as run:
        check(run)
    assert not any(any(map(any, setting.congestions_ns)) for setting in bench.candidate.settings)


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize("source", [KERNEL, PYTHON])
def test_each_rank_is_interrupted_in_as_many_calls(source: str, gpus: int) -> None:
    bench = Bench(source=source, gpus=gpus)
    with bench.run() as run:
        check(run)
    of_ranks = [order.calls for order in bench.reference.staged[2] if isinstance(order, ConductCalls)]
    interrupted = [[at for at, call in enumerate(calls) if call.run_s] for calls in of_ranks]
    assert interrupted == [[call for call in range(MAX_INTERRUPTED) if call // 4 % 2 == rank] for rank in (0, 1)]
    assert not any(call.run_s for order in bench.reference.staged[1] for call in order.calls)  # type: ignore[union-attr]


def test_a_rank_without_peers_is_not_interrupted() -> None:
    bench = Bench(world_size=1)
    with bench.run() as run:
        check(run)
    assert not any(call.run_s for orders in bench.reference.staged for call in orders[0].calls)  # type: ignore[union-attr]


def test_a_rank_runs_for_longer_at_a_time_in_long_calls_of_which_there_are_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stops of a call are spread over all of it, and cost as much as those of a short one."""
    monkeypatch.setattr("pkb_gym.engine.stages.check.INTERRUPTED_BYTES", 1)
    bench = Bench()
    bench.reference.call_us = 4000.0
    with bench.run() as run:
        check(run)
    order = bench.reference.staged[2][0]
    assert isinstance(order, ConductCalls)
    assert len(order.calls) == 2 * MIN_INTERRUPTED
    assert order.calls[0].run_s == pytest.approx(RUN_SHARE * 4e-3)


def test_an_output_that_is_wrong_in_an_interrupted_call_is_a_race() -> None:
    bench = Bench()
    wrong = mismatch(rank=1, trial=12)
    bench.reference.mismatches = [[], [], [wrong], []]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    assert found.failure is Failure.RACE and found.race is not None and found.race.kind == "reuse"
    assert str(wrong) in found.race.evidence


def test_an_output_that_is_wrong_in_a_congested_call_is_a_race() -> None:
    bench = Bench(gpus=2)
    wrong = mismatch(rank=1, trial=12 + MAX_INTERRUPTED + MAX_PREEMPTED)
    bench.reference.mismatches = [[], [], [], [], [wrong], []]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    assert found.failure is Failure.RACE and found.race is not None
    assert str(wrong) in found.race.evidence


def test_modules_are_not_held() -> None:
    """They bring their own synchronisation, in which nobody can hold them."""
    bench = Bench(source=PYTHON)
    with bench.run() as run:
        check(run)
    assert not any(map(any, bench.candidate.settings[0].holds_ns))


def test_the_deadline_follows_the_baseline() -> None:
    bench = Bench(timeout_s=1.0)
    bench.reference.call_us = 1e6
    with bench.run() as run:
        check(run)
    first_s, _ = deadlines_s(bench, 9, 150)
    _, then_s = deadlines_s(bench, 9, 120)
    expected = [f"load in {first_s}", f"candidate 5 in {first_s}", f"candidate 4 in {then_s}"]
    assert bench.logged("load", "candidate")[:3] == expected


def test_a_wrong_output_ends_it() -> None:
    bench = Bench()
    wrong = mismatch(rank=0, reason="input_modified", got="0", expected="1")
    bench.reference.mismatches = [[wrong]]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank) == (Failure.INPUT_MODIFIED, 0)
    assert found.check is not None and found.check.mismatches == (wrong,)


def test_an_output_that_comes_after_its_call_ends_it_though_it_is_right_in_the_end() -> None:
    bench = Bench()
    calls_us = (50.0,) * 5
    bench.reference.ended = [[BlockEnded(True, (), calls_us), BlockEnded(True, (LateOutput(2, "out"),), calls_us)]]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank, found.integrity) == (Failure.RACE, 1, ())
    assert found.race is not None
    assert (found.race.kind, found.race.owner, found.race.tensor) == ("late_output", 1, "out")


def test_a_candidate_that_does_not_load_has_run_nothing() -> None:
    bench = Bench()
    bench.candidate.fails["load"] = GangFailed(Failure.LOAD_ERROR, 0, "rank 0: no solution")
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    assert (found.failure, found.stage, found.check) == (Failure.LOAD_ERROR, None, None)
