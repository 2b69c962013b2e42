"""Every expert kernel for GPUs, and one text of each CUDA family of the corpus, emulated: right, and no finding.

Compilers take minutes for all of them: `make emulated` runs these tests.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import pytest

from pkb_gym.corpus.families import FAMILIES, find_family
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.problems.catalogue import catalogue, expert_source, find_problem
from tests.engine.compiling import compile_ahead

pytestmark = [
    pytest.mark.skipif(not os.environ.get("PKB_TEST_EMULATED"), reason="takes minutes: run it by `make emulated`"),
    pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++"),
    pytest.mark.timeout(3600),  # the first waits for all compiles
]


@dataclass(frozen=True)
class Kernel:
    """A source and what it solves."""

    name: str
    problem: str
    source: str

    @property
    def config(self) -> EvalConfig:
        return EvalConfig(
            device="emulated",
            size="tiny",
            world_size=2,
            trials=14,
            detect_races=True,
            compile_timeout_s=600.0,
            timeout_s=300.0,
        )


def _of_family(problem: str) -> Kernel:
    variant = random.Random(problem).choice(find_family(problem, "cuda").variants)
    return Kernel(f"family {problem}", problem, variant.source)


EXPERTS = [
    Kernel(f"expert {problem.name}", problem.name, expert_source(problem, "cu") or "")
    for problem in catalogue()
    if expert_source(problem, "cu") is not None
]
ALL = [*EXPERTS, *(_of_family(problem) for problem, language in sorted(FAMILIES) if language == "cuda")]


@pytest.fixture(scope="module", autouse=True)
def compiled(local_evaluator: LocalEvaluator) -> None:
    """All of them, side by side; the tests find them in the cache."""
    work = [(find_problem(each.problem), each.source, each.config) for each in ALL]
    compile_ahead(local_evaluator, work, threads=os.cpu_count() or 2)


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_it_is_right_and_has_no_finding(kernel: Kernel, local_evaluator: LocalEvaluator) -> None:
    feedback = local_evaluator.evaluate(find_problem(kernel.problem), kernel.source, kernel.config)
    assert feedback.passed, f"{feedback.failure}: {feedback.message}\n{feedback.output}"
    assert feedback.emulation is not None and feedback.emulation.findings == ()
