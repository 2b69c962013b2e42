"""The baseline's time when it is captured in CUDA graphs, so that the host launches nothing.

It is measured with its tensors where torch puts them, and in memory that is registered with NCCL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.timing import CAPTURED, REGISTERED, CapturedFields
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
    """Adds both times to the timing; last of all, as breaking off a capture can cost a context.

    Registered memory comes second, and only where the other was captured: ranks that register together wait for one
    another, so that a rank which fails at it costs the gang.

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

    def add(fields: CapturedFields) -> bool:
        registered = fields is REGISTERED

        def measure() -> list[float] | None:
            turn = machine_to_itself(report, CAPTURING)
            with run.feedback.waiting_for(turn), run.feedback.waiting_for(idle_devices()):
                return _captured_us(run, timed.baseline_us, timed.gate_us, registered=registered)

        captured_us = cache.captured_us((*case, registered), measure)
        if captured_us is None or run.feedback.timing is None:
            return False
        added = statistics.with_captured_baseline(run.feedback.timing, captured_us, fields)
        run.feedback.timing = with_captured_delivery(added, fields)
        return True

    # A fault at this costs the reference gang, and not what was found of the candidate.
    with contextlib.suppress(InfrastructureError):
        if add(CAPTURED) and workload.world_size > 1:
            add(REGISTERED)


def _captured_us(run: CandidateRun, baseline_us: float, gate_us: float, *, registered: bool) -> list[float] | None:
    """Microseconds a call of the baseline as graphs, block by block; None if it cannot be captured."""
    reference = run.reference
    calls = len(run.prepare(min(statistics.GRAPHS, run.layout.most_calls), timed=True).sets)
    reference.warm_up(calls)
    if not reference.capture(calls, run.dialect, registered=registered):
        return None
    replays = statistics.replays_per_block(baseline_us)
    blocks = [reference.replay(replays) for _ in range(statistics.GRAPH_BLOCKS)]
    return [statistics.per_call_us("cuda", block, replays, gate_us) for block in blocks]
