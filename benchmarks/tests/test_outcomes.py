"""Outcomes of many evaluations: what is evaluated, in which order, and what is counted."""

from __future__ import annotations

from benchmarks.expert_checks import experts
from benchmarks.outcomes import Kernel, Row, evaluated, measure, refused
from benchmarks.tests.scripted_evaluator import ScriptedEvaluator


def rows() -> list[Row]:
    right, wrong = Kernel("right", "AllReduce", "speedup 2"), Kernel("wrong", "AllReduce", "no kernel", "exit")
    return [Row(kernel, size) for kernel in (right, wrong) for size in ("tiny", "published")]


def test_every_row_is_evaluated_once_before_one_is_again() -> None:
    evaluator, found = ScriptedEvaluator(), rows()
    measure(evaluator, found, 2, 1, float("inf"), device="cpu")
    asked = [(source, config.size, config.seed) for source, config in evaluator.requested]
    assert asked == [(row.kernel.source, row.size, seed) for seed in (0, 1) for row in found]
    assert [dict(row.outcomes) for row in found] == [{"passed": 2}] * 2 + [{"compile_error": 2}] * 2
    assert (evaluated(found), refused(found)) == (8, 4)
    assert found[-1].saved()["lacks"] == "exit" and len(found[-1].seconds) == 2


def test_nothing_begins_after_the_limit() -> None:
    evaluator, found = ScriptedEvaluator(), rows()
    measure(evaluator, found, 2, 1, -1.0, device="cpu")
    assert evaluated(found) == 0 and not evaluator.requested and found[0].saved()["evaluation_s"] is None


def test_experts_are_those_of_the_named_problems() -> None:
    assert [kernel.problem for kernel in experts(["AllReduce", "HyenaCP"])] == ["AllReduce", "HyenaCP"]
    assert len(experts([])) == 87
