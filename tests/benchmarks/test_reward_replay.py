"""What presets teach over recorded kernels: by hand where that can be, and in direction elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import reward_replay
from benchmarks.reward_replay import Arm, Taught, figures, geometric_mean, replay, start, taught

SLOW, FAST, WRONG = (Arm(4, [1.0], 1.0, 80.0), Arm(2, [2.0], 1.0, 10.0), Arm(2, [0.0], 0.0, None))


def test_a_policy_begins_with_the_frequencies_and_has_their_figures():
    arms = [SLOW, FAST, WRONG]
    assert start(arms).tolist() == [0.5, 0.25, 0.25]
    # Of the right three quarters, two thirds are slower by 2^3.
    assert taught(arms, start(arms)) == Taught(0.75, pytest.approx(2.0))
    assert taught([FAST, WRONG], np.array([0.5, 0.5])) == Taught(0.5, None)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0) and geometric_mean([]) is None


def test_one_step_by_hand(monkeypatch: pytest.MonkeyPatch):
    """A group of both kernels: advantages +1 and -1 after leaving one out, gradients (+1, -1) / 2."""
    monkeypatch.setattr(reward_replay, "STEPS", 1)
    monkeypatch.setattr(reward_replay, "_compared", lambda *_: (np.array([0, 1]), np.array([1.0, -1.0])))
    found = replay("default", {"A": [Arm(1, [1.0], 1.0, 10.0), Arm(1, [0.0], 0.0, None)]}, 2, 0)
    assert found["A"].correct == pytest.approx(1 / (1 + np.exp(-1.0)))


def test_a_reward_for_speed_teaches_speed_and_one_for_correctness_does_not():
    fast = {"A": [SLOW, FAST, WRONG]}
    right = {"A": [Arm(arm.draws, [float(arm.right)], arm.right, arm.time_us) for arm in fast["A"]]}
    for_speed = figures("default", fast, {"A": "A"}, 8)
    for_right = figures("correctness_only", right, {"A": "A"}, 8)
    assert for_speed["correct_before"] == for_right["correct_before"] == 0.75
    assert for_speed["correct"]["mean"] > 0.15 and for_right["correct"]["mean"] > 0.15
    assert for_speed["speed"]["mean"] > 1.5 > abs(for_right["speed"]["mean"]) + 0.5


def test_the_unit_of_a_reward_does_not_count():
    arms = [SLOW, FAST, WRONG]
    larger = [Arm(arm.draws, [100 * value for value in arm.values], arm.right, arm.time_us) for arm in arms]
    found, same = (figures("default", {"A": of}, {"A": "A"}, 8)["correct"]["mean"] for of in (arms, larger))
    assert found == pytest.approx(same)


def test_equal_rewards_teach_nothing():
    flat = [Arm(arm.draws, [1.0], arm.right, arm.time_us) for arm in (SLOW, FAST, WRONG)]
    found = figures("kevin", {"A": flat}, {"A": "A"}, 8)
    assert found["correct"]["mean"] == 0.0 and found["speed"]["mean"] == 0.0
