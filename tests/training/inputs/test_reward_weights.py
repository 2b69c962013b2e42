"""Copies of conversations by reward, against numbers computed by hand."""

from __future__ import annotations

import doctest
from math import exp

import pytest
from datasets import Dataset

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs import reward_weights
from pkb_gym.training.inputs.reward_weights import best_of_each_problem, systematic_copies, weighed_by_reward


def corpus(*rows: tuple[str, float]) -> Dataset:
    return Dataset.from_list(
        [{"problem": problem, "reward": reward, "id": at} for at, (problem, reward) in enumerate(rows)]
    )


def test_examples_in_docstrings_hold():
    result = doctest.testmod(reward_weights)
    assert result.attempted and not result.failed


def test_the_best_of_each_problem_stay_in_order():
    rows = corpus(("A", 1.0), ("B", 0.1), ("A", 2.0), ("A", 1.5), ("B", 0.1))
    assert best_of_each_problem(rows, 2)["id"][:] == [1, 2, 3, 4]
    assert best_of_each_problem(rows, 1)["id"][:] == [1, 2]


def test_copies_are_floor_or_ceiling_and_right_on_average():
    """Four rows, weights 1, e^-1, e^-1, e^-2: 4 / 1.871 = 2.138, 0.786, 0.786, 0.289 copies on average."""
    weights = [1.0, exp(-1), exp(-1), exp(-2)]
    expected = [4 * weight / sum(weights) for weight in weights]
    assert [round(count, 3) for count in expected] == [2.138, 0.786, 0.786, 0.289]
    drawn = [systematic_copies(weights, 4, start / 1000) for start in range(1000)]
    assert all(sum(copies) == 4 and copies[0] in (2, 3) and max(copies[1:]) <= 1 for copies in drawn)
    assert [sum(of) / 1000 for of in zip(*drawn, strict=True)] == pytest.approx(expected, abs=2e-3)


def test_each_problem_keeps_its_rows_and_the_best_gains():
    rows = corpus(("A", 0.0), ("A", 0.0), ("A", 2.0), ("B", 0.5), ("B", 0.5))
    found = weighed_by_reward(rows, temperature=0.01, seed=3)
    assert found["id"][:] == [2, 2, 2, 3, 4]
    assert weighed_by_reward(rows, temperature=1e9, seed=3)["id"][:] == [0, 1, 2, 3, 4]


def test_nonsense_is_refused():
    for temperature in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="reward_temperature must be positive"):
            weighed_by_reward(corpus(("A", 1.0)), temperature, seed=0)
    with pytest.raises(ConfigError, match="best_per_problem must be at least 1"):
        best_of_each_problem(corpus(("A", 1.0)), 0)
