"""The compile task: static checks and the compiler, on any node, in the compilers' sandbox.

A worker process keeps its evaluator between tasks; it ends with the process.
"""

from __future__ import annotations

from functools import cache

from pkb_gym.cluster.artifacts import Artifacts, RecordingCache, adopt_all
from pkb_gym.cluster.evaluation_step import evaluator_opener, refusal, register_problems, take_step
from pkb_gym.cluster.records import CompileSpec, Order, from_text, to_text
from pkb_gym.engine.errors import PkbError
from pkb_gym.engine.evaluators.evaluator import KeyedEvaluator
from pkb_gym.engine.support import env_vars


def compile_source(spec: str, order: str, artifacts: Artifacts) -> tuple[str, dict[str, bytes]]:
    """Checks and compiles one source.

    Args:
        spec: JSON text of a `CompileSpec`.
        order: JSON text of an `Order`.
        artifacts: Artifacts of an earlier compile of the same source.

    Returns:
        JSON text of a `StepReply`, and the artifacts.
    """
    try:
        used, evaluator = _prepared(spec)
    except PkbError as error:
        return to_text(refusal(error)), {}
    adopt_all(used, artifacts)
    used.take_used()
    reply = take_step(evaluator, from_text(Order, order), None)
    return to_text(reply), used.take_used()


@cache
def _prepared(text: str) -> tuple[RecordingCache, KeyedEvaluator]:
    spec = from_text(CompileSpec, text)
    if spec.architecture is not None:
        env_vars.set_cuda_architecture(spec.architecture)
    register_problems(spec.problems)
    used = RecordingCache(env_vars.cache_dir() / "compile")
    return used, evaluator_opener(spec.evaluator)(bytes.fromhex(spec.key), used)
