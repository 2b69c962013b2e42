"""The worked example of docs/problems.md is complete, and judged as the page says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure, Stage
from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS, code_blocks

FILES = code_blocks(DOCS / "problems.md", "title")
CONFIG = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    folder = tmp_path_factory.mktemp("max_abs")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    module = load_module(folder / "problem.py", "tests.docs.max_abs.problem")
    return replace(module.PROBLEM, declared_in=str(folder / "problem.py"))


def test_it_would_be_found_where_the_page_puts_it(problem):
    assert set(FILES) == {"problem.py", "reference.py", "expert.cpp"}
    page = (DOCS / "problems.md").read_text(encoding="utf-8")
    assert f"`problems/{problem.category}/{problem.folder}/`" in page


def test_a_size_that_does_not_fit_is_refused(problem):
    with pytest.raises(SizeError, match="N=510 must be a multiple of W=4; nearest 508 and 512"):
        problem.axes(size={"N": 510}, world_size=4, rank=0)


def test_the_expert_passes_every_stage(problem: Problem, evaluator: LocalEvaluator):
    config = CONFIG.model_copy(update={"until": "profile", "timing_budget_s": 0.05})
    feedback = evaluator.evaluate(problem, FILES["expert.cpp"], config)
    assert feedback.passed and feedback.stage is Stage.PROFILE, feedback.message


@pytest.mark.parametrize("protocol", ["robust", "published"])
def test_the_reference_passes_its_own_checks(problem, evaluator, protocol):
    feedback = evaluator.evaluate(problem, FILES["reference.py"], CONFIG.model_copy(update={"protocol": protocol}))
    assert feedback.passed, feedback.message


def test_a_rank_that_looks_at_its_own_shard_only_is_wrong(problem, evaluator):
    lonely = FILES["reference.py"].replace("    dist.all_reduce(out, op=dist.ReduceOp.MAX)\n", "")
    assert lonely != FILES["reference.py"]
    feedback = evaluator.evaluate(problem, lonely, CONFIG)
    assert feedback.failure is Failure.OUTPUT_MISMATCH, feedback.message
