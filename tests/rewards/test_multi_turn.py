"""Shaping, returns and advantages: what the papers prove of them, on episodes small enough to list them all."""

from __future__ import annotations

import itertools
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards import (
    BestSoFar,
    EpisodeScore,
    LadderThenPerformance,
    best_of_episode,
    discounted_max,
    discounted_sum,
    find_reward,
    first_turn_anchored,
    group_relative,
    improvement_ahead,
    improvement_only,
    last_of_episode,
    leave_one_out,
)
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.rewards.returns import own_value
from pkb_gym.rewards.reward import is_breach
from tests.rewards.strategies import NOT_JUDGED, feedbacks
from tests.whole_tables import examples

VALUES = (0.0, 0.25, 1.0, 1.5)
"""Values of one submission; an episode is a sequence of them."""
EPISODES = [episode for turns in (1, 2, 3) for episode in itertools.product(VALUES, repeat=turns)]
RETURNS = (
    own_value,
    discounted_sum,
    discounted_max,
    best_of_episode,
    last_of_episode,
    improvement_only,
    improvement_ahead,
    first_turn_anchored,
)
ADVANTAGES = (
    leave_one_out,
    lambda group: leave_one_out(group, over="group"),
    group_relative,
    lambda group: group_relative(group, normalise=False),
    lambda group: group_relative(group, over="group"),
)
values = st.lists(st.none() | st.floats(-10, 10), max_size=8)
groups = st.lists(values, max_size=5)
SPEEDS = (0.5, 1.0, 2.0)
SUBMISSIONS = [
    failed("compile_error"),
    failed("output_mismatch", earned_share=0.5),
    *(timed(speedup_low=s) for s in SPEEDS),
]


def discounted(rewards, gamma: float) -> float:
    return sum(gamma**turn * reward for turn, reward in enumerate(rewards))


def paid(episode: list[Feedback], gamma: float = 1.0) -> list[float]:
    score = EpisodeScore(BestSoFar(LadderThenPerformance(), gamma=gamma))
    return [score.add(feedback).reward for feedback in episode]


def best(episodes, value) -> set:
    values = {episode: value(episode) for episode in episodes}
    return {episode for episode, number in values.items() if number >= max(values.values()) - 1e-9}


# ---- potential-based shaping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_best_episodes_by_the_best_so_far_are_those_with_the_best_submission(gamma):
    """Of a given number of turns; every episode of three out of five kinds of submission is listed."""
    value = LadderThenPerformance()
    episodes = list(itertools.product(range(len(SUBMISSIONS)), repeat=3))

    def pay(episode):
        return discounted(paid([SUBMISSIONS[turn] for turn in episode], gamma), gamma)

    for episode in episodes:
        top = max(value(SUBMISSIONS[turn]) for turn in episode)
        assert pay(episode) == pytest.approx(gamma**3 * top)
    assert best(episodes, pay) == {episode for episode in episodes if len(SUBMISSIONS) - 1 in episode}


@settings(max_examples=examples(40))
@given(episode=st.lists(feedbacks(), max_size=5), data=st.data())
def test_no_order_repetition_or_relapse_earns_anything(episode, data):
    episode = [turn for turn in episode if not is_breach(turn)]
    total = sum(paid(episode))
    assert sum(paid(data.draw(st.permutations(episode)))) == pytest.approx(total)
    assert sum(paid([*episode, *episode])) == pytest.approx(total)
    assert sum(paid([turn for one in episode for turn in (one, failed("rejected"))])) == pytest.approx(total)


@given(speeds=st.lists(st.floats(0.01, 100), min_size=1, max_size=6), which=st.integers(0, 5), factor=st.floats(1, 10))
def test_a_faster_submission_never_lowers_the_pay_of_an_episode(speeds, which, factor):
    faster = [speed * factor if turn == which else speed for turn, speed in enumerate(speeds)]
    slow, fast = (sum(paid([timed(speedup_low=speed) for speed in some])) for some in (speeds, faster))
    assert fast >= slow - 1e-12


