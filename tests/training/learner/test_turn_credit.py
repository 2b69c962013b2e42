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
    assert found == [pytest.approx([0.5] * 2), pytest.approx([-0.1]), pytest.approx([-0.4] * 3)]


def test_discounts_are_of_later_turns():
    found = find_credit("discounted_max", "group_mean", gamma=0.5).of_group([[0.0, 1.0], [0.0, 0.0]])
    assert found == [pytest.approx([0.25, 0.5]), pytest.approx([-0.25, -0.5])]


def test_what_was_not_judged_counts_for_nobody():
    with_fault = find_credit("outcome", "group_mean").of_group([[1.0], [None, None], [0.0]])
    assert with_fault == [[0.5], [0.0, 0.0], [-0.5]]


@pytest.mark.parametrize("advantages", ["group_relative", "group_mean", "leave_one_out"])
def test_equal_values_give_no_advantage(advantages):
    assert find_credit("own_value", advantages).of_group([[0.7, 0.7]] * 3) == [[0.0, 0.0]] * 3


def test_a_malformed_second_call_does_not_inherit_a_good_first_turn_by_hand():
    """Rollout 0: value 1, then a malformed call. Rollout 1: value 0.5, then 0.8; the empty value is 0.

    improvement_only returns (1, 0) and (0.5, 0.3), own_value (1, 0) and (0.5, 0.8), discounted_sum with gamma 0.5
    (1, 0) and (0.9, 0.8); each less the other's of the same turn.
    """
    values, submitted = [[1.0, 0.0], [0.5, 0.8]], [[True, False], [True, True]]
    found = {
        name: find_credit(name, "leave_one_out", gamma=0.5).of_group(values, submitted)
        for name in ("improvement_only", "own_value", "discounted_sum")
    }
    assert found["improvement_only"] == [pytest.approx([0.5, -0.3]), pytest.approx([-0.5, 0.3])]
    assert found["own_value"] == [pytest.approx([0.5, -0.8]), pytest.approx([-0.5, 0.8])]
    assert found["discounted_sum"] == [pytest.approx([0.1, -0.8]), pytest.approx([-0.1, 0.8])]


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ("outcome", [[0.2, 0.0], [-0.2, -0.2]]),  # 1 and 0.8
        ("best_of_episode", [[0.2, 0.0], [-0.2, 0.0]]),  # the second turn of 1 has none to be compared with
        ("last_of_episode", [[0.2, 0.0], [-0.2, 0.0]]),  # the last submission of 0 is its first
    ],
)
def test_credits_of_an_episode_leave_out_messages_without_submission(credit, expected):
    found = find_credit(credit, "leave_one_out").of_group([[1.0, 0.0], [0.5, 0.8]], [[True, False], [True, True]])
    assert found == [pytest.approx(turns) for turns in expected]


@pytest.mark.parametrize("credit", ["outcome", "best_of_episode", "last_of_episode"])
def test_an_episode_without_submission_answers_for_all_its_messages(credit):
    found = find_credit(credit, "leave_one_out").of_group([[0.0], [1.0]], [[False], [True]])
    assert found == [[-1.0], [1.0]]


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


def test_negative_advantages_weigh_less_by_hand():
    """Values 1, 0 and 0.2 less the mean of the others: 0.9, -0.6 and -0.3; a quarter of the negative ones."""
    found = find_credit("own_value", "leave_one_out", negative_weight=0.25).of_group([[1.0], [0.0], [0.2]])
    assert found == [pytest.approx([0.9]), pytest.approx([-0.15]), pytest.approx([-0.075])]
    assert find_credit("own_value", "leave_one_out", negative_weight=0.0).of_group([[1.0], [0.0]]) == [[1.0], [0.0]]


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_outside_of_its_range_is_refused(weight):
    with pytest.raises(ConfigError, match="between 0"):
        find_credit(negative_weight=weight)


@pytest.mark.parametrize(
    ("group", "uniform"), [([[0.0, 0.0], [0.0]], True), ([[0.0, 0.1], [0.0]], False), ([[0.0], [-0.1]], False)]
)
def test_a_group_is_uniform_where_no_advantage_differs_from_0(group, uniform):
    assert turn_credit.is_uniform(group) is uniform
