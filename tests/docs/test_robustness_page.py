"""docs/robustness.md counts weaknesses and counterfeits, and what right answers the published checks refuse."""

from __future__ import annotations

import pytest

from docs.generate import problems
from pkb_gym.problems.catalogue import catalogue, find_problem
from tests.docs.pages import DOCS
from tests.problems.counterfeit_runs import evidence_of, references
from tests.problems.finer_runs import evaluated_in_float32, shares_wrong
from tests.whole_tables import sampled

WEAK = [problem for problem in catalogue() if problem.weaknesses]


def test_totals_are_those_of_the_catalogue():
    weaknesses = [(problem, number) for problem in catalogue() for number in range(len(problem.weaknesses))]
    shown = [bool(found and found.of(number)) for p, number in weaknesses for found in [evidence_of(p.folder)]]
    counterfeits = sum(len(found.counterfeits) for p in catalogue() if (found := evidence_of(p.folder)))
    weak = sum(bool(problem.weaknesses) for problem in catalogue())
    sentence = (
        f"{len(catalogue())} problems, {weak} of them with {len(weaknesses)} weaknesses. {counterfeits} counterfeits "
        f"show {sum(shown)} of these; {len(shown) - sum(shown)} are not shown."
    )
    assert sentence in (DOCS / "robustness.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("problem", sampled(WEAK, 4), ids=lambda problem: problem.name)
def test_the_page_of_a_problem_has_its_counterfeits(problem):
    text, found = problems.page(problem), evidence_of(problem.folder)
    assert found and all(f"{fake.name}: {fake.why}".replace("*", "\\*") in text for fake in found.counterfeits)


@pytest.mark.parametrize(("name", "least"), [("GemmAllReduce", 0.01), ("FusedMoELoRA", 0.2)])
def test_a_float32_answer_is_refused_by_the_published_check_alone(name, least):
    problem = find_problem(name)
    truths = references(problem, "published", "robust")
    shares = shares_wrong(problem, evaluated_in_float32(problem), truths)
    assert shares["published"] > least and shares["robust"] == 0
