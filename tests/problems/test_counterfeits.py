"""What the published check takes for right and ours must not: one or more short wrong solutions per weakness."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pkb_gym.engine.problem import Problem, snake_case
from pkb_gym.problems.catalogue import catalogue
from tests.problems.support import Job, Run, run_jobs

FOLDER = Path(__file__).resolve().parent.parent / "counterfeits"
PUBLISHED_TRIALS, ROBUST_TRIALS = range(3), range(4)


def module_of(problem: Problem) -> ModuleType:
    path = FOLDER / f"{snake_case(problem.name)}.py"
    assert path.exists(), f"{problem.name} has weaknesses and no {path.name} in tests/counterfeits"
    spec = importlib.util.spec_from_file_location(f"counterfeits_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refused(truth: Run, got: Run) -> bool:
    """Whether any rank's outputs fail the problem's check."""
    for rank, outputs in enumerate(got.outputs):
        for leaf, value in outputs.items():
            expected = truth.outputs[rank].get(leaf)
            if expected is None or expected.shape != value.shape or bool(truth.wrong(rank, leaf, value).any()):
                return True
    return False


WEAK = [problem for problem in catalogue() if problem.weaknesses]


@pytest.mark.parametrize("problem", WEAK, ids=lambda problem: problem.name)
def test_every_weakness_is_shown(problem):
    module = module_of(problem)
    shown = {counterfeit.weakness for counterfeit in module.COUNTERFEITS} | set(getattr(module, "NOT_SHOWN", {}))
    assert shown == set(range(len(problem.weaknesses)))


@pytest.mark.parametrize("problem", WEAK, ids=lambda problem: problem.name)
def test_published_accepts_and_robust_refuses(problem):
    trials = [("published", trial) for trial in PUBLISHED_TRIALS] + [("robust", trial) for trial in ROBUST_TRIALS]
    truths = run_jobs([Job(problem.name, protocol=protocol, trial=trial) for protocol, trial in trials])
    for counterfeit in module_of(problem).COUNTERFEITS:
        published = [
            Job(problem.name, protocol="published", trial=trial, solution=counterfeit.solution)
            for trial in PUBLISHED_TRIALS
        ]
        for truth, got in zip(truths, run_jobs(published), strict=False):
            assert not refused(truth, got), f"{counterfeit.name}: the published check refuses it"
        assert robust_refuses(problem, counterfeit.solution, truths[len(published) :]), (
            f"{counterfeit.name}: passes the robust check"
        )


def robust_refuses(problem: Problem, solution: object, truths: list[Run]) -> bool:
    """Whether a solution fails, by its outputs or by falling over, in at least one trial."""
    jobs = [Job(problem.name, trial=trial, solution=solution) for trial in ROBUST_TRIALS]
    try:
        return any(refused(truth, got) for truth, got in zip(truths, run_jobs(jobs), strict=True))
    except RuntimeError:
        return True
