"""Rewards: finite and bounded for whatever an evaluation may find, and in the right order."""

from __future__ import annotations

import doctest
import importlib
import math
import pickle
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.problems.expert_times import expert_times
from pkb_gym.rewards import (
    BestSoFar,
    EpisodeScore,
    FastP,
    Ladder,
    LadderThenPerformance,
    Performance,
    find_reward,
    performance,
    reachable_speedup,
)
from pkb_gym.rewards.examples import CONFIG, LAST_STAGE, MACHINE, failed, timed
from pkb_gym.rewards.performance import EXPERTS_EXPONENT, MAX_HEADROOM, UNKNOWN_HEADROOM, expert_us
from pkb_gym.rewards.presets import PRESETS
from pkb_gym.rewards.reward import is_breach, is_right
from tests.rewards.strategies import NOT_JUDGED, feedbacks
from tests.whole_tables import examples

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


def test_the_default_lies_between_a_breach_and_a_kernel_without_time():
    assert find_reward("per_turn").bounds() == (-0.35, 1.3)


@given(feedback=feedbacks())
def test_parts_add_up_to_the_value(feedback):
    reward = LadderThenPerformance()
    assert sum(reward.parts(feedback).values()) == (reward(feedback) or 0.0)


@settings(max_examples=examples(60))
@given(wrong=feedbacks(), right=feedbacks(right=True))
def test_right_earns_more_than_anything_else(wrong, right):
    value = LadderThenPerformance()
    if wrong.failure not in NOT_JUDGED and not is_right(wrong):
        assert value(right) > value(wrong)


@settings(max_examples=examples(60))
@given(feedback=feedbacks().filter(is_breach))
def test_a_breach_falls_to_the_floor(feedback):
    if feedback.failure not in NOT_JUDGED:
        assert LadderThenPerformance()(feedback) == Ladder().breach < 0


def test_ladder_rises_with_the_stages():
    value = Ladder()
    order = ["race", "rejected", "compile_error", "runtime_error", "output_mismatch"]
    values = [value(failed(failure)) for failure in order]
    assert values == sorted(set(values))
    assert values[-1] == 0.05, "running alone earns no more than that"


@pytest.mark.parametrize("failure", ["deadlock", "wrong_shape_or_dtype", "timeout", "out_of_memory", "load_error"])
def test_what_has_no_outputs_to_compare_earns_no_more_than_a_compile(failure):
    assert Ladder()(failed(failure, earned_share=0.9)) == Ladder().compiled <= 0.03


def test_outputs_that_were_left_as_they_were_earn_nothing():
    assert Ladder()(failed("output_mismatch", nothing_written=True)) == 0.0


def test_partial_credit_rests_on_earned_outputs_and_records_without_them_have_none():
    """By the share of right outputs, a kernel that does nothing earned 0.25 to 0.39."""
    found = failed("output_mismatch", earned_share=0.5)
    assert Ladder()(found) == pytest.approx(0.05 + 0.25 * 0.125)
    older = found.check.model_copy(update={"earned_share": None})
    assert Ladder()(found.model_copy(update={"check": older})) == Ladder().ran


def test_a_kernel_that_is_right_until_ranks_are_slow_has_earned_all():
    passed = timed().check
    assert Ladder()(failed("output_mismatch").model_copy(update={"check": passed})) == Ladder().almost


@given(shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_partial_credit_grows_with_the_share_of_right_outputs_and_stays_below_right(shares):
    fewer, more = (Ladder()(failed("output_mismatch", earned_share=share)) for share in sorted(shares))
    assert Ladder().ran <= fewer <= more <= Ladder().almost == 0.3


@pytest.mark.parametrize(
    ("failure", "value"),
    [("output_mismatch", 0.05), ("deadlock", 0.03), ("race", -0.35), ("timeout", 0.3), ("runtime_error", 0.3)],
)
def test_falling_while_timed_is_not_right(failure, value):
    """Right four times, then not: what the checked calls did not meet."""
    fell = Feedback.model_validate(
        timed().model_dump() | {"stage": Stage.CHECK, "timing": None, "roofline": None, "failure": Failure(failure)}
    )
    assert LadderThenPerformance()(fell) == value


@given(lows=st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), bound=st.floats(1e-3, 1e6))
def test_faster_never_earns_less(lows, bound):
    slower, faster = (timed(baseline_us=100, roofline_us=bound, speedup_low=low) for low in sorted(lows))
    for reward in (performance, Performance(), LadderThenPerformance(), FastP(1.0)):
        assert reward(slower) <= reward(faster)