# ---- returns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", RETURNS, ids=lambda returns: returns.__name__)
@given(values=values)
def test_returns_are_finite_and_faults_of_ours_count_for_nothing(returns, values):
    credited = returns(values)
    assert [credit is None for credit in credited] == [value is None for value in values]
    known = [credit for credit in credited if credit is not None]
    assert all(math.isfinite(credit) for credit in known)
    assert known == returns([value for value in values if value is not None])


@given(values=values, gamma=st.floats(0.01, 1))
def test_discounted_returns_are_their_formulas(values, gamma):
    known = [value for value in values if value is not None]
    rests = [[gamma**later * value for later, value in enumerate(known[turn:])] for turn in range(len(known))]
    assert [g for g in discounted_sum(values, gamma) if g is not None] == pytest.approx([sum(rest) for rest in rests])
    assert [g for g in discounted_max(values, gamma) if g is not None] == pytest.approx([max(rest) for rest in rests])


def test_returns_by_hand():
    """Wrong, right at the baseline's speed, an infrastructure failure, right and twice as fast; gamma 0.4."""
    values = [0.0, 1.3, None, 2.3]
    assert discounted_sum(values) == pytest.approx([0.4 * 1.3 + 0.16 * 2.3, 1.3 + 0.4 * 2.3, None, 2.3])
    assert discounted_max(values) == pytest.approx([0.52, 1.3, None, 2.3])
    assert best_of_episode(values) == last_of_episode(values) == [2.3, 2.3, None, 2.3]
    assert improvement_only(values) == pytest.approx([0.0, 1.3, None, 1.0])
    assert first_turn_anchored(values) == [0.0, 1.3, None, 2.3]
    assert first_turn_anchored([1.0, None, 0.5]) == [1.0, None, -0.5]


def test_credit_for_the_turn_that_made_a_later_one_possible_by_hand():
    """Does not compile, right, the same again, 0.3 faster, and a caught race; gamma 0.4 and 1."""
    values = [0.0, 1.0, 1.0, 1.3, -0.35]
    assert improvement_only(values) == pytest.approx([0.0, 1.0, 0.0, 0.3, -1.65])
    before_race = 0.3 + 0.4 * -1.65  # -0.36
    assert improvement_ahead(values) == pytest.approx(
        [0.4 * (1.0 + 0.16 * before_race), 1.0 + 0.16 * before_race, 0.4 * before_race, before_race, -1.65]
    )
    assert improvement_ahead(values[:4], gamma=1.0) == pytest.approx([1.3, 1.3, 0.3, 0.3]), "what is still to come"
    assert discounted_sum(values[:4]) == pytest.approx([0.6432, 1.608, 1.52, 1.3])


@pytest.mark.parametrize(
    ("returns", "later"),
    [(best_of_episode, [1.0, 1.0, 1.0]), (discounted_max, [1.0, 0.5, 0.2]), (improvement_only, [1.0, 0.0, 0.0])],
)
def test_credits_that_ignore_turns_after_the_best_one(returns, later):
    """What their docstrings say: the first turn has the same credit whatever follows."""
    assert returns([1.0, 0.5, 0.2]) == later
    assert returns([1.0, 0.2, 0.5])[0] == returns([1.0])[0]
    assert "after the best" in (returns.__doc__ or "")


@given(values=st.lists(st.floats(0, 10), min_size=1, max_size=6), data=st.data())
def test_improvements_add_up_to_the_best_whatever_the_order(values, data):
    shuffled = data.draw(st.permutations(values))
    assert sum(improvement_only(shuffled)) == pytest.approx(max(values))
    assert sum(improvement_only([*values, *values])) == pytest.approx(max(values))
    assert sum(improvement_only([turn for value in values for turn in (value, 0.0)])) == pytest.approx(max(values))


def test_the_discounted_sum_pays_for_repeating():
    """The published sum does so; the test shows the purpose of `improvement_only`."""
    assert discounted_sum([1.3, 1.3])[0] > discounted_sum([1.3, 0.0])[0]


@pytest.mark.parametrize("gamma", [0.0, 1.1, math.nan])
@pytest.mark.parametrize("returns", [discounted_sum, discounted_max])
def test_gamma_is_a_discount(returns, gamma):
    with pytest.raises(ValueError, match="gamma must be in"):
        returns([1.0], gamma)


