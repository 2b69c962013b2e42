"""Tables of solved problems: by hand, and beside the published rows."""

from __future__ import annotations

import doctest

import pytest

from pkb_gym.problems.catalogue import catalogue
from pkb_gym.report import categories, tables
from pkb_gym.report.categories import catalogue_counts, category_of, title_of
from pkb_gym.report.content import report_content
from pkb_gym.report.published import published
from pkb_gym.report.tables import NOT_PUBLISHED, solved_tables
from tests.metrics.attempts import attempt

ATTEMPTS = [
    *(attempt("AllReduce", sample=i, speedup=2.0 if i == 0 else None, captured_us=40.0) for i in range(3)),
    *(attempt("Gather", sample=i, speedup=0.5) for i in range(3)),
    *(attempt("HyenaCP", sample=i) for i in range(3)),
    attempt("MyOwn", sample=0, speedup=3.0),
]


def test_categories_are_those_of_the_declarations():
    assert {problem.name: problem.category for problem in catalogue()} == {
        problem.name: category_of(problem.name) for problem in catalogue()
    }
    assert sum(catalogue_counts().values()) == 87
    assert category_of("MyOwn") == categories.OWN and title_of("fsdp_zero") == "FSDP / ZeRO"


def test_the_published_rows_and_their_sum():
    assert (published().sum_of_categories, published().problems) == (86, 87)
    assert {category.name for category in published().categories} == set(catalogue_counts())
    found = {model.agent: (model.right, model.faster) for model in published().models}
    assert found["GPT-5.5"] == ((28, 36), (22, 27)) and found["DeepSeek V4 Pro"] == ((2, 3), (0, 1))


def test_cells_are_expected_numbers_of_problems():
    right, faster, captured = solved_tables(report_content(ATTEMPTS))
    heads = [head.title for head in right.header]
    ours, *others = right.rows
    assert heads[:3] == ["All", "k", "Collective Primitive"] and heads[-1] == "Own"
    # AllReduce 1/3 and 1, Gather 1 and 1, HyenaCP 0, MyOwn 1 with its only sample
    assert dict(zip(heads, ours.cells, strict=True)) == {
        **dict.fromkeys(heads, ""),
        "All": "2.3 → 3 of 4",
        "k": "3",
        "Collective Primitive": "1.3 → 2 of 2",
        "Context Parallel": "0 → 0 of 1",
        "Own": "1 → 1",
    }
    assert [row.is_published for row in others] == [True] * 5
    assert others[0].cells[:3] == ("28 → 36", "3", NOT_PUBLISHED)
    assert faster.rows[0].cells[0] == "1.3 → 2 of 4" and captured.rows[0].cells[0] == "1 → 1 of 4"
    assert len(captured.rows) == 1, "nothing was published over captured baselines"


def test_heads_say_where_the_published_columns_differ():
    (table, *_) = solved_tables(report_content(ATTEMPTS[:1]))
    counts = {head.title: head.count for head in table.header}
    assert counts["All"] == "87, published 87 (columns: 86)"
    for category in published().categories:
        ours = catalogue_counts()[category.name]
        expected = str(ours) if ours == category.problems else f"{ours}, published {category.problems}"
        assert counts[category.title] == expected


def test_notes_tell_the_share_of_truncated_replies():
    cut = attempt(failure="no_submission", sample=1, reply="```", finish_reason="length")
    notes = report_content([attempt(speedup=2.0), cut, attempt(sample=2), attempt(sample=3)]).notes
    assert any("a: 25% truncated" in note and "raise max_tokens" in note for note in notes)


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        ([attempt()], "add up to 86, not 87"),
        ([attempt()], "All kernels ran on the CPU"),
        ([attempt(), attempt("Gather", failure="infrastructure")], "1 of 2 samples could not be judged"),
        ([attempt(), attempt("Gather"), attempt("Gather", sample=1)], "1 to 2 samples of a problem"),
    ],
)
def test_notes_say_what_to_know(attempts, words):
    assert any(words in note for note in report_content(attempts).notes)


def test_results_of_several_machines_are_reported():
    one, other = attempt(), attempt("Gather")
    environment = other.feedback.environment.model_copy(update={"hardware": "another"})
    other = other.model_copy(update={"feedback": other.feedback.model_copy(update={"environment": environment})})
    assert any("several machines" in note for note in report_content([one, other]).notes)
    assert not any("several machines" in note for note in report_content([one]).notes)


def test_examples():
    assert doctest.testmod(tables).failed == 0
