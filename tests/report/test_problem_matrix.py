"""The matrix of problems by agents."""

from __future__ import annotations

import pytest

from pkb_gym.report.content import report_content
from pkb_gym.report.problem_matrix import MatrixCell
from pkb_gym.report.tables import matrix_table
from tests.metrics.attempts import attempt
from tests.report.timings import loose

ATTEMPTS = [
    attempt("HyenaCP", "a", failure="race"),
    attempt("Gather", "a", sample=0, speedup=2.0, low=1.5),
    loose("Gather", "a", sample=1, speedup=3.0, low=0.9),
    attempt("Gather", "a", sample=2, failure="deadlock"),
    attempt("AllReduce", "b", speedup=0.5),
    attempt("MyOwn", "b", failure="no_submission", finish_reason="length"),
]


def test_rows_by_category_with_the_best_sample_of_each_agent():
    content = report_content(ATTEMPTS)
    assert [(row.problem, row.category) for row in content.matrix] == [
        *(("AllReduce", "collective_primitive"), ("Gather", "collective_primitive")),
        *(("HyenaCP", "context_parallel"), ("MyOwn", "own")),
    ]
    (_, gather, hyena, own) = content.matrix
    best, nobody = gather.cells
    assert nobody is None and (best.samples, best.right, best.speedup, best.speedup_low) == (3, 2, 3.0, 0.9)
    assert best.converged is False and best.text == "≈3.00x (2/3)"
    assert best.title.startswith("2 of 3 samples right; best speedup 3.00, 95 % interval 0.90 to ")
    assert best.title.endswith(", not tight within the budget")
    assert hyena.cells[0].text == "race (0/1)" and own.cells[1].title == "0 of 1 samples right; truncated"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3}, "faster"),
        ({"speedup": 1.2, "speedup_low": 0.9, "speedup_high": 1.3}, "right"),
        ({"speedup": 0.5, "speedup_low": 0.4, "speedup_high": 0.6}, "slower"),
        ({"speedup": None}, "right"),
        ({"speedup": None, "right": 0, "verdict": "race"}, "wrong"),
        ({"speedup": None, "right": 0, "verdict": "truncated"}, "nothing"),
        ({"speedup": None, "right": 0, "verdict": "infrastructure"}, "nothing"),
    ],
)
def test_kinds_of_cells(fields, kind):
    assert MatrixCell(**({"samples": 1, "right": 1, "verdict": "passed"} | fields)).kind == kind


def test_in_words_a_problem_without_answer_is_empty():
    table = matrix_table(report_content(ATTEMPTS))
    assert table.header == ("problem", "a", "b")
    assert table.rows[0] == ("AllReduce", "", "0.50x (1/1)")
