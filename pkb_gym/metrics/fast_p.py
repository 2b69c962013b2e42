"""fast_p and the speed of right kernels, over either baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress

import numpy as np

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.estimates import Estimate, Floats, bootstrap_interval, estimate_means
from pkb_gym.metrics.outcomes import SpeedupEstimate, TimedBaseline
from pkb_gym.metrics.pass_at_k import pass_at_every_k, pass_at_k_of_counts
from pkb_gym.metrics.results import AgentResults, Bools

P_LOW, P_HIGH = 0.1, 10.0
"""Speedups between which the curve is drawn and its area taken."""

P_POINTS = 81
P_TABLED = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0)
"""Points that tables show: exactly these, as a kernel that is twice as fast does not count for fast_2."""

P_GRID: tuple[float, ...] = tuple(
    sorted({*P_TABLED, *(float(f"{p:.6g}") for p in np.geomspace(P_LOW, P_HIGH, P_POINTS))})
)


class FastPCurve(Record):
    """fast_p over p, with its interval at each."""

    k: int
    """Number of samples of which the best counts, at least 1."""
    p: tuple[float, ...]
    fast: tuple[float, ...]
    low: tuple[float, ...] | None
    """Lower ends of the 95 % intervals, pointwise; None for a single cluster."""
    high: tuple[float, ...] | None

    def at(self, p: float) -> float:
        """fast_p at a point of the grid.

        Raises:
            ValueError: p is no point of the grid.
        """
        return self.fast[self.p.index(p)]

    def estimate_at(self, p: float) -> Estimate:
        """The same with its interval.

        Raises:
            ValueError: p is no point of the grid.
        """
        place = self.p.index(p)
        low, high = (None if ends is None else ends[place] for ends in (self.low, self.high))
        return Estimate(mean=self.fast[place], standard_error=None, low=low, high=high)


def fast_p(
    results: AgentResults,
    p: float,
    k: int = 1,
    baseline: TimedBaseline = "eager",
    estimate: SpeedupEstimate = "point",
) -> Estimate | None:
    """Chance that at least one of k samples is right and more than p times as fast as the baseline.

        fast_p@k = mean over problems of 1 - C(n - c_p, k) / C(n, k),    c_p = #{right and speedup > p}

    With k = 1 it is the share of samples that are right and faster. The speedup is the measured one, as in the source,
    or the lower end of its interval; a sample of several turns counts with its best one. Problems with fewer than k
    samples are left out.

    Source: Ouyang et al., KernelBench, arXiv:2502.10517, section 3.3; k samples as in `pass_at_k`.

    Raises:
        ValueError: p is negative or not finite, or k is less than 1.
    """
    if not 0 <= p < math.inf:
        raise ValueError(f"fast_p needs a finite p >= 0, got {p}")
    return estimate_means(_values(results, (p,), k, baseline, estimate), results.clusters)[0]


def fast_p_curve(
    results: AgentResults, k: int = 1, baseline: TimedBaseline = "eager", estimate: SpeedupEstimate = "point"
) -> FastPCurve | None:
    """`fast_p` at every p of `P_GRID`; None where no problem has k samples."""
    values = _values(results, P_GRID, k, baseline, estimate)
    present = ~np.isnan(values[:, 0])
    if not present.any():
        return None
    values, clusters = values[present], list(compress(results.clusters, present))
    low, high = bootstrap_interval(values, clusters)
    alone = len(set(clusters)) == 1
    return FastPCurve(
        k=k,
        p=P_GRID,
        fast=_rounded(values.mean(axis=0)),
        low=None if alone else _rounded(low),
        high=None if alone else _rounded(high),
    )


def fast_at_every_k(
    results: AgentResults, p: float, baseline: TimedBaseline, estimate: SpeedupEstimate = "point"
) -> Floats:
    """`fast_p` of each problem for every k, shape (problems, largest n); NaN for k above a problem's samples.

    By the lower end of each speedup's 95 % interval it counts no kernel that noise alone made faster. By the measured
    speedup, as published, half of all kernels that are as fast as the baseline count for fast_1.
    """
    return _at_every_k(results, results.episodes.best_speedup(baseline, estimate) > p)  # NaN is not greater


def pass_at_every_k_of(results: AgentResults) -> Floats:
    """pass@k of each problem for every k, shape (problems, largest n); NaN for k above a problem's samples."""
    return _at_every_k(results, results.episodes.is_right)


