"""Turns until one agent is as fast as the best kernels of another, by hand."""

from __future__ import annotations

import pytest

from pkb_gym.metrics.reach import reach, target_speedups
from pkb_gym.metrics.results import results_by_agent
from tests.metrics.attempts import attempt

EXPERT = [
    attempt("AllReduce", "expert", speedup=3.0, low=2.0),
    attempt("AllReduce", "expert", sample=1, speedup=9.0, low=1.5),
    attempt("Gather", "expert", speedup=5.0, low=4.0),
    attempt("Scatter", "expert"),
    attempt("Reduce", "expert", speedup=1.0),
]
EVOLVE = [
    attempt("AllReduce", "evolve", turn=0, speedup=1.9),
    attempt("AllReduce", "evolve", turn=1),
    attempt("AllReduce", "evolve", turn=2, speedup=2.0),
    attempt("AllReduce", "evolve", turn=3, speedup=8.0),
    attempt("AllReduce", "evolve", sample=1, turn=0, speedup=1.0),
    attempt("AllReduce", "evolve", sample=1, turn=1, speedup=1.99),
    attempt("Gather", "evolve", turn=0, speedup=4.5),
    attempt("Scatter", "evolve", turn=0, speedup=7.0),
]
(RESULTS,) = results_by_agent(EVOLVE)


def test_the_target_is_the_lower_end_of_the_best_kernel_by_that_end():
    """The luckiest measurement is no target; an expert that is wrong is none either."""
    assert target_speedups(EXPERT) == {"AllReduce": 2.0, "Gather": 4.0, "Reduce": 1.0}


def test_turns_are_counted_up_to_the_first_that_is_as_fast():
    found = reach(RESULTS, "expert", target_speedups(EXPERT))
    assert [(each.problem, each.target_speedup, each.turns) for each in found.problems] == [
        ("AllReduce", 2.0, (3, None)),
        ("Gather", 4.0, (1,)),
    ]
    assert found.share.mean == pytest.approx((1 / 2 + 1) / 2) and found.share.clusters == 2
    assert found.of_successes.mean == pytest.approx((3 + 1) / 2)
    assert found.per_success.mean == pytest.approx((3 + 2 + 1) / 2)


def test_nothing_is_reached():
    found = reach(RESULTS, "expert", {"AllReduce": 100.0})
    assert found.share.mean == 0 and found.of_successes is None and found.per_success is None
    assert reach(RESULTS, "expert", {"DDP": 1.0}) is None
