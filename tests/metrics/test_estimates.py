"""Means over clusters, against numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pkb_gym.metrics.estimates import RESAMPLES, bootstrap_means, estimate, estimate_columns, estimate_means


def test_mean_and_error_by_hand():
    found = estimate([[1.0, 2.0], [0.0], [3.0, 3.0, 3.0]])
    assert math.isclose(found.mean, 12 / 6)
    residuals = [3 - 2 * 2, 0 - 2 * 1, 9 - 2 * 3]
    assert math.isclose(found.standard_error, math.sqrt(3 / 2 * sum(r * r for r in residuals)) / 6)
    assert found.clusters == 3


def test_the_interval_is_that_of_all_resamples():
    """Two clusters, 0 and 1: a resample has mean 0, 1/2 or 1 with chances 1/4, 1/2, 1/4."""
    means = bootstrap_means(np.array([[0.0], [1.0]]), ["a", "b"])[:, 0]
    shares = [float(np.mean(means == value)) for value in (0.0, 0.5, 1.0)]
    assert len(means) == RESAMPLES and shares == pytest.approx([0.25, 0.5, 0.25], abs=0.04)
    found = estimate([[0.0], [1.0]])
    assert (found.low, found.high) == (0.0, 1.0)


def test_the_interval_of_many_clusters_is_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(size=400)
    found = estimate([[value] for value in values])
    assert found.low == pytest.approx(found.mean - 1.96 * found.standard_error, abs=0.01)
    assert found.high == pytest.approx(found.mean + 1.96 * found.standard_error, abs=0.01)


def test_repeating_the_values_of_a_cluster_is_no_evidence():
    once, often = estimate([[0.0], [1.0], [1.0]]), estimate([[0.0] * 9, [1.0] * 9, [1.0] * 9])
    assert often == once


def test_a_single_cluster_has_no_error_and_nothing_no_mean():
    found = estimate([[1.0, 2.0], []])
    assert (found.mean, found.standard_error, found.low, found.high, found.clusters) == (1.5, None, None, None, 1)
    assert estimate([]) is None and estimate([[]]) is None


def test_columns_with_missing_values_are_their_own_estimates():
    table = np.array([[1.0, np.nan, np.nan], [0.0, 1.0, np.nan], [1.0, 0.0, np.nan]])
    first, second, third = estimate_means(table, ["a", "b", "c"])
    assert first.mean == pytest.approx(2 / 3) and first.clusters == 3
    assert second.mean == 0.5 and second.clusters == 2 and second.low == 0.0
    assert third is None


def test_rows_of_one_cluster_are_no_independent_evidence():
    values = [0.0, 1.0, 1.0, 0.5]
    (found,) = estimate_means(np.array(values)[:, None], ["a", "b", "b", "c"])
    assert found == estimate([[0.0], [1.0, 1.0], [0.5]])
    assert found.mean == np.mean(values) and found.clusters == 3


def test_a_ratio_counts_clusters_that_only_spend():
    """Ten spent without a success belong to the price of the one success."""
    (found,) = estimate_columns(np.array([[10.0], [2.0]]), np.array([[0.0], [1.0]]), ["a", "b"])
    assert found.mean == 12.0 and found.clusters == 2


def test_intervals_are_the_same_each_time():
    assert estimate([[0.2], [0.4], [0.9]]) == estimate([[0.2], [0.4], [0.9]])
