"""Evaluations on the GPUs there are: ranks that are more than these share them, and are checked and not timed."""

from __future__ import annotations

import importlib.util
from typing import Any, TypedDict

import pytest

from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.support.header_libraries import THUNDERKITTENS, find
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import FOLDER, Candidate, read
from tests.engine.compiling import compile_ahead

GOOD = read(FOLDER / "cuda" / "good" / "reads_peers.cu")


class Ranks(TypedDict):
    """Fields of `EvalConfig`."""

    world_size: int
    ranks_per_gpu: int


def ranks_on_gpus(world_size: int) -> Ranks:
    """That many ranks, on as many GPUs as there are; skips the test where there is none."""
    present = len(gpus.names())
    if present == 0:
        pytest.skip("needs an NVIDIA GPU")
    return Ranks(world_size=world_size, ranks_per_gpu=-(-world_size // present))


def selected(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Parameters of those tests of the requesting file that are going to run: no others need a compiler."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    return [item.callspec.params for item in items if hasattr(item, "callspec")]


def need_gpus(count: int) -> None:
    """Skips the test where there are fewer."""
    if len(gpus.names()) < count:
        pytest.skip(f"needs {count} NVIDIA GPUs")


def need(candidate: Candidate) -> None:
    """Skips the test where this machine cannot run a candidate."""
    need_gpus(1 if candidate.config.until == "check" else candidate.world_size)
    if "symm_mem" in candidate.source or "parallelkittens" in candidate.source:
        need_gpus(candidate.world_size)  # PyTorch's symmetric memory is that of NCCL groups
    if "parallelkittens" in candidate.source and find(THUNDERKITTENS) is None:
        pytest.skip("needs ThunderKittens: set THUNDERKITTENS_ROOT to a checkout")
    if "import triton" in candidate.source and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    if candidate.options.get("needs") == "bubblewrap" and not bubblewrap_works():
        pytest.skip("needs bubblewrap")
    if candidate.options.get("needs") == "gpus":
        need_gpus(candidate.world_size)


def config_here(candidate: Candidate) -> EvalConfig:
    """On the GPUs that there are."""
    return candidate.config.model_copy(update=ranks_on_gpus(candidate.world_size))


def evaluate(evaluator: LocalEvaluator, candidate: Candidate) -> Feedback:
    """The feedback on a candidate, on the GPUs that there are."""
    return evaluator.evaluate(find_problem(candidate.problem), candidate.source, config_here(candidate))


def compile_selected(evaluator: LocalEvaluator, request: pytest.FixtureRequest) -> None:
    """Compiles the candidates of those tests of the requesting file that are going to run, side by side."""
    if gpus.names():
        sources: list[Candidate] = [test["candidate"] for test in selected(request)]
        work = [(find_problem(each.problem), each.source, config_here(each)) for each in sources]
        compile_ahead(evaluator, work, threads=host.processors())


def assert_as_expected(candidate: Candidate, feedback: Feedback) -> None:
    """Fails unless a candidate ended as its file says.

    Ranks that share a GPU run in turns, so that the same mistake shows in another way: that it fails counts alone.
    """
    if feedback.config.ranks_per_gpu == 1 or "passed" in candidate.outcome:
        candidate.assert_as_expected(feedback)
    else:
        assert not feedback.passed and feedback.failure is not Failure.INFRASTRUCTURE, feedback.message
