"""Stage check: every output of every rank, on fresh inputs, under the call contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pkb_gym.engine.compare.check import joined
from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.problem.inputs import CALLS_OF_ROOT
from pkb_gym.engine.records.feedback import Stage
from pkb_gym.engine.reference.orders import ServeHandovers
from pkb_gym.engine.stages.block_staging import (
    BlockStaging,
    CallConditions,
    Pace,
    can_be_preempted,
    check_conditions,
    conducted,
    congested_calls,
    has_gpu_each,
    interrupted_calls,
    longest_delays_s,
    preempted_calls,
    served,
    with_congestion,
)
from pkb_gym.engine.stages.candidate_run import CandidateRun, FinishedBlock
from pkb_gym.engine.stages.mismatch import failed_check

RETURNING = CALLS_OF_ROOT
"""Calls at the end of a check that return to places and values of those before: they need a block of their own, as the
tensors of a block all lie in the heap together."""

MIN_CONGESTED, MAX_CONGESTED, CONGESTED_BYTES = 16, 64, 256 << 20
"""Number of congested calls at least and at most, and the bytes of a rank's tensors that they have together if that is
no fewer. Short calls are wrong more rarely, and cost little."""

MIN_INTERRUPTED, MAX_INTERRUPTED, INTERRUPTED_BYTES = 4, 16, 64 << 20
"""Number of calls in which each rank is interrupted at least, number of all of them at most if that is no fewer, and
their bytes, as those of congested calls."""

MIN_PREEMPTED, MAX_PREEMPTED, PREEMPTED_BYTES = 2, 16, 256 << 20
"""The same of calls in every second of which a rank is preempted."""

MAX_SLOW_S = 0.1
"""Time in seconds that the calls of such a block take while no rank is slow, if so few are no fewer than the least."""


def check(run: CandidateRun) -> float:
    """Loads the candidate and compares its outputs on fresh inputs, in two blocks or more, as many as the heap needs.

    Each block but the first returns to places and values of the one before it.

    Returns:
        Microseconds a call of the candidate, at most.

    Raises:
        Stopped: it fell, or an output is wrong.
        InfrastructureError: this machine failed.
    """
    conditions = check_conditions(run.config.world_size, run.config.trials, run.dialect)
    earlier: BlockPlan | None = None
    first = max(1, len(conditions) - RETURNING)
    calls_us: list[float] = []
    while len(calls_us) < len(conditions):
        wanted = conditions[:first] if earlier is None else conditions[len(calls_us) :]
        finished = _check_block(run, wanted, earlier)
        earlier = finished.plan
        calls_us += [max(of_ranks) for of_ranks in zip(*(ended.calls_us for ended in finished.ended), strict=True)]
    call_us = min(calls_us)
    _check_slow_ranks(run, call_us)
    return call_us


def _check_slow_ranks(run: CandidateRun, call_us: float) -> None:
    """Checks more calls, in which one rank is slow inside of its call.

    Args:
        run: Run of the candidate.
        call_us: Microseconds a call of the candidate, at most.

    Raises:
        Stopped: it fell, or an output is wrong.
    """
    config, world_size = run.config, run.config.world_size
    calls_of = partial(_number_of_calls, run, call_us)
    check_slow = partial(_check_slow, run, call_us)
    if world_size > 1:
        wanted = calls_of(MIN_INTERRUPTED * world_size, MAX_INTERRUPTED, INTERRUPTED_BYTES)
        check_slow(wanted, interrupted_calls, partial(conducted, config))
    if can_be_preempted(config):
        wanted = calls_of(MIN_PREEMPTED * world_size, MAX_PREEMPTED, PREEMPTED_BYTES)
        check_slow(wanted, preempted_calls, partial(conducted, config))
    if has_gpu_each(config):
        closely = served(config.device, [ServeHandovers(takes_outputs=True)] * world_size, 0, None)
        wanted = calls_of(MIN_CONGESTED, MAX_CONGESTED, CONGESTED_BYTES)
        check_slow(wanted, congested_calls, partial(with_congestion, closely, config))


def _number_of_calls(run: CandidateRun, call_us: float, least: int, most: int, nbytes: int) -> int:
    """The number of calls whose tensors have so many bytes on a rank, and that take `MAX_SLOW_S`, within limits."""
    one_nbytes = run.workload.plan(range(1), False, run.layout.scratch_bytes).nbytes
    return max(least, min(most, nbytes // max(1, one_nbytes), int(1e6 * MAX_SLOW_S / call_us)))


def _check_slow(
    run: CandidateRun,
    call_us: float,
    wanted: int,
    conditions_of: Callable[[int, int], tuple[CallConditions, ...]],
    staging_of: Callable[[Sequence[CallConditions], Pace], BlockStaging],
) -> None:
    """Checks one block.

    Args:
        run: Run of the candidate.
        call_us: Microseconds a call of the candidate, at most.
        wanted: Number of calls, at least 1; fewer are made where the heap has no room for them.
        conditions_of: Conditions of the calls, from the world size and their number.
        staging_of: Staging of the block, from these conditions and the pace of the machine.
    """
    plan = run.prepare(min(wanted, run.layout.most_calls), timed=False)
    conditions = conditions_of(run.config.world_size, len(plan.sets))
    baseline_ns = run.reference.run(len(conditions), run.dialect)
    pace = run.pace(max(call_us, baseline_ns / len(conditions) / 1e3))
    run.allow(baseline_ns, more_s=longest_delays_s(run.config, conditions, pace))
    finished = run.run(plan, range(len(conditions)), staging_of(conditions, pace))
    report = run.compare(finished.done)
    if not report.passed or finished.late:
        raise failed_check(run, finished, report, conditions, pace)


def _check_block(run: CandidateRun, wanted: Sequence[CallConditions], earlier: BlockPlan | None) -> FinishedBlock:
    """Checks the remaining calls that fit into the heap, and adds them to the report.

    Args:
        run: Run of the candidate.
        wanted: Conditions of the remaining calls.
        earlier: Block before this one; None for the first.
    """
    plan = run.prepare(len(wanted), timed=False, earlier=earlier)
    calls = len(plan.sets)
    conditions = wanted[:calls]
    baseline_ns = run.reference.run(calls, run.dialect)
    pace = run.pace(baseline_ns / calls / 1e3)
    run.allow(baseline_ns, more_s=longest_delays_s(run.config, conditions, pace))
    staging = conducted(run.config, conditions, pace)
    if earlier is None:
        run.observer.before_load(plan, staging)
        run.load()
    finished = run.run(plan, range(calls), staging)
    run.feedback.complete(Stage.RUN)
    report, of_earlier = run.compare(finished.done), run.feedback.check
    run.feedback.check = report if of_earlier is None else joined(of_earlier, report)
    if not report.passed or finished.late:
        raise failed_check(run, finished, report, conditions, pace)
    run.right_trials = [planned.trial for planned in plan.sets if planned.recurrence.values_of is None]
    return finished
