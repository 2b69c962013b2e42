"""Means with their uncertainty: values of one cluster, such as near-duplicate problems, are no independent evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from pydantic import Field

from pkb_gym.engine.records.base import Record

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 0

Floats = npt.NDArray[np.float64]


class Estimate(Record):
    """A mean over clusters."""

    mean: float
    standard_error: float | None
    """Standard error of the mean, from the scatter of the clusters; None for a single cluster."""
    low: float | None = None
    """Lower end of the 95 % interval, by bootstrap over clusters; None for a single cluster."""
    high: float | None = None
    """Upper end of the same interval."""
    clusters: int = Field(default=1, ge=1)
    """Clusters that have a value."""


def estimate(clusters: Iterable[Sequence[float]]) -> Estimate | None:
    """Mean of all values, its standard error and its interval; None without any value.

        mean = sum_g S_g / sum_g N_g                 S_g: sum of cluster g's values, N_g: their number
        se^2 = G / (G - 1) * sum_g (S_g - mean * N_g)^2 / (sum_g N_g)^2

    Source of the standard error: Cameron, Miller, A Practitioner's Guide to Cluster-Robust Inference, Journal of Human
    Resources 50 (2015), section II.B; for evaluations of models: Miller, Adding Error Bars to Evals, arXiv:2411.00640,
    section 2.2. Interval: percentiles of the mean over resampled clusters (Efron, Tibshirani, An Introduction to the
    Bootstrap, 1993, section 13.3).

    Args:
        clusters: Values of each cluster; clusters without values are passed over.

    Example:
        >>> round(estimate([[0.0], [1.0], [2.0]]).standard_error, 6)
        0.57735
        >>> estimate([[0.0, 0.0], [1.0, 1.0]]).standard_error == estimate([[0.0], [1.0]]).standard_error
        True
    """
    filled = [values for values in clusters if values]
    if not filled:
        return None
    sums = np.array([sum(values) for values in filled])
    counts = np.array([float(len(values)) for values in filled])
    return _estimates(sums[:, None], counts[:, None])[0]


def estimate_means(values: Floats, clusters: Sequence[str]) -> list[Estimate | None]:
    """One estimate for each column of values.

    Args:
        values: Values, shape (rows, columns); NaN for none.
        clusters: Cluster of each row.
    """
    return estimate_columns(*_sums_and_counts(values), clusters)


def estimate_columns(sums: Floats, counts: Floats, clusters: Sequence[str]) -> list[Estimate | None]:
    """One estimate for each column; see `estimate` for the formulas.

    Args:
        sums: Sums of each row's values, shape (rows, columns).
        counts: Counts of the values, of the same shape; 0 for an empty row. For a ratio, its denominators.
        clusters: Cluster of each row.
    """
    return _estimates(_merged(sums, clusters), _merged(counts, clusters))


def _estimates(sums: Floats, counts: Floats) -> list[Estimate | None]:
    """One estimate for each column, from the sums and counts of each cluster."""
    totals = counts.sum(axis=0)
    clusters = ((counts > 0) | (sums != 0)).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums.sum(axis=0) / totals
        scatter = ((sums - means * counts) ** 2).sum(axis=0)
        errors = np.sqrt(clusters / (clusters - 1.0) * scatter) / totals
    low, high = _bootstrap_interval(sums, counts)
    return [
        None
        if totals[i] == 0
        else Estimate(
            mean=float(means[i]),
            standard_error=float(errors[i]) if clusters[i] > 1 else None,
            low=float(low[i]) if clusters[i] > 1 else None,
            high=float(high[i]) if clusters[i] > 1 else None,
            clusters=int(clusters[i]),
        )
        for i in range(sums.shape[1])
    ]


def bootstrap_interval(values: Floats, clusters: Sequence[str]) -> tuple[Floats, Floats]:
    """Both ends of the interval of each column's mean; NaN for a column without values. See `estimate_means`."""
    return _bootstrap_interval(*(_merged(table, clusters) for table in _sums_and_counts(values)))


def bootstrap_means(values: Floats, clusters: Sequence[str]) -> Floats:
    """Means of each column over resampled clusters, shape (resamples, columns); NaN where a resample has no value."""
    return _bootstrap_means(*(_merged(table, clusters) for table in _sums_and_counts(values)))


def _sums_and_counts(values: Floats) -> tuple[Floats, Floats]:
    present = ~np.isnan(values)
    return np.where(present, values, 0.0), present.astype(np.float64)


def _merged(table: Floats, clusters: Sequence[str]) -> Floats:
    """The sum of the rows of each cluster, shape (clusters, columns), in the order of their names."""
    names, place = np.unique(np.array(clusters, dtype=np.str_), return_inverse=True)
    merged = np.zeros((len(names), table.shape[1]))
    np.add.at(merged, place, table)
    return merged


def _bootstrap_interval(sums: Floats, counts: Floats) -> tuple[Floats, Floats]:
    means = _bootstrap_means(sums, counts)
    tail = (1 - CONFIDENCE) / 2
    if np.isnan(means).any():  # resamples without a value count for nothing
        empty = np.isnan(means).all(axis=0)
        means[:, empty] = 0.0
        low, high = np.nanquantile(means, [tail, 1 - tail], axis=0)
        low[empty] = high[empty] = np.nan
        return low, high
    low, high = np.quantile(np.ascontiguousarray(means.T), [tail, 1 - tail], axis=1)  # rows are faster than columns
    return low, high


def _bootstrap_means(sums: Floats, counts: Floats) -> Floats:
    weights = _weights(len(sums))
    if len(counts) and (counts == 1).all():  # every resample draws as many clusters as there are
        return np.asarray(weights @ sums / len(sums))
    drawn = weights @ counts
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(drawn > 0, (weights @ sums) / drawn, np.nan)


@cache
def _weights(clusters: int) -> Floats:
    """The draws of each cluster by each resample, shape (resamples, clusters); equal in every process."""
    if clusters == 0:
        return np.zeros((RESAMPLES, 0))
    random = np.random.default_rng([SEED, clusters])
    return random.multinomial(clusters, np.full(clusters, 1 / clusters), size=RESAMPLES).astype(np.float64)
