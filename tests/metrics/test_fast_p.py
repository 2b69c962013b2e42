"""fast_p, its curve and area, and the speed of right kernels, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pkb_gym.metrics.estimates import estimate_means
from pkb_gym.metrics.fast_p import (
    P_GRID,
    P_HIGH,
    P_LOW,
    area_under_fast_p,
    fast_at_every_k,
    fast_p,
    fast_p_curve,
    log_area,
    mean_log_speedup,
    roofline_utilisation,
)
from pkb_gym.metrics.figures import agent_figures
from pkb_gym.metrics.results import results_by_agent
from tests.metrics.attempts import attempt

ATTEMPTS = [
    attempt("AllReduce", sample=0, speedup=2.0, captured_us=40.0),
    attempt("AllReduce", sample=1, speedup=0.5, captured_us=40.0),
    attempt("AllReduce", sample=2),
    attempt("Gather", sample=0, speedup=4.0),
    attempt("Gather", sample=1),
    attempt("Gather", sample=2),
    attempt("HyenaCP", sample=0),
    attempt("HyenaCP", sample=1),
]
(RESULTS,) = results_by_agent(ATTEMPTS)


@pytest.mark.parametrize(
    ("p", "k", "expected"),
    [
        (0.0, 1, (2 / 3 + 1 / 3 + 0) / 3),
        (1.0, 1, (1 / 3 + 1 / 3 + 0) / 3),
        (2.0, 1, (0 + 1 / 3 + 0) / 3),
        (4.0, 1, 0.0),
        (0.25, 2, (1.0 + 2 / 3 + 0) / 3),
        (1.0, 3, (1.0 + 1.0) / 2),
    ],
)
def test_fast_p_by_hand(p, k, expected):
    """With k = 3, HyenaCP has too few samples. A speedup of exactly p does not count."""
    assert fast_p(RESULTS, p, k).mean == pytest.approx(expected)


def test_over_the_captured_baseline():
    """40 us captured: 2x over eager is 0.8x; Gather was not captured and keeps the eager baseline."""
    assert fast_p(RESULTS, 1.0, 1, "captured").mean == pytest.approx((0 + 1 / 3 + 0) / 3)
    assert fast_p(RESULTS, 0.75, 1, "captured").mean == pytest.approx((1 / 3 + 1 / 3 + 0) / 3)


def test_the_curve_is_fast_p_at_every_p():
    curve = fast_p_curve(RESULTS)
    assert curve.p == P_GRID and (curve.p[0], curve.p[-1]) == (P_LOW, P_HIGH)
    assert curve.fast == pytest.approx([fast_p(RESULTS, p).mean for p in P_GRID], abs=1e-6)
    assert curve.low == pytest.approx([fast_p(RESULTS, p).low for p in P_GRID], abs=1e-6)
    assert list(curve.fast) == sorted(curve.fast, reverse=True)


def test_the_area_is_that_under_the_curve():
    found = estimate_means(area_under_fast_p(RESULTS)[:, None], RESULTS.clusters)[0].mean
    by_hand = ((log_area(2.0) + log_area(0.5)) / 3 + log_area(4.0) / 3 + 0) / 3
    assert found == pytest.approx(by_hand)
    fine = np.geomspace(P_LOW, P_HIGH, 2001)
    heights = [fast_p(RESULTS, p).mean for p in fine[::4]]
    assert found == pytest.approx(np.trapezoid(heights, dx=1 / (len(heights) - 1)), abs=2e-3)


def test_the_mean_log_speedup_is_of_right_kernels():
    of_all_reduce, of_gather, of_hyena = mean_log_speedup(RESULTS)
    assert of_all_reduce == pytest.approx((math.log(2) + math.log(0.5)) / 2)
    assert of_gather == pytest.approx(math.log(4)) and math.isnan(of_hyena)


def test_utilisation_is_that_of_the_best_turn():
    """The ceiling is 25 us, the baseline 100 us: twice as fast uses half."""
    (results,) = results_by_agent([attempt(turn=0, speedup=2.0), attempt(turn=1, speedup=1.0), attempt("Gather")])
    first, second = roofline_utilisation(results)
    assert first == pytest.approx(0.5) and math.isnan(second)


def test_tasks_of_a_problem_count_the_same():
    (results,) = results_by_agent(
        [attempt(sample=s, speedup=2.0) for s in range(3)] + [attempt(requested={"size": "large"}, sample=0)]
    )
    assert fast_p(results, 1.0).mean == pytest.approx((1.0 + 0.0) / 2)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="finite p >= 0, got -1"):
        fast_p(RESULTS, -1)
    with pytest.raises(ValueError, match="needs k >= 1, got 0"):
        fast_p(RESULTS, 1.0, 0)


def test_nothing_has_no_curve():
    (results,) = results_by_agent([attempt(failure="infrastructure")])
    assert fast_p(results, 1.0) is None and fast_p_curve(results) is None


def test_by_lower_end_noise_counts_for_nothing():
    """Three samples as fast as the baseline: two were measured above 1, and the interval of one lies above it."""
    (results,) = results_by_agent(
        attempt("AllReduce", sample=sample, speedup=speedup, low=low, captured_us=60.0)
        for sample, (speedup, low) in enumerate([(1.05, 0.97), (0.98, 0.9), (2.0, 1.8)])
    )
    assert fast_at_every_k(results, 1.0, "eager")[0, 0] == pytest.approx(2 / 3)
    assert fast_at_every_k(results, 1.0, "eager", "low")[0].tolist() == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert fast_at_every_k(results, 1.0, "captured", "low")[0, 0] == pytest.approx(1 / 3)
    assert agent_figures(results).eager.fast_1_low_at[0].estimate.mean == pytest.approx(1 / 3)