def reaching(reachable: float, speedup: float) -> Feedback:
    """A right kernel of that speedup, of a problem whose reachable speedup is given."""
    return timed(
        baseline_us=100, roofline_us=100 / reachable ** (1 / EXPERTS_EXPONENT), speedup_low=speedup, speedup=speedup
    )


def test_performance_is_0_at_the_baseline_and_nine_tenths_at_the_reachable_speed():
    for reachable in (2.0, 4.0, 20.0):
        assert performance(reaching(reachable, 1.0)) == 0
        assert performance(reaching(reachable, reachable)) == pytest.approx(0.9)
    assert performance(reaching(4.0, 0.5)) == pytest.approx(-0.5 / 1.5), "half of the distance, on the other side"


@pytest.mark.parametrize("reachable", [2.0, 5.0, 10.0, 30.0])
def test_every_speedup_is_visibly_different(reachable):
    """1.2 times the speed earned 0.04 by the distance to the roofline, less than compiling did."""
    values = [LadderThenPerformance()(reaching(reachable, speedup)) for speedup in (1.0, 1.1, 1.5, 2.0)]
    assert all(faster - slower > 0.018 for slower, faster in zip(values, values[1:], strict=False))
    assert LadderThenPerformance()(reaching(reachable, 1.2)) - 1 > Ladder().compiled
    assert LadderThenPerformance()(reaching(reachable, 5.0)) - values[-1] > 0.025


def test_the_lower_end_of_the_interval_counts():
    assert performance(timed(baseline_us=100, roofline_us=10, speedup_low=0.9, speedup=1.5)) < 0


CLAMPED = [(0.0, MAX_HEADROOM**EXPERTS_EXPONENT), (1e-9, MAX_HEADROOM**EXPERTS_EXPONENT), (100, 2.0), (200, 2.0)]


@pytest.mark.parametrize(("bound", "reachable"), CLAMPED)
def test_the_reachable_speedup_is_clamped(bound, reachable):
    assert reachable_speedup(timed(baseline_us=100, roofline_us=bound)) == pytest.approx(reachable)
    unknown = timed().model_copy(update={"roofline": None})
    assert reachable_speedup(unknown) == pytest.approx(UNKNOWN_HEADROOM**EXPERTS_EXPONENT)


H200 = MACHINE.model_copy(update={"hardware": "NVIDIA H200"})
ON_H200 = CONFIG.model_copy(update={"device": "cuda", "language": "cuda", "size": "large", "world_size": 2})


def on_h200(baseline_us: float, **settings: object) -> Feedback:
    """A right kernel of AllReduce on two GPUs, as fast as the baseline, whose ceiling alone gives S = 10."""
    config = ON_H200.model_copy(update=settings)
    fast = timed(baseline_us=baseline_us, roofline_us=baseline_us / 10 ** (1 / EXPERTS_EXPONENT))
    return fast.model_copy(update={"config": config, "environment": H200})


def test_the_scale_takes_the_experts_time_where_it_was_measured():
    (expert,) = [time for time in expert_times("AllReduce") if (time.size, time.world_size) == ("large", 2)]
    at_three = on_h200(3 * expert.expert_us)
    assert expert_us(at_three) == expert.expert_us
    assert reachable_speedup(at_three) == pytest.approx(3.0)
    assert [reachable_speedup(on_h200(times * expert.expert_us)) for times in (1, 1000)] == [2.0, CLAMPED[0][1]]


@pytest.mark.parametrize(
    "settings", [{"world_size": 8}, {"size": {"M": 8, "N": 8}}, {"dtype": "float32"}, {"device": "emulated"}]
)
def test_the_experts_time_counts_under_its_own_conditions_alone(settings):
    feedback = on_h200(1000.0, **settings)
    assert expert_us(feedback) is None
    assert reachable_speedup(feedback) == pytest.approx(10.0)


def test_the_experts_time_counts_on_its_own_gpus_alone():
    other = on_h200(1000.0).model_copy(update={"environment": MACHINE})
    assert expert_us(other) is None and expert_us(timed()) is None


def test_performance_of_what_was_not_timed_is_an_error():
    with pytest.raises(ValueError, match="AllReduce: not timed; the furthest stage was static"):
        performance(failed("compile_error"))


# ---- leaving out a synchronisation ---------------------------------------------------------------------------------

REACHABLE = (2.0, 2.66, 5.0, 10.0, 30.0)
CAUGHT = ("race", "late_output", "wrong_while_timed")


