"""Of right kernels slower than the baseline, ten times slower earns less: no reward that pays for speed is flat."""

from __future__ import annotations

from math import log, log2

import pytest

from pkb_gym.rewards import LogSpeedup, find_reward
from pkb_gym.rewards.examples import failed, timed


def of_speedup(speedup: float, roofline_us: float = 25.0):
    return timed(baseline_us=100, roofline_us=roofline_us, speedup=speedup, speedup_low=speedup)


def bent(log_speedup: float, floor: float) -> float:
    return log_speedup / (1 + log_speedup / floor)


BY_HAND = {
    # With 4 times the baseline's speed at the roofline twice its speed is reachable, d = ln(s) / ln(2): -3.322, -6.644.
    "default": [1 + 0.15 * bent(log(0.1) / log(2), -1), 1 + 0.15 * bent(log(0.01) / log(2), -1)],
    "per_turn": [1 + 0.15 * bent(log(0.1) / log(2), -1), 1 + 0.15 * bent(log(0.01) / log(2), -1)],
    "kevin": [0.3 + 0.1, 0.3 + 0.01],
    "dr_kernel": [1 + 0.1, 1 + 0.01],
    "roofline_only": [25 / 1000, 25 / 10000],
}


@pytest.mark.parametrize("preset", BY_HAND)
def test_a_tenth_and_a_hundredth_of_the_speed_by_hand(preset):
    reward = find_reward(preset)
    tenth, hundredth = reward(of_speedup(0.1)), reward(of_speedup(0.01))
    assert [tenth, hundredth] == pytest.approx(BY_HAND[preset])
    assert tenth > hundredth > reward(failed("output_mismatch", earned_share=0.99))


@pytest.mark.parametrize("preset", ["default", "per_turn", *BY_HAND])
@pytest.mark.parametrize("roofline_us", [0.01, 25.0, 99.0])
def test_a_factor_of_ten_is_never_flat(preset, roofline_us):
    """From a hundred times the baseline's time to a thousandth of its speed, wherever the roofline stands."""
    values = [find_reward(preset)(of_speedup(speedup, roofline_us)) for speedup in (0.001, 0.01, 0.1, 0.999)]
    assert all(slower < faster for slower, faster in zip(values, values[1:], strict=False))


@pytest.mark.parametrize(("preset", "value"), [("correctness_only", 1.0), ("kernelbench", 0.0), ("cuda_agent", 1.0)])
def test_rewards_of_steps_are_flat_as_published(preset, value):
    assert [find_reward(preset)(of_speedup(speedup)) for speedup in (0.1, 0.01)] == [value, value]


def test_doublings_are_bent_towards_the_floor_by_hand():
    """d = -3.32 and -6.64 with floor -2: d / (1 + d / -2) is -1.248 and -1.537; a wrong kernel has -2."""
    reward = LogSpeedup()
    tenth, hundredth = reward(of_speedup(0.1)), reward(of_speedup(0.01))
    assert [tenth, hundredth] == pytest.approx([bent(log2(0.1), -2), bent(log2(0.01), -2)])
    assert [round(tenth, 3), round(hundredth, 3)] == [-1.248, -1.537]
    assert hundredth > reward(failed("timeout")) == -2.0
    assert LogSpeedup(floor=0.0)(of_speedup(0.1)) == 0.0
