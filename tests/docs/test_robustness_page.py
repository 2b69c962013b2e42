"""docs/robustness.md names every problem, weakness and counterfeit; tests/problems runs the counterfeits."""

from __future__ import annotations

import re

import pytest

from pkb_gym.problems.catalogue import catalogue, find_problem
from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS
from tests.problems.counterfeit_runs import evidence_of, references
from tests.problems.finer_runs import evaluated_in_float32, shares_wrong

generator = load_module(DOCS / "generate_robustness.py", "tests.docs.generate_robustness")
PAGE = generator.PAGE.read_text(encoding="utf-8").replace("\\|", "|")
ROWS = {name: line for line in PAGE.splitlines() for name in re.findall(r"^\| \d+ \| \[(\w+)\]", line)}
STALE = "docs/robustness.md is stale: run `python docs/generate_robustness.py`"


def test_totals_are_those_of_the_catalogue():
    assert generator.totals(catalogue()).sentence() in PAGE, STALE


def test_every_problem_has_its_row():
    assert list(ROWS) == [problem.name for problem in catalogue()], STALE


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.name)
def test_a_row_has_weaknesses_rules_and_counterfeits(problem):
    row = ROWS[problem.name]
    assert all(weakness in row for weakness in problem.weaknesses), STALE
    assert all(out.check.describe() in row for out in problem.outputs), STALE
    found = evidence_of(problem.folder)
    for fake in found.counterfeits if found else ():
        verdict = re.search(rf"{re.escape(fake.name)}: accepts / (refuses, \d of \d trials|falls over)", row)
        assert verdict, f"{fake.name}: {STALE}"


def test_a_float32_answer_is_refused_by_the_published_check_alone():
    problem = find_problem("GemmAllReduce")
    truths = references(problem, "published", "robust")
    shares = shares_wrong(problem, evaluated_in_float32(problem), truths)
    assert shares["published"] > 0.01 and shares["robust"] == 0
