"""Stage profile: a few calls under a profiler."""

from __future__ import annotations

from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.lookup import gpu_link_bytes_per_s
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.profile_report import make_profile

MAX_CALLS = 16
"""Calls that are profiled."""

PROFILER_START_S = 20.0
"""The time that a profiler may take to start and to report, beyond the deadline of the calls."""


def profile(run: CandidateRun) -> None:
    """Adds where the time goes to the feedback.

    Raises:
        Stopped: the candidate fell.
        InfrastructureError: this machine failed.
    """
    timed = run.feedback.timing
    assert timed is not None
    plan = run.prepare(min(MAX_CALLS, timed.blocks[0].calls), timed=True)
    calls = len(plan.sets)
    on_gpus, world_size = run.config.device == "cuda", run.config.world_size
    sets = [0, *range(calls)] if on_gpus else range(calls)  # one call for the profiler to warm up
    run.allow(timed.baseline_us * 1e3 * len(sets), more_s=PROFILER_START_S)
    before = gpus.link_bytes(world_size) if on_gpus else ()
    peak = gpu_link_bytes_per_s() if on_gpus and world_size > 1 else None
    reports = run.profile(plan, sets, peak)
    run.feedback.profile = make_profile(
        calls,
        reports,
        on_gpus=on_gpus,
        links=gpus.between(before, gpus.link_bytes(world_size)) if on_gpus else (),
        code=run.artifact.transfers,
        trace=run.config.trace,
    )
    if run.feedback.profile is not None and "NCCL" in run.feedback.profile.mechanisms:
        run.feedback.calls_torch_distributed = True
