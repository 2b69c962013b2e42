"""What the text of the feedback adds to second turns, by hand."""

from __future__ import annotations

import pytest

from benchmarks.learning_feedback import text_effects
from pkb_gym.training.results.policy_summary import prompt_key
from tests.benchmarks.test_learning_run_report import turn

REPAIRED = [(0, "race"), (1, None)]
FAILED_TWICE = [(0, "race"), (1, "race")]
RIGHT = [(0, None), (1, "no_submission")]


def episodes(**of_problem: list[list[tuple[int, str | None]]]) -> list[dict]:
    """Rows of the episodes of each problem; a right submission has the reward 1."""
    return [
        turn(problem, sample, number, failure, reward=float(failure is None))
        for problem, found in of_problem.items()
        for sample, turns in enumerate(found)
        for number, failure in turns
    ]


def test_the_gain_of_later_turns_is_compared_prompt_by_prompt():
    """With the text, A gains 1/2 and B 1; without, A gains 1/2 and B 0. C has no verdicts, and D no ring."""
    whole = episodes(A=[REPAIRED, FAILED_TWICE], B=[REPAIRED], C=[REPAIRED], D=[REPAIRED])
    verdict = episodes(A=[REPAIRED, RIGHT], B=[FAILED_TWICE], D=[RIGHT])
    rings = {prompt_key(row): "test" if row["problem"] == "C" else "sizes" for row in whole if row["problem"] != "D"}
    (found,) = text_effects(whole, verdict, rings)
    assert (found.ring, found.prompts) == ("sizes", 2)
    assert found.correct.mean == pytest.approx((0.0 + 1.0) / 2) and found.correct.clusters == 2
    assert found.reward.mean == pytest.approx(0.5)
    assert (found.whole.submissions, found.verdict.submissions) == (6, 5)
    assert [of.correct.mean for of in found.whole.turns] == [0.0, (0.5 + 1.0) / 2]
    assert [of.correct.mean for of in found.verdict.turns] == [(0.5 + 0.0) / 2, (1.0 + 0.0) / 2]
    assert found.verdict.second_turn.failed_first == 2


def test_nothing_is_compared_without_verdicts():
    whole = episodes(A=[REPAIRED])
    assert text_effects(whole, [], {prompt_key(whole[0]): "sizes"}) == []
