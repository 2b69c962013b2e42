"""Rewards: finite and bounded for whatever an evaluation may find, and in the right order."""

from __future__ import annotations

import doctest
import importlib
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.rewards import (
    BestSoFar,
    EpisodeScore,
    FastP,
    Ladder,
    LadderThenPerformance,
    LogPerformance,
    find_reward,
    log_performance,
)
from pkb_gym.rewards.examples import LAST_STAGE, failed, timed
from pkb_gym.rewards.performance import MAX_HEADROOM, MIN_HEADROOM
from pkb_gym.rewards.presets import PRESETS
from pkb_gym.rewards.reward import is_caught, is_right
from tests.rewards.strategies import NOT_JUDGED, feedbacks

NAMES = [*PRESETS, "fast_p:1.5"]
MODULES = ["default", "ladder", "performance", "presets", "shaping", "simple"]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(importlib.import_module(f"pkb_gym.rewards.{module}"))
    assert result.attempted and not result.failed


@given(feedback=feedbacks())
def test_finite_bounded_and_none_exactly_for_infrastructure_failures(feedback):
    for name in NAMES:
        reward = find_reward(name)
        value = reward(feedback)
        assert (value is None) == (feedback.failure in NOT_JUDGED), name
        if value is not None:
            low, high = (reward.value if isinstance(reward, BestSoFar) else reward).bounds()
            assert math.isfinite(value) and low <= value <= high, name
            assert isinstance(value, float), name


def test_the_default_lies_between_0_and_2():
    assert find_reward("per_turn").bounds() == (0.0, 2.0)


@given(feedback=feedbacks())
def test_parts_add_up_to_the_value(feedback):
    reward = LadderThenPerformance()
    assert sum(reward.parts(feedback).values()) == (reward(feedback) or 0.0)


@settings(max_examples=60)
@given(wrong=feedbacks(), right=feedbacks(right=True))
def test_right_earns_more_than_anything_else(wrong, right):
    value = LadderThenPerformance()
    if wrong.failure not in NOT_JUDGED and not is_right(wrong):
        assert value(right) > value(wrong)


@settings(max_examples=60)
@given(feedback=feedbacks().filter(is_caught))
def test_what_is_caught_falls_to_the_floor(feedback):
    if feedback.failure not in NOT_JUDGED:
        assert LadderThenPerformance()(feedback) == 0.0


def test_ladder_rises_with_the_stages():
    value = Ladder()
    order = ["rejected", "compile_error", "runtime_error", "output_mismatch"]
    values = [value(failed(failure)) for failure in order]
    assert values == sorted(set(values))


@given(shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_partial_credit_grows_with_the_share_of_right_outputs_and_stays_below_right(shares):
    fewer, more = (Ladder()(failed("output_mismatch", right_share=share)) for share in sorted(shares))
    assert Ladder().ran <= fewer <= more < Ladder().almost < 1


def test_falling_while_timed_is_not_right():
    """A race that the checked calls did not meet: right four times, then wrong."""
    right = timed()
    fell = Feedback.model_validate(
        right.model_dump()
        | {"stage": Stage.CHECK, "timing": None, "roofline": None, "failure": Failure.OUTPUT_MISMATCH}
    )
    assert LadderThenPerformance()(fell) == Ladder().almost


@given(lows=st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), bound=st.floats(1e-3, 1e6))
def test_faster_never_earns_less(lows, bound):
    slower, faster = (timed(baseline_us=100, roofline_us=bound, speedup_low=low) for low in sorted(lows))
    for reward in (log_performance, LogPerformance(), LadderThenPerformance(), FastP(1.0)):
        assert reward(slower) <= reward(faster)


def test_log_performance_is_0_at_the_baseline_and_1_at_the_roofline():
    assert log_performance(timed(baseline_us=80, roofline_us=10, speedup_low=1.0)) == 0
    assert log_performance(timed(baseline_us=80, roofline_us=10, speedup_low=8.0)) == pytest.approx(1)


def test_the_lower_end_of_the_interval_counts():
    assert log_performance(timed(baseline_us=100, roofline_us=10, speedup_low=0.9, speedup=1.5)) < 0


