"""Tables of solved problems: by hand, and beside the published rows."""

from __future__ import annotations

import doctest

import pytest

from pkb_gym.problems.catalogue import catalogue
from pkb_gym.report import categories, tables
from pkb_gym.report.categories import catalogue_counts, category_of, title_of
from pkb_gym.report.content import report_content
from pkb_gym.report.published import published
from pkb_gym.report.tables import overview_table, published_table, settings_table, solved_tables
from tests.metrics.attempts import attempt
from tests.report.timings import loose

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
    assert right.header == ("category", "a (k = 3)")
    # AllReduce 1/3 and 1, Gather 1 and 1, HyenaCP 0, MyOwn 1 with its only sample
    assert dict(right.rows) == {
        "All (4 of 88)": "2.3 → 3",
        "Collective Primitive (2 of 8)": "1.3 → 2",
        "Context Parallel (1 of 15)": "0 → 0",
        "Own (1)": "1 → 1",
    }, "a category that nobody tried has no row"
    assert dict(faster.rows)["All (4 of 88)"] == "1.3 → 2" and dict(captured.rows)["All (4 of 88)"] == "1 → 1"


def test_agents_that_tried_different_problems_have_their_numbers_in_the_cells():
    attempts = [attempt("AllReduce", "a"), attempt("Gather", "a", speedup=1.0), attempt("Gather", "b", speedup=1.0)]
    right, _ = solved_tables(report_content(attempts))
    assert right.rows == (("All (87)", "1 of 2", "1 of 1"), ("Collective Primitive (8)", "1 of 2", "1 of 1"))
    untried = report_content([attempt(failure="infrastructure")])
    assert solved_tables(untried) == []


def test_published_rows_have_a_table_of_their_own():
    table = published_table()
    assert table.header == ("model (k = 3)", "right", "right and faster") and len(table.rows) == 5
    assert table.rows[0] == ("GPT-5.5", "28 → 36", "22 → 27") and all(all(row) for row in table.rows)


def test_the_overview_has_both_estimates_and_no_empty_columns():
    attempts = [
        attempt("AllReduce", "a", sample=0, speedup=2.0, low=0.9),
        attempt("AllReduce", "a", sample=1),
        attempt("Gather", "a", sample=0, speedup=3.0),
        attempt("Gather", "a", sample=1, speedup=3.0),
        attempt("AllReduce", "b"),
    ]
    table = overview_table(report_content(attempts).agents)
    first, second = (dict(zip(table.header, row, strict=True)) for row in table.rows)
    assert first["samples"] == "4 (2 problems)" and second["samples"] == "1 (1 problem)"
    assert first["pass@1"].startswith("0.750 (0.500 to") and first["pass@2"].startswith("1.000 (")
    assert first["fast_1 by lower end"].startswith("0.500 (") and first["fast_1 as measured"].startswith("0.750 (")
    assert first["speedup of right kernels"].startswith("2.45x (") and second["pass@1"] == "0.000"
    assert not any("captured" in title for title in table.header)
    only_wrong = overview_table(report_content([attempt()]).agents)
    assert only_wrong.header == ("agent", "samples", "pass@1", "fast_1 by lower end", "fast_1 as measured")


def test_settings_stand_once_with_the_evaluations_of_each_agent():
    other = attempt("Gather", "c")
    config = other.feedback.config.model_copy(update={"protocol": "published"})
    other = other.model_copy(update={"feedback": other.feedback.model_copy(update={"config": config})})
    nothing = attempt(sample=1, failure="no_submission")
    table = settings_table(report_content([attempt(), nothing, attempt("Gather", "b"), attempt("Reduce", "b"), other]))
    assert table.header == ("hardware", "device", "ranks", "sizes", "protocol", "evaluations")
    assert table.rows == (
        ("example", "cpu", "4", "tiny", "robust", "a: 1, b: 2"),
        ("example", "cpu", "4", "tiny", "published", "c: 1"),
    )


def test_notes_tell_the_shares_of_truncated_and_refused_replies():
    cut = attempt(failure="no_submission", sample=1, reply="```", finish_reason="length")
    refused = attempt(failure="no_submission", sample=2, refusal="too long")
    attempts = [attempt(speedup=2.0), cut, refused, attempt(sample=3), attempt("Gather", "b")]
    notes = report_content(attempts).notes
    assert any("truncated" in note and "raise max_tokens: a 25%." in note for note in notes)
    assert any("refused by the endpoint" in note and note.endswith(": a 25%.") for note in notes)


def test_notes_count_timings_that_did_not_converge():
    notes = report_content([loose(speedup=2.0), attempt("Gather", speedup=1.0), attempt("Gather", "b")]).notes
    assert any("marked ≈: a 1 of 2." in note for note in notes)


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        ([attempt()], "87 problems, whose categories add up to 86"),
        ([attempt()], "All kernels ran on the CPU"),
        ([attempt(), attempt("Gather", failure="infrastructure")], "could not be judged count for nothing: a 1 of 2."),
        ([attempt(), attempt("Gather"), attempt("Gather", sample=1)], "a has 1 to 2 of a problem."),
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
