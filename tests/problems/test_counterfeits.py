"""What the published check takes for right and ours must not: one or more short wrong solutions per weakness.

`make test` judges those of a sample of the problems, `make all` all.
"""

from __future__ import annotations

import pytest

from pkb_gym.problems.catalogue import catalogue
from tests.problems.counterfeit_runs import FOLDER, evidence_of, judge, judge_together, references
from tests.whole_tables import sampled

WEAK = [problem for problem in catalogue() if problem.weaknesses]


@pytest.mark.parametrize("problem", sampled(WEAK, 4), ids=lambda problem: problem.name)
def test_every_weakness_is_shown(problem):
    found = evidence_of(problem.folder)
    assert found is not None, f"{problem.name} has weaknesses and no {problem.folder}.py in tests/counterfeits"
    shown = {counterfeit.weakness for counterfeit in found.counterfeits}
    assert shown | set(found.not_shown) == set(range(len(problem.weaknesses)))
    assert not shown & set(found.not_shown), "a counterfeit shows what its page lists as not shown"


@pytest.mark.parametrize("problem", sampled(WEAK, 6), ids=lambda problem: problem.name)
def test_published_accepts_and_robust_refuses(problem):
    truths = references(problem, "published", "robust")
    counterfeits = evidence_of(problem.folder).counterfeits
    solutions = [counterfeit.solution for counterfeit in counterfeits]
    verdicts = judge_together(problem, solutions, "published", truths["published"])
    for counterfeit, published in zip(counterfeits, verdicts, strict=True):
        assert published.accepted, f"{counterfeit.name}: the published check says: {published}"
        robust = judge(problem, counterfeit.solution, "robust", truths["robust"])
        assert not robust.accepted, f"{counterfeit.name}: passes the robust check"


def test_every_counterfeit_belongs_to_a_problem():
    files = {path.stem for path in FOLDER.glob("*.py")}
    assert files <= {problem.folder for problem in catalogue()}
