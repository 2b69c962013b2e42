"""Whether a recorded result holds."""

from __future__ import annotations

import pytest

from pkb_gym.report.verification import config_again, draw_sample, verify
from pkb_gym.rewards.examples import failed, timed
from tests.metrics.attempts import attempt


@pytest.mark.parametrize(
    ("before", "again", "holds", "reason"),
    [
        ({"speedup": 2.0}, timed(speedup=2.1, speedup_low=2.0), True, "is right and as fast again"),
        ({"speedup": 2.0, "low": 1.9}, timed(speedup=1.75), True, "as fast again"),
        ({"speedup": 2.0, "low": 1.9}, timed(speedup=1.5), False, "is slower: at most 1.5x, expected 1.71x or more"),
        ({"speedup": 2.0, "low": 1.9}, timed(speedup=1.5, speedup_low=1.2), True, "as fast again"),
        (
            {"speedup": 2.0},
            timed(speedup=2.3),
            True,
            "is right and faster than recorded: at least 2.3x, recorded at most 2x",
        ),
        ({"speedup": 2.0}, timed(speedup=2.6, speedup_low=2.2), True, "as fast again"),
        ({"speedup": 2.0}, failed("race"), False, "is not right again"),
        ({"speedup": 2.0}, timed(speedup=2.0, caught="late_output"), False, "is not right again"),
        ({"failure": "race"}, timed(speedup=2.0), False, "is right now"),
        ({"failure": "race"}, failed("race"), True, "fails again"),
        ({"failure": "race"}, failed("deadlock"), True, "fails again, in another way"),
        ({"speedup": 2.0}, failed("infrastructure"), None, "could not be judged here"),
    ],
)
def test_a_result_holds_if_it_is_right_and_fast_again(before, again, holds, reason):
    found = verify(attempt(**before), again)
    assert found.holds is holds and found.reason.endswith(reason)
    assert found.faster == ("faster than recorded" in reason)


def test_speedups_of_other_hardware_are_not_compared():
    again = timed(speedup=1.0)
    again = again.model_copy(update={"environment": again.environment.model_copy(update={"hardware": "other"})})
    found = verify(attempt(speedup=9.0), again)
    words = "is right again, and speedups do not compare; judged under other conditions: hardware example against other"
    assert found.holds and found.reason == words


def test_a_result_of_another_version_of_its_problem_says_so():
    again = failed("race").model_copy(update={"problem_sha256": "1" * 64})
    found = verify(attempt(speedup=2.0), again)
    assert found.holds is False and found.reason.startswith("is not right again; judged under other conditions: ")
    assert found.reason.endswith(f"problem_sha256 {'0' * 12} against {'1' * 12}")


def test_half_of_the_sample_is_right_as_far_as_there_are():
    attempts = [attempt(sample=i, speedup=1.0 if i < 3 else None) for i in range(20)]
    attempts += [attempt("Gather", failure="no_submission"), attempt("Scatter", failure="infrastructure")]
    sample = draw_sample(attempts, 10, seed=0)
    assert [one.sample < 3 for one in sample] == [True] * 3 + [False] * 7
    assert [one.sample < 3 for one in draw_sample(attempts, 4, seed=0)] == [True, True, False, False]
    assert draw_sample(attempts, 4, seed=0) == draw_sample(attempts, 4, seed=0) != draw_sample(attempts, 4, seed=1)
    assert len(draw_sample(attempts, 100, seed=0)) == 20
    assert len(draw_sample(attempts[:3], 3, seed=0)) == 3 and draw_sample(attempts[-2:], 5, 0) == []


def test_it_is_asked_for_what_was_resolved_and_not_for_its_limits():
    again = config_again(attempt(speedup=1.0, requested={"seed": 3, "until": "time"}))
    assert (again.device, again.world_size, again.size, again.language) == ("cpu", 4, "tiny", "cpp")
    assert (again.seed, again.until, again.memory_bytes, again.timing_budget_s) == (3, "time", None, None)
