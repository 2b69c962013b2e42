"""Outcomes of many evaluations: what is evaluated, in which order, and what is counted."""

from __future__ import annotations

from typing import Any

from benchmarks.expert_checks import experts
from benchmarks.outcomes import Kernel, Row, evaluated, measure, refused
from benchmarks.tests.scripted_evaluator import ScriptedEvaluator
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback


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


class SmallMachine(ScriptedEvaluator):
    """Has room for size tiny alone."""

    def evaluate(self, problem: Problem, source: str, config: EvalConfig, *rest: Any, **more: Any) -> Feedback:
        if config.size != "tiny":
            raise ConfigError("needs 162.9 GiB")
        return super().evaluate(problem, source, config, *rest, **more)


def test_what_this_machine_cannot_evaluate_costs_no_other_figure() -> None:
    found = rows()
    measure(SmallMachine(), found, 2, 1, float("inf"), device="cpu")
    assert [row.outcomes.total() for row in found] == [2, 0, 2, 0]
    assert found[1].saved()["unfit"] == "needs 162.9 GiB" and "unfit" not in found[0].saved()


def test_nothing_begins_after_the_limit() -> None:
    evaluator, found = ScriptedEvaluator(), rows()
    measure(evaluator, found, 2, 1, -1.0, device="cpu")
    assert evaluated(found) == 0 and not evaluator.requested and found[0].saved()["evaluation_s"] is None


def test_experts_are_those_of_the_named_problems() -> None:
    assert [kernel.problem for kernel in experts(["AllReduce", "HyenaCP"])] == ["AllReduce", "HyenaCP"]
    assert len(experts([])) == 87