CLAMPED = [(0.0, MAX_HEADROOM), (1e-9, MAX_HEADROOM), (100, MIN_HEADROOM), (200, MIN_HEADROOM)]


@pytest.mark.parametrize(("bound", "headroom"), CLAMPED)
def test_the_denominator_is_clamped(bound, headroom):
    got = log_performance(timed(baseline_us=100, roofline_us=bound, speedup_low=1.1))
    assert got == pytest.approx(math.log(1.1) / math.log(headroom))


def test_log_performance_of_what_was_not_timed_is_an_error():
    with pytest.raises(ValueError, match="AllReduce: no headroom without timing; the furthest stage was static"):
        log_performance(failed("compile_error"))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@settings(max_examples=40)
@given(episode=st.lists(feedbacks(), max_size=8))
def test_the_return_telescopes_to_the_best_submission(gamma, episode):
    value = LadderThenPerformance()
    score = EpisodeScore(BestSoFar(value, gamma=gamma))
    valid = [feedback for feedback in episode if value(feedback) is not None]
    paid = [score.add(feedback).reward for feedback in valid]
    best = max((value(feedback) for feedback in valid), default=0.0)
    discounted = sum(gamma**turn * reward for turn, reward in enumerate(paid))
    assert discounted == pytest.approx(gamma ** len(valid) * best)


def test_oscillation_earns_nothing():
    score = EpisodeScore(find_reward("default"))
    good, bad = timed(speedup_low=2.0), failed("compile_error")
    paid = [score.add(turn).reward for turn in (good, bad, good, bad, good)]
    assert paid[1:] == [0, 0, 0, 0] and paid[0] == score.total == 1.5


def test_a_fault_of_ours_changes_nothing_of_the_episode():
    score = EpisodeScore(find_reward("default"))
    score.add(timed())
    turn = score.add(failed("infrastructure"))
    assert (turn.reward, turn.is_valid, turn.parts) == (0.0, False, {})
    assert score.total == 1.0


def test_per_turn_pays_again():
    score = EpisodeScore(find_reward("per_turn"))
    assert [score.add(timed()).reward for _ in range(2)] == [1.0, 1.0]


def half(feedback):
    return 0.5


def test_a_plain_function_is_a_reward():
    score = EpisodeScore(find_reward(half))
    assert score.add(timed()).reward == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_rewards_pickle(name):
    reward = find_reward(name)
    assert pickle.loads(pickle.dumps(reward)) == reward


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "defualt",
            r"no reward 'defualt'. Did you mean 'default'\? There are default, per_turn, correctness_only, ke",
        ),
        ("fast_p:fast", "reward 'fast_p:fast': could not convert"),
        ("fast_p:-1", "fast_p needs a finite p >= 0, got -1"),
        (3, "a reward is a name, module:function, or a function of one Feedback; got 3"),
    ],
)
def test_unknown_rewards_say_what_there_is(name, message):
    with pytest.raises(ConfigError, match=message):
        find_reward(name)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Ladder(ran=0.9), "rungs must not fall"),
        (lambda: Ladder(almost=1.0), "must end below 1"),
        (lambda: LogPerformance(floor=0.5), "floor <= 0 <= cap"),
        (lambda: LadderThenPerformance(performance=LogPerformance(floor=-0.9)), "raise performance.floor"),
        (lambda: BestSoFar(Ladder(), gamma=0.0), "gamma must be in"),
    ],
)
def test_parameters_that_would_pay_the_wrong_thing_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_examples_cover_every_failure_but_integrity():
    assert set(LAST_STAGE) | {"integrity"} == set(Failure)


def test_right_outputs_earn_nothing_beside_changed_inputs():
    """A kernel that writes to its peers' inputs can have every output right."""
    assert Ladder()(failed("input_modified", right_share=0.99)) == Ladder().ran
    assert find_reward("default")(failed("input_modified", right_share=0.99)) == Ladder().ran


def test_of_two_slow_right_kernels_the_faster_one_earns_more():
    """Of 91 right kernels 22 stood at exactly 0.75, the floor, though they differed by a factor of ten."""
    values = [LadderThenPerformance()(timed(speedup_low=10.0**power)) for power in range(-4, 1)]
    assert values == sorted(values) and len(set(values)) == len(values)
    assert values[0] > 0.75 and values[-1] == 1.0
