"""Triton's GSan beside evaluations on GPUs: a gang of its own, once the judged one has ended without a failure."""

from __future__ import annotations

import functools
import time

from pkb_gym.engine.debugging.gsan import gsan_config, gsan_not_judged, judge_by_gsan
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.race_check import JudgedRaces
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.progress import UNDER_GSAN, Progress


def awaits_gsan(feedback: FeedbackBuilder) -> bool:
    """Whether GSan is to judge what nothing else has failed."""
    config = feedback.config
    can_run = config.device == "cuda" and config.language == "triton"
    return can_run and config.race_check != "off" and not feedback.failed


def add_verdict_of_gsan(
    pool: GangPool, feedback: FeedbackBuilder, artifact: Artifact, key: bytes, lane: int, report: Progress
) -> None:
    """Adds the verdict of GSan; what keeps this machine from one is a reason, and no failure of the evaluation.

    Args:
        pool: Pool of the evaluator's gangs.
        feedback: Builder of the evaluation.
        artifact: Compiled candidate.
        key: Secret key of the evaluator.
        lane: Number of the reference gang, as in `GangPool.reference`.
        report: Callback that receives the name of the stage.
    """
    report(UNDER_GSAN)
    with feedback.stopwatch.phase(UNDER_GSAN):
        feedback.add_race_check(_judge(pool, feedback, artifact, key, lane))


def _judge(pool: GangPool, feedback: FeedbackBuilder, artifact: Artifact, key: bytes, lane: int) -> JudgedRaces:
    began_s = time.monotonic()
    config = gsan_config(feedback.config)
    environment = execution_environment.describe(config.device, config.dialect)
    builder = FeedbackBuilder(feedback.problem, feedback.source, config, environment, nonce=feedback.nonce)
    new_gang = functools.partial(pool.candidate_gang, config, feedback.source.text)
    pool.wait_for_endings()  # the judged gang may still hold memory, of which GSan takes seven times that of tensors
    try:
        with pool.new_run(builder, artifact, key, new_gang, lane) as run:
            judged = judge_by_gsan(run)
    except (InfrastructureError, OSError) as error:
        pool.discard_broken()
        judged = gsan_not_judged(config, str(error))
    timed = judged.report.model_copy(update={"duration_s": time.monotonic() - began_s})
    return judged.model_copy(update={"report": timed})
