"""Shares by problem, by hand."""

from __future__ import annotations

from benchmarks.learning_by_problem import ring_by_problem, training_by_problem
from pkb_gym.training.results.policy_summary import prompt_key
from tests.training.results.test_policy_summary import row


def test_episodes_of_one_ring_are_counted_by_problem():
    rows = [row("A", 0, 0, 1.5, 2.0), row("A", 0, 1, 0.5), row("B", 0, 0, 0.25), row("C", 0, 0, 1.0, 2.0)]
    rings = {prompt_key(one): "test" if one["problem"] == "C" else "sizes" for one in rows}
    assert ring_by_problem(rows, rings, "sizes") == {
        "A": {"episodes": 2, "correct": 0.5, "reward": 1.0},
        "B": {"episodes": 1, "correct": 0.0, "reward": 0.25},
    }


def test_a_training_is_divided_into_parts_of_its_steps():
    steps = [(0, "A", True), (0, "A", False), (1, "A", True), (2, "B", False), (3, "A", False)]
    rollouts = [{"step": step, "turn": 0, "problem": name, "is_right": right} for step, name, right in steps]
    rollouts.append({"step": 3, "turn": 1, "problem": "A", "is_right": True})  # no first submission
    assert training_by_problem(rollouts, parts=2) == {"A": [2 / 3, 0.0], "B": [None, 0.0]}
    assert training_by_problem([]) == {}
