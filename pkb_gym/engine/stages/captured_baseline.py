"""The baseline's time when it is captured in CUDA graphs, so that the host launches nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.stages import timing_statistics as statistics
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.delivery import with_captured_delivery
from pkb_gym.engine.stages.machine_sharing import machine_to_itself
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.stages.stopwatch import CAPTURING


def add_captured_baseline(
    run: CandidateRun,
    cache: BaselineCache,
    idle_devices: Callable[[], AbstractContextManager[None]],
    report: Progress,
) -> None:
    """Adds it to the timing; last of all, as breaking off a capture can cost a context.

    Args:
        run: Run of a timed candidate, on GPUs.
        cache: Cache of measurements, shared by all candidates.
        idle_devices: Context manager that keeps the devices idle during the measurement.
        report: Callback that receives `WAITING` before a wait.
    """
    timed, workload = run.feedback.timing, run.workload
    assert timed is not None
    case = (
        workload.problem.name,
        repr(workload.size),
        workload.world_size,
        workload.dtype,
        workload.protocol,
        run.dialect,  # see `Timing.delivered_bytes`
    )

    def measure() -> list[float] | None:
        turn = machine_to_itself(report, CAPTURING)
        with run.feedback.waiting_for(turn), run.feedback.waiting_for(idle_devices()):
            return _captured_us(run, timed.baseline_us, timed.gate_us)

    # A fault at this costs the reference gang, and not what was found of the candidate.
    with contextlib.suppress(InfrastructureError):
        captured_us = cache.captured_us(case, measure)
        if captured_us is not None:
            run.feedback.timing = with_captured_delivery(statistics.with_captured_baseline(timed, captured_us))


def _captured_us(run: CandidateRun, baseline_us: float, gate_us: float) -> list[float] | None:
    """Microseconds a call of the baseline as graphs, block by block; None if it cannot be captured."""
    reference = run.reference
    calls = len(run.prepare(min(statistics.GRAPHS, run.layout.most_calls), timed=True).sets)
    reference.warm_up(calls)
    if not reference.capture(calls, run.dialect):
        return None
    replays = statistics.replays_per_block(baseline_us)
    blocks = [reference.replay(replays) for _ in range(statistics.GRAPH_BLOCKS)]
    return [statistics.per_call_us("cuda", block, replays, gate_us) for block in blocks]
