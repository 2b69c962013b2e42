"""Kernels that wait by atomics of their own, each without one of its synchronisations, beside their right twins.

`make test` evaluates every second one, `make all` each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate
from tests.engine.joined_libraries import compile_together
from tests.engine.twins import Twin, right_kernels, twins
from tests.whole_tables import sampled

RIGHT, WRONG = right_kernels("twins"), twins("twins")
SHOWN_RIGHT, SHOWN_WRONG = sampled(RIGHT, 2), sampled(WRONG, 2)
EVALUATIONS = 60
"""A stop has to meet a moment that is as short as a copy of a kilobyte, which is rare for some: one is enough."""


pytestmark = pytest.mark.usefixtures("all_interrupted_calls")


@pytest.fixture(scope="module")
def compiled(compiled_before: Path) -> None:
    compile_together([each.source for each in (*SHOWN_RIGHT, *SHOWN_WRONG)], CompileCache.in_folder(compiled_before))


def test_each_synchronisation_can_be_taken_out() -> None:
    for right in RIGHT:
        marked = set(re.findall(r"// sync: (\w+)$", right.source, re.MULTILINE))
        assert marked == {twin.name for twin in WRONG if twin.right is right or twin.right.path == right.path}


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("right", SHOWN_RIGHT, ids=lambda right: right.path.stem)
def test_a_right_kernel_passes(right: Candidate, local_evaluator: LocalEvaluator) -> None:
    feedback = local_evaluator.evaluate(find_problem(right.problem), right.source, right.config)
    assert feedback.passed, feedback.message


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("twin", SHOWN_WRONG, ids=str)
def test_a_missing_synchronisation_is_refused(twin: Twin, local_evaluator: LocalEvaluator) -> None:
    for seed in range(EVALUATIONS):
        config = twin.right.config.model_copy(update={"seed": seed})
        feedback = local_evaluator.evaluate(find_problem(twin.right.problem), twin.source, config)
        if not feedback.passed:
            break
    assert feedback.failure in twin.outcome, feedback.message
