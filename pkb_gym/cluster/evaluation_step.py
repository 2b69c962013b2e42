"""One step of an evaluation by an evaluator of this process; shared by compile tasks and gangs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias, cast

from pkb_gym.cluster.records import Order, StepReply
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.errors import InfrastructureError, PkbError
from pkb_gym.engine.evaluators.evaluator import KeyedEvaluator
from pkb_gym.engine.records.config import last_stage
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.records.service import ErrorReport, EvaluationRequest
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.engine.support.user_objects import load_object
from pkb_gym.problems.catalogue import find_problem
from pkb_gym.problems.own_problems import register_folder

logger = logging.getLogger(__name__)


OpenEvaluator: TypeAlias = Callable[[bytes, CompileCache], KeyedEvaluator]


class Cancelled(Exception):
    """Raised into an evaluation that was cancelled."""


def evaluator_opener(reference: str) -> OpenEvaluator:
    """A function that opens the evaluators of a pool.

    Args:
        reference: `module:factory`; the factory takes `key` and `cache`.

    Raises:
        ConfigError: There is no such factory.
    """
    factory = cast("Callable[..., KeyedEvaluator]", load_object(reference, "evaluator"))
    return lambda key, cache: factory(key=key, cache=cache)


def register_problems(folders: tuple[str, ...]) -> None:
    """Makes problems outside the package known to this process.

    Raises:
        ConfigError: There is no problem in a folder.
    """
    for folder in folders:
        register_folder(folder)


def take_step(evaluator: KeyedEvaluator, order: Order, progress: Progress | None) -> StepReply:
    """Runs one step; the reply has whether it ends the evaluation, and every error.

    Args:
        evaluator: Evaluator of this process.
        order: Order of the step.
        progress: Function called with each stage as it begins; may raise `Cancelled`.
    """
    request = order.request
    try:
        feedback = _evaluate(evaluator, request, order.until, progress)
    except Cancelled:
        return refusal(InfrastructureError("it was cancelled"))
    except PkbError as error:
        return refusal(error)
    except Exception as error:
        logger.exception("the evaluator failed")
        return refusal(InfrastructureError(f"{type(error).__name__}: {error}"))
    untimed = feedback.config.debug or feedback.config.ranks_per_gpu > 1
    last = last_stage(request.config.until, untimed, feedback.config.device)
    if order.until is not None:  # the record describes the requested evaluation
        feedback = feedback.model_copy(update={"config": feedback.config.model_copy(update={"until": last})})
    return StepReply(
        feedback=feedback.model_dump_json(),
        is_final=feedback.failure is not None or order.until in (None, last),
        is_infrastructure=feedback.failure is Failure.INFRASTRUCTURE,
        compiled=feedback.stage is not None and feedback.stage.order >= Stage.COMPILE.order,
        durations_s=feedback.durations_s,
    )


def _evaluate(
    evaluator: KeyedEvaluator, request: EvaluationRequest, until: str | None, progress: Progress | None
) -> Feedback:
    config = request.config if until is None else request.config.model_copy(update={"until": until})
    replay_key = None if request.replay_key is None else bytes.fromhex(request.replay_key)
    return evaluator.evaluate(find_problem(request.problem), request.source, config, progress, replay_key=replay_key)


def refusal(error: PkbError) -> StepReply:
    """A reply that ends the evaluation without feedback."""
    return StepReply(
        is_final=True,
        is_infrastructure=isinstance(error, InfrastructureError),
        error=ErrorReport.of(error),
    )