def _at_every_k(results: AgentResults, counts: Bools) -> Floats:
    """The chance that at least one of k samples counts, of each problem for every k; see `pass_at_every_k`."""
    of_tasks: list[list[Floats]] = [[] for _ in results.problems]
    for problem, rows in results.tasks():
        of_tasks[problem].append(pass_at_every_k(rows.stop - rows.start, int(counts[rows].sum())))
    widest = max((len(table) for tables in of_tasks for table in tables), default=0)
    found = np.full((len(of_tasks), widest), np.nan)
    for row, tables in zip(found, of_tasks, strict=True):
        # A problem has pass@k for the k that each of its tasks has, so that all k speak of the same tasks.
        fewest = min(map(len, tables))
        row[:fewest] = np.mean([table[:fewest] for table in tables], axis=0)
    return found


def log_area(speedup: Floats | float) -> Floats:
    """Place of a speedup between `P_LOW` (0) and `P_HIGH` (1) on a log scale; 0 for NaN, which stands for none.

        a = min(1, max(0, log(s / P_LOW) / log(P_HIGH / P_LOW)))

    Source: own. Its mean is the area under the fast_p curve over log p, divided by the width of the range, for

        integral over log p of [s > p] = log(s) - log(P_LOW)

    within the range: a kernel as fast as the baseline adds 1/2, one that is wrong 0.

    Example:
        >>> log_area(np.array([float("nan"), 0.1, 1.0, 100.0])).tolist()
        [0.0, 0.0, 0.5, 1.0]
    """
    within = np.clip(np.nan_to_num(speedup, nan=P_LOW), P_LOW, P_HIGH)
    return np.asarray(np.log(within / P_LOW) / math.log(P_HIGH / P_LOW))


def area_under_fast_p(results: AgentResults, baseline: TimedBaseline = "eager") -> Floats:
    """Area under the fast_p curve over log p, of each problem, in [0, 1]; see `log_area`."""
    return results.of_problems(log_area(results.episodes.best_speedup(baseline)))


def mean_log_speedup(results: AgentResults, baseline: TimedBaseline = "eager") -> Floats:
    """Mean natural logarithm of the speedup of right samples, of each problem; NaN where none is right and timed.

        m = mean over right samples of ln(speedup),    exp(m) is the geometric mean

    It ignores samples that are wrong, so an agent that solves only easy problems can lead it: read it beside
    pass@k. Source: Fleming, Wallace, How Not to Lie With Statistics, CACM 29 (1986): the geometric mean is the one that
    does not depend on which of two machines is the reference.
    """
    return results.of_problems(np.log(results.episodes.best_speedup(baseline)))


def roofline_utilisation(results: AgentResults) -> Floats:
    """Mean roofline utilisation of right samples, of each problem; NaN where none has one.

        u = ceiling_us / candidate_us    of the best turn

    Source: `Roofline.candidate_utilisation`; Williams, Waterman, Patterson, Roofline, CACM 52 (2009).
    """
    return results.of_problems(results.episodes.utilisation)


def _values(
    results: AgentResults, grid: Sequence[float], k: int, baseline: TimedBaseline, estimate: SpeedupEstimate
) -> Floats:
    """fast_p@k of each problem at each p, shape (problems, len(grid)); NaN for a problem with fewer samples."""
    if k < 1:
        raise ValueError(f"fast_p@k needs k >= 1, got {k}")
    thresholds = np.array(grid)
    speedups = results.episodes.best_speedup(baseline, estimate)
    of_tasks: list[list[Floats]] = [[] for _ in results.problems]
    for problem, rows in results.tasks():
        present = np.sort(speedups[rows][~np.isnan(speedups[rows])])
        faster = (len(present) - np.searchsorted(present, thresholds, side="right")).astype(np.float64)
        samples = rows.stop - rows.start
        of_tasks[problem].append(
            pass_at_k_of_counts(samples, faster, k) if samples >= k else np.full(len(thresholds), np.nan)
        )
    return np.array([np.mean(values, axis=0) for values in of_tasks]).reshape(len(of_tasks), len(thresholds))


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)
