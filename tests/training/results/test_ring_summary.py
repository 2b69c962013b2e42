"""Figures of rings and turns, against numbers computed by hand."""

from __future__ import annotations

import doctest
import json
from itertools import combinations
from math import sqrt

import pytest

from pkb_gym.training.evaluate_policy import ring_table
from pkb_gym.training.results import ring_summary
from pkb_gym.training.results.policy_summary import prompt_key
from pkb_gym.training.results.ring_summary import expected_best, rings_of, summarise_rings
from tests.training.results.test_policy_summary import row


def timed(*args, captured: float | None = None, **named) -> dict:
    return {**row(*args, **named), "captured_speedup": captured}


ROWS = [
    timed("A", 0, 0, 0.1),
    timed("A", 0, 0, 1.5, 2.0, turn=1, captured=0.9),
    timed("A", 0, 1, 0.5),
    timed("B", 0, 0, 1.2, 1.5, captured=1.1),
    timed("B", 0, 0, 0.2, turn=1),
    timed("B", 0, 1, 0.3),
    timed("C", 0, 0, 0.0),
    timed("C", 0, 1, None),
]
RINGS = {prompt_key(one): {"A": "sizes", "B": "sizes", "C": "test"}[one["problem"]] for one in ROWS}


def test_examples_in_docstrings_hold():
    result = doctest.testmod(ring_summary)
    assert result.attempted and not result.failed


def test_rings_and_turns_by_hand():
    found = summarise_rings(ROWS, RINGS)
    assert list(found) == ["sizes", "test"]
    sizes = found["sizes"]
    first, second = sizes.turns
    # Of A (0.1 and 0.5) and B (1.2 and 0.3) after one turn; then A has 1.5 and 0.5, B what it had.
    assert first.reward.mean == pytest.approx((0.3 + 0.75) / 2) and second.reward.mean == pytest.approx(
        (1.0 + 0.75) / 2
    )
    assert (first.correct.mean, second.correct.mean) == (0.25, 0.5)
    assert (first.compiled.mean, second.compiled.mean) == (0.0, 0.0)  # these rows say nothing of stages
    assert (first.fast.mean, second.fast.mean) == (0.25, 0.5)
    assert (first.fast_captured.mean, second.fast_captured.mean) == (0.25, 0.25)
    # Two clusters, 1.0 and 0.75: residuals of 1/8 from their mean.
    assert second.reward.clusters == 2
    assert second.reward.standard_error == pytest.approx(sqrt(2 / 1 * 2 * 0.125**2) / 2)
    assert sizes.figures.reward == second.reward and sizes.fast_captured == second.fast_captured
    assert {k: best.mean for k, best in sizes.best_of.items()} == pytest.approx({"1": 0.875, "2": (1.5 + 1.2) / 2})
    assert sizes.solved_problems == ("A", "B") and found["test"].solved_problems == ()


def test_what_was_not_judged_counts_in_no_turn():
    found = summarise_rings(ROWS, RINGS)["test"]
    assert (found.figures.samples, found.figures.unjudged) == (1, 1)
    assert found.turns[0].reward.mean == 0.0 and list(found.best_of) == ["1"]
    lost = [timed("A", 0, 2, 1.9, 9.0), timed("A", 0, 2, None, turn=1)]
    assert summarise_rings([*ROWS, *lost], RINGS)["sizes"].turns == summarise_rings(ROWS, RINGS)["sizes"].turns


def test_prompts_without_a_ring_are_left_out():
    prompts = [{**ROWS[0], "ring": "sizes"}, {**ROWS[3], "ring": None}, ROWS[6]]
    assert rings_of(prompts) == {prompt_key(ROWS[0]): "sizes"}
    assert summarise_rings(ROWS, {}) == {}


def test_the_expected_best_is_the_mean_over_all_choices():
    values = [0.3, 1.0, 0.1, 0.1, 2.0]
    for k in range(1, 6):
        every = [max(chosen) for chosen in combinations(values, k)]
        assert expected_best(values, k) == pytest.approx(sum(every) / len(every))
    with pytest.raises(ValueError, match="at least 6 values"):
        expected_best(values, 6)


def test_they_are_shown_and_survive_json():
    found = summarise_rings(ROWS, RINGS)
    assert ring_table(found).row_count == 3
    assert type(found["sizes"]).model_validate(json.loads(found["sizes"].model_dump_json())) == found["sizes"]
