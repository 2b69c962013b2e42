"""Figures of a policy, against numbers computed by hand."""

from __future__ import annotations

import math

import pytest

from pkb_gym.training.results.policy_summary import episodes_by_prompt, gain, summarise


def row(problem: str, seed: int, sample: int, reward: float | None, speedup: float | None = None, turn: int = 0):
    return {
        "problem": problem,
        "language": "cpp",
        "size": "tiny",
        "dtype": "bfloat16",
        "world_size": 2,
        "seed": seed,
        "sample": sample,
        "turn": turn,
        "reward": reward,
        "is_right": speedup is not None,
        "speedup": speedup,
    }


ROWS = [
    row("A", 0, 0, 0.1),
    row("A", 0, 0, 1.5, 2.0, turn=1),
    row("A", 0, 1, 0.5),
    row("A", 1, 0, 1.0, 0.5),
    row("A", 1, 1, 1.2, 1.5),
    row("B", 0, 0, 0.0),
    row("B", 0, 1, 0.3),
]


def test_figures_by_hand():
    total = summarise(ROWS).total
    assert (total.prompts, total.samples, total.unjudged) == (3, 6, 0)
    prompts = [(1.5 + 0.5) / 2, (1.0 + 1.2) / 2, (0.0 + 0.3) / 2]
    mean = sum(prompts) / 3
    assert math.isclose(total.reward.mean, mean)
    residuals = [prompts[0] + prompts[1] - 2 * mean, prompts[2] - mean]
    assert math.isclose(total.reward.standard_error, math.sqrt(2 / 1 * sum(r * r for r in residuals)) / 3)
    assert math.isclose(total.correct.mean, (0.5 + 1.0 + 0.0) / 3)
    assert math.isclose(total.fast.mean, (0.5 + 0.5 + 0.0) / 3)
    assert total.speedup_median == 1.5
    assert {k: at.mean for k, at in total.pass_at.items()} == pytest.approx({"1": 0.5, "2": 2 / 3})
    by_problem = summarise(ROWS).problems
    assert list(by_problem) == ["A", "B"]
    assert by_problem["B"].speedup_median is None and by_problem["B"].reward.standard_error is None


def test_an_episode_that_the_evaluator_failed_on_counts_for_nothing_and_is_counted():
    broken = [row("A", 0, 2, 1.9, 9.0), row("A", 0, 2, None, turn=1), row("C", 0, 0, None)]
    with_broken, without = summarise([*ROWS, *broken]), summarise(ROWS)
    assert with_broken.total.reward == without.total.reward
    assert with_broken.total.unjudged == 2
    assert with_broken.problems["C"].reward is None and with_broken.problems["C"].pass_at == {}


def test_more_samples_of_the_same_prompts_do_not_shrink_the_error():
    twice = [{**entry, "sample": entry["sample"] + 2 * again} for entry in ROWS for again in (0, 1)]
    assert summarise(twice).total.reward == summarise(ROWS).total.reward


def test_more_prompts_of_the_same_problems_do_not_shrink_the_error_of_all():
    """Prompts of one problem are no independent evidence; within a problem they are what there is."""
    more = [{**entry, "seed": entry["seed"] + 2} for entry in ROWS]
    once, twice = summarise(ROWS), summarise([*ROWS, *more])
    assert twice.total.reward == once.total.reward and twice.total.prompts == 6
    assert twice.problems["A"].reward.standard_error < once.problems["A"].reward.standard_error


def test_the_gain_is_paired_by_prompt():
    """Each prompt gains exactly 0.1: no error is left, however much prompts differ."""
    after = [{**entry, "reward": entry["reward"] + 0.1} for entry in ROWS]
    only_after = row("Z", 0, 0, 2.0, 3.0)
    found = summarise([*after, only_after], ROWS).gain
    assert math.isclose(found.mean, 0.1) and found.standard_error < 1e-9
    assert gain({}, episodes_by_prompt(ROWS)) is None


def test_sizes_that_are_spelt_differently_are_one_prompt():
    rows = [{**ROWS[0], "size": '{"M": 64, "K": 32}'}, {**ROWS[2], "size": '{"K":32,"M":64}'}]
    assert len(episodes_by_prompt(rows)) == 1
