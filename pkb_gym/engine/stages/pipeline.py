"""The stages of a compiled candidate that has the devices, in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from pkb_gym.engine.hardware.division import division
from pkb_gym.engine.records.feedback import Stage
from pkb_gym.engine.stages.baseline_cache import BaselineCache
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.captured_baseline import add_captured_baseline
from pkb_gym.engine.stages.check import check
from pkb_gym.engine.stages.delivery import charge_delivery
from pkb_gym.engine.stages.machine_sharing import machine_to_itself, work_beside_others
from pkb_gym.engine.stages.profile import profile
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.stages.roofline import place_run
from pkb_gym.engine.stages.stopwatch import CAPTURING
from pkb_gym.engine.stages.time import baseline_alone_us, measured_overhead, time_blocks
from pkb_gym.engine.support.processors import on_processors


def judge(
    run: CandidateRun,
    cache: BaselineCache,
    idle_devices: Callable[[], AbstractContextManager[None]],
    report: Progress,
) -> None:
    """Runs the stages that were asked for.

    Args:
        run: Run of the candidate.
        cache: Cache of earlier measurements; new ones are added.
        idle_devices: Context manager that keeps other work off the devices during timing.
        report: Callback that receives the name of each stage.

    Raises:
        Stopped: the candidate failed; the feedback has the reason.
        InfrastructureError: this machine failed.
    """
    feedback, config = run.feedback, run.config
    with feedback.stage(Stage.CHECK, report):
        alone_us = baseline_alone_us(run)
        if config.until == "check":
            with feedback.waiting_for(work_beside_others(report, Stage.CHECK.value)):
                check(run)
            return
        overhead = measured_overhead(run, cache, idle_devices, report)
        with feedback.waiting_for(work_beside_others(report, Stage.CHECK.value)):
            candidate_us = check(run)
    with (
        feedback.waiting_for(machine_to_itself(report)),
        feedback.waiting_for(idle_devices()),
        feedback.stage(Stage.TIME, report),
    ):
        with on_processors(division().timed if config.device == "cuda" else ()):
            time_blocks(run, alone_us, candidate_us, overhead)
        charge_delivery(run)
        place_run(run)
    if config.until == "profile" and not feedback.failed:
        with feedback.stage(Stage.PROFILE, report), feedback.waiting_for(idle_devices()):
            profile(run)
    if config.device == "cuda" and not feedback.failed:
        with feedback.stopwatch.phase(CAPTURING):
            add_captured_baseline(run, cache, idle_devices, report)