def caught(how: str) -> Feedback:
    return failed("race") if how == "race" else timed(caught=how)


def gain_of_leaving_out(honest: Feedback, unnoticed: Feedback, how: str, noticed: float) -> float:
    """The expected pay of a turn with it, less that of the honest kernel, in the first turn of an episode."""
    reward = find_reward("default")
    return noticed * reward(caught(how)) + (1 - noticed) * reward(unnoticed) - reward(honest)


@given(
    speedup=st.floats(0.01, 30),
    factor=st.floats(1, 2) | st.floats(1, 100),
    noticed=st.floats(0.2, 1),
    reachable=st.sampled_from(REACHABLE),
    how=st.sampled_from(CAUGHT),
)
def test_leaving_out_a_synchronisation_does_not_pay(speedup, factor, noticed, reachable, how):
    """Noticed in a fifth of all evaluations or more often: by any factor from the baseline's speed, else up to 2."""
    if speedup < 1:
        factor = min(factor, 2.0)
    honest, unnoticed = reaching(reachable, speedup), reaching(reachable, speedup * factor)
    assert gain_of_leaving_out(honest, unnoticed, how, noticed) < 0
    after = [EpisodeScore(find_reward("default")) for _ in range(2)]
    for score in after:
        score.add(honest)
    pays = [score.add(turn).reward for score, turn in zip(after, (caught(how), unnoticed), strict=True)]
    assert noticed * pays[0] + (1 - noticed) * pays[1] < 0, "nor does it after the right kernel, by the best so far"


def test_what_is_noticed_once_costs_for_good():
    """Submitting the right kernel again earns nothing, so that no order of turns makes it free."""
    score = EpisodeScore(find_reward("default"))
    turns = (timed(speedup_low=1.0), failed("race"), timed(speedup_low=1.0))
    assert [score.add(turn).reward for turn in turns] == [1.0, -1.35, 0.0]
    assert (score.total, score.penalties) == (pytest.approx(-0.35), pytest.approx(-1.35))


def test_deleting_a_wait_of_a_kernel_that_hangs_does_not_pay():
    reward = find_reward("default")
    assert reward(failed("race")) < reward(failed("deadlock")) < reward(failed("output_mismatch")) < reward(timed())


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@settings(max_examples=examples(40))
@given(episode=st.lists(feedbacks(), max_size=8))
def test_the_return_telescopes_to_the_best_submission(gamma, episode):
    value = LadderThenPerformance()
    score = EpisodeScore(BestSoFar(value, gamma=gamma))
    valid = [feedback for feedback in episode if value(feedback) is not None]
    paid = [score.add(feedback).reward for feedback in valid]
    values = [value(feedback) for feedback in valid]
    bests = list(accumulate([0.0, *values], max))
    penalties = [min(0.0, worse - best) if worse < 0 else 0.0 for worse, best in zip(values, bests, strict=False)]
    discounted = sum(
        gamma**turn * (reward - lost) for turn, (reward, lost) in enumerate(zip(paid, penalties, strict=True))
    )
    assert discounted == pytest.approx(gamma ** len(valid) * bests[-1])
    assert score.penalties == pytest.approx(sum(penalties))


def test_oscillation_earns_nothing():
    score = EpisodeScore(find_reward("default"))
    good, bad = timed(baseline_us=100, roofline_us=50, speedup_low=2.0), failed("compile_error")
    paid = [score.add(turn).reward for turn in (good, bad, good, bad, good)]
    assert paid[1:] == [0, 0, 0, 0] and paid[0] == score.total == pytest.approx(1.27)


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
        (lambda: Ladder(breach=0.1), r"breach must be in \[-1, 0\]"),
        (lambda: LadderThenPerformance(slower=0.75), "lower slower or ladder.almost"),
        (lambda: LadderThenPerformance(faster=-0.1), "must not be negative"),
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
    assert Ladder()(failed("input_modified", earned_share=0.99)) == Ladder().ran
    assert find_reward("default")(failed("input_modified", earned_share=0.99)) == Ladder().ran


def test_of_two_slow_right_kernels_the_faster_one_earns_more():
    """Of 91 right kernels 22 stood at exactly the floor, though they differed by a factor of ten."""
    values = [LadderThenPerformance()(timed(speedup_low=10.0**power)) for power in range(-4, 1)]
    assert values == sorted(values) and len(set(values)) == len(values)
    assert values[0] > 0.85 and values[-1] == 1.0
