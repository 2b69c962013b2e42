"""The gain of further turns: the best so far after each turn, and its plateau."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from pkb_gym.engine.records.base import Record
from pkb_gym.metrics.estimates import CONFIDENCE, Estimate, Floats, bootstrap_means, estimate_means
from pkb_gym.metrics.fast_p import log_area
from pkb_gym.metrics.results import AgentResults

PLATEAU_TOLERANCE = 0.01
"""Share of the range of `log_area` below the final value that counts as the plateau."""


class TurnFigures(Record):
    """The best so far after so many turns; an episode that ended earlier keeps its last value."""

    turns: int = Field(ge=1)
    """Turns taken."""
    right: Estimate
    """Share of episodes with a right turn so far."""
    faster: Estimate
    """Share of episodes with a right turn so far that is faster than the eager baseline: fast_1 of the best so far."""
    area: Estimate
    """Mean `log_area` of the best so far over the eager baseline."""
    improvement: float
    """The gain of the last of these turns in `area`."""


class Plateau(Record):
    """The turn from which further ones add nothing."""

    turns: int = Field(ge=1)
    """Turns after which `TurnFigures.area` stays within `tolerance` of its final value."""
    low: int | None
    """Lower end of the 95 % interval, by bootstrap over clusters; None for a single one."""
    high: int | None
    tolerance: float


def turn_figures(results: AgentResults) -> tuple[TurnFigures, ...]:
    """Figures for 1, 2, ... turns, up to the longest episode; empty without episodes.

    x_t = mean over problems of the best so far after t turns
    """
    if not results.problems:
        return ()
    estimates = zip(*(estimate_means(table, results.clusters) for table in _best_so_far(results)), strict=True)
    found = []
    before = 0.0
    for number, (is_right, is_faster, of_area) in enumerate(estimates, start=1):
        assert is_right is not None and is_faster is not None and of_area is not None
        found.append(
            TurnFigures(turns=number, right=is_right, faster=is_faster, area=of_area, improvement=of_area.mean - before)
        )
        before = of_area.mean
    return tuple(found)


def plateau(results: AgentResults, tolerance: float = PLATEAU_TOLERANCE) -> Plateau | None:
    """The first number of turns from which on the mean best so far stays near its final value; None without episodes.

    plateau = min t with x_T - x_t <= tolerance,    x_t: mean `log_area` of the best so far after t turns
    """
    if not results.problems:
        return None
    area = _best_so_far(results)[2]
    resampled = bootstrap_means(area, results.clusters)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(_first_near_end(resampled, tolerance), [tail, 1 - tail], method="nearest")
    alone = len(set(results.clusters)) == 1
    return Plateau(
        turns=int(_first_near_end(area.mean(axis=0)[None], tolerance)[0]),
        low=None if alone else int(low),
        high=None if alone else int(high),
        tolerance=tolerance,
    )


def _first_near_end(series: Floats, tolerance: float) -> Floats:
    """For each row, which never falls: the first column, from 1, that is near the last one."""
    rounding = 1e-12
    return np.asarray(np.argmax(series[:, -1:] - series <= tolerance + rounding, axis=1) + 1)


def _best_so_far(results: AgentResults) -> tuple[Floats, Floats, Floats]:
    """Right, faster and area of each problem after each number of turns, of shape (problems, turns)."""
    turns = results.turns
    shape = (len(results.episodes), int(turns.position.max()) + 1)
    right, speedup = np.zeros(shape), np.zeros(shape)
    place = (turns.episode, turns.position)
    right[place] = turns.is_right
    speedup[place] = np.nan_to_num(turns.speedup)
    right, best = np.maximum.accumulate(right, axis=1), np.maximum.accumulate(speedup, axis=1)
    series = (right, (best > 1.0).astype(np.float64), log_area(best))
    of_right, of_faster, of_area = (results.of_problems(values) for values in series)
    return of_right, of_faster, of_area
