"""The best so far over turns, by hand."""

from __future__ import annotations

import pytest

from pkb_gym.metrics.fast_p import log_area
from pkb_gym.metrics.results import results_by_agent
from pkb_gym.metrics.turns import plateau, turn_figures
from tests.metrics.attempts import attempt

ATTEMPTS = [
    attempt("AllReduce", turn=0),
    attempt("AllReduce", turn=1, speedup=0.5),
    attempt("AllReduce", turn=2, speedup=2.0),
    attempt("AllReduce", turn=3, speedup=1.0),
    attempt("Gather", turn=0, speedup=1.5),
]
(RESULTS,) = results_by_agent(ATTEMPTS)


def test_an_episode_that_ends_early_keeps_its_last_value():
    found = turn_figures(RESULTS)
    assert [figures.turns for figures in found] == [1, 2, 3, 4]
    assert [figures.right.mean for figures in found] == [0.5, 1.0, 1.0, 1.0]
    assert [figures.faster.mean for figures in found] == [0.5, 0.5, 1.0, 1.0]
    areas = [(log_area(best) + log_area(1.5)) / 2 for best in (0.0, 0.5, 2.0, 2.0)]
    assert [figures.area.mean for figures in found] == pytest.approx(areas)
    gains = [areas[0], areas[1] - areas[0], areas[2] - areas[1], 0.0]
    assert [figures.improvement for figures in found] == pytest.approx(gains)


def test_the_plateau_begins_where_nothing_more_comes():
    found = plateau(RESULTS)
    assert (found.turns, found.low, found.high) == (3, 1, 3)
    assert plateau(RESULTS, tolerance=0.5).turns == 1


def test_one_problem_has_no_interval_and_none_no_plateau():
    (alone,) = results_by_agent(ATTEMPTS[:4])
    assert (plateau(alone).turns, plateau(alone).low) == (3, None)
    (broken,) = results_by_agent([attempt(failure="infrastructure")])
    assert plateau(broken) is None and turn_figures(broken) == ()