# ---- advantages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("advantages", ADVANTAGES)
@given(group=groups)
def test_advantages_have_the_shape_of_the_group_and_are_finite(advantages, group):
    found = advantages(group)
    assert [[a is None for a in episode] for episode in found] == [[g is None for g in episode] for episode in group]
    assert all(math.isfinite(a) for episode in found for a in episode if a is not None)


@given(column=st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_leave_one_out_is_the_centred_return_by_n_over_n_minus_1(column):
    group = [[value] for value in column]
    n = len(column)
    centred = [a for (a,) in group_relative(group, normalise=False)]
    assert [a for (a,) in leave_one_out(group)] == pytest.approx([n / (n - 1) * a for a in centred], abs=1e-9)
    assert sum(centred) == pytest.approx(0, abs=1e-9)


@given(column=st.lists(st.integers(-10, 10), min_size=2, max_size=8, unique=True))
def test_normalised_advantages_have_unit_spread(column):
    advantages = [a for (a,) in group_relative([[float(value)] for value in column])]
    assert math.sqrt(sum(a * a for a in advantages) / len(advantages)) == pytest.approx(1, rel=1e-3)


def test_advantages_by_hand():
    """Three episodes of two turns; the third broke off after the first, the second's last failed by infrastructure."""
    group = [[1.0, 4.0], [2.0, None], [6.0]]
    assert leave_one_out(group) == [[-3.0, 0.0], [-1.5, None], [4.5]]
    assert group_relative(group, normalise=False) == [[-2.0, 0.0], [-1.0, None], [3.0]]
    std = math.sqrt((4 + 1 + 9) / 3) + 1e-4
    assert group_relative(group) == [pytest.approx([-2 / std, 0.0]), pytest.approx([-1 / std, None]), [3 / std]]
    assert group_relative(group, normalise=False, over="group") == [[-2.25, 0.75], [-1.25, None], [2.75]]
    assert leave_one_out(group, over="group") == [[-3.0, 1.0], pytest.approx([-5 / 3, None]), [pytest.approx(11 / 3)]]


def test_equal_returns_have_no_advantage():
    for advantages in ADVANTAGES:
        assert advantages([[0.1], [0.1], [0.1]]) == [pytest.approx([0.0], abs=1e-9)] * 3


def test_leaving_one_out_does_not_shrink_the_policy_gradient():
    """The mean over all groups of two draws from {0, 1} of advantage times score, against the true gradient 1/4.

    A Bernoulli policy with p = 1/2, return = action, score = action - p: leaving one out is unbiased, the mean of all
    halves it (self-inclusion).
    """

    def gradient(advantages) -> float:
        draws = list(itertools.product((0.0, 1.0), repeat=2))
        sums = [
            sum(a * (x - 0.5) for (a,), x in zip(advantages([[x] for x in pair]), pair, strict=True)) for pair in draws
        ]
        return sum(sums) / 2 / len(draws)

    assert gradient(leave_one_out) == pytest.approx(0.25)
    assert gradient(lambda group: group_relative(group, normalise=False)) == pytest.approx(0.125)


def test_over_is_turn_or_group():
    with pytest.raises(ValueError, match="over must be 'turn' or 'group', got 'all'"):
        leave_one_out([[1.0]], over="all")


@settings(max_examples=25)
@given(group=st.lists(st.lists(feedbacks(), max_size=3), max_size=3))
def test_recipes_skip_exactly_infrastructure_failures(group):
    from pkb_gym.rewards.recipes import RECIPES

    for name, recipe in RECIPES.items():
        reward = find_reward(recipe.reward)
        values = [[reward(feedback) for feedback in episode] for episode in group]
        found = recipe.advantages([recipe.returns(episode) for episode in values])
        assert [[a is None for a in turns] for turns in found] == [
            [feedback.failure in NOT_JUDGED for feedback in turns] for turns in group
        ], name
        assert all(math.isfinite(a) for turns in found for a in turns if a is not None), name
        again = pickle.loads(pickle.dumps(recipe))
        assert again.advantages([again.returns(episode) for episode in values]) == found
