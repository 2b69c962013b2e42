"""Credit of turns and its spread over tokens, against numbers computed by hand."""

from __future__ import annotations

import doctest

import pytest
import torch

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.learner import turn_credit
from pkb_gym.training.learner.turn_credit import find_credit, token_advantages


def test_examples_in_docstrings_hold():
    result = doctest.testmod(turn_credit)
    assert result.attempted and not result.failed


def test_a_group_of_two_turns_by_hand():
    """Values (0.2, 1.0) and (0.4, 0.4): improvements are (0.2, 0.8) and (0.4, 0.0)."""
    found = find_credit("improvement_only", "leave_one_out").of_group([[0.2, 1.0], [0.4, 0.4]])
    assert found == [pytest.approx([-0.2, 0.8]), pytest.approx([0.2, -0.8])]


def test_outcome_compares_whole_rollouts():
    found = find_credit("outcome", "group_mean").of_group([[0.2, 1.0], [0.4], [0.0, 0.0, 0.1]])
    assert found == [pytest.approx([0.5]), pytest.approx([-0.1]), pytest.approx([-0.4])]


def test_discounts_are_of_later_turns():
    found = find_credit("discounted_max", "group_mean", gamma=0.5).of_group([[0.0, 1.0], [0.0, 0.0]])
    assert found == [pytest.approx([0.25, 0.5]), pytest.approx([-0.25, -0.5])]


def test_what_was_not_judged_counts_for_nobody():
    with_fault = find_credit("outcome", "group_mean").of_group([[1.0], [None, None], [0.0]])
    assert with_fault == [[0.5], [0.0], [-0.5]]


@pytest.mark.parametrize("advantages", ["group_relative", "group_mean", "leave_one_out"])
def test_equal_values_give_no_advantage(advantages):
    assert find_credit("own_value", advantages).of_group([[0.7, 0.7]] * 3) == [[0.0, 0.0]] * 3


def test_each_token_gets_the_advantage_of_its_turn():
    assistant_mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0]])
    found = token_advantages([[1.0, -2.0], [3.0]], assistant_mask)
    assert found.tolist() == [[1, 1, 0, 0, -2, 0, -2, -2], [3, 3, 3, 0, 0, 0, 0, 0]]


def test_a_rollout_that_is_masked_altogether_has_none():
    assert not token_advantages([[1.0]], torch.zeros(1, 4, dtype=torch.long)).any()


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="no credit 'best'"):
        find_credit("best")
    with pytest.raises(ConfigError, match="no advantages 'z'"):
        find_credit("outcome", "z")
