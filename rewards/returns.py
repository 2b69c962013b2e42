"""Credit of each turn of a finished episode, from the values of its turns.

For trainers that learn from each turn as a sample of its own. `values` are those of the episode's submissions in order,
None for an infrastructure failure: such a turn is credited with None, and does not count for the others.

    >>> values = [0.0, 1.0, 0.5]
    >>> discounted_sum(values, gamma=0.5), discounted_max(values, gamma=0.5)
    ([0.625, 1.25, 0.5], [0.5, 1.0, 0.5])
    >>> best_of_episode(values), improvement_only(values), first_turn_anchored(values)
    ([1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.5])
    >>> improvement_ahead(values, gamma=0.5)
    [0.5, 1.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

Values: TypeAlias = Sequence[float | None]
"""One number for each turn, None for an infrastructure failure."""

KEVIN_GAMMA = 0.4


def own_value(values: Values) -> list[float | None]:
    """Each turn its own value: greedy, so that a bad turn is not credited for a good one that follows it.

        G_t = v_t

    Range: that of the values.

    Example:
        >>> own_value([0.5, None])
        [0.5, None]
    """
    return list(values)


def discounted_sum(values: Values, gamma: float = KEVIN_GAMMA) -> list[float | None]:
    """Each turn its own value and, discounted, those of all later turns: credit for making a later turn possible.

        G_t = sum over i >= t of gamma^(i - t) * v_i

    Range: that of the values, times at most 1 / (1 - gamma) or the number of turns.
    Source: Kevin (Baronio et al., arXiv:2507.11948), where the sum with gamma 0.4 did best. It pays for many good
    kernels, so repeating one earns again: use it with a bounded number of turns.

    Example:
        >>> discounted_sum([1.0, 0.0, 1.0], gamma=0.5)
        [1.25, 0.5, 1.0]
    """
    _refuse_gamma(gamma)
    return _backwards(values, lambda later, value: value + gamma * later, empty=0.0)


def discounted_max(values: Values, gamma: float = KEVIN_GAMMA) -> list[float | None]:
    """Each turn the best of its own value and, discounted, those of later turns: none for turns after the best.

        G_t = max over i >= t of gamma^(i - t) * v_i

    Range: that of the values and 0.
    Source: Kevin (arXiv:2507.11948), the alternative to the sum.

    Example:
        >>> discounted_max([0.0, 1.0, 0.0], gamma=0.5)
        [0.5, 1.0, 0.0]
    """
    _refuse_gamma(gamma)
    # max(v_t, gamma * G_(t+1)) is the formula: discounting keeps the order.
    return _backwards(values, lambda later, value: max(value, gamma * later), empty=float("-inf"))


def best_of_episode(values: Values) -> list[float | None]:
    """Every turn the best value of the episode: neither the order of turns nor turns after the best one matter.

        G_t = max over all i of v_i

    A turn that is worse than no submission (a caught race) costs nothing where another one is better.

    Range: that of the values.
    Source: the outcome of an episode under best-of-n metrics; Kevin (arXiv:2507.11948) discusses why it blurs the
    contributions of single turns.

    Example:
        >>> best_of_episode([0.0, 1.0, 0.5])
        [1.0, 1.0, 1.0]
    """
    return _over_valid(values, lambda valid: [max(valid)] * len(valid))


def last_of_episode(values: Values) -> list[float | None]:
    """Every turn the value of the last submission: the final answer of an agent.

        G_t = v_T

    Range: that of the values.
    Source: rewards of outcomes, as in CUDA Agent (Dai et al., arXiv:2602.24286).

    Example:
        >>> last_of_episode([0.0, 1.0, 0.5])
        [0.5, 0.5, 0.5]
    """
    return _over_valid(values, lambda valid: [valid[-1]] * len(valid))


def improvement_only(values: Values, start: float = 0.0) -> list[float | None]:
    """Each turn its improvement over the best value before it: turns after the best one are ignored, and so are others.

        G_t = max(0, v_t - b_t)    v_t >= start      b_0 = start,    b_(t+1) = max(b_t, v_t)
        G_t = v_t - b_t            v_t < start

    The sum over an episode is the best value less the start: repeating, oscillating and reordering earn nothing. A turn
    below the start, which is worse than none (a caught race), loses what a right one would have had. No turn is
    credited for a later one that it made possible: `improvement_ahead` does so.

    Range: [0, greatest value - start], less for values below the start.
    Source: own; potential-based shaping (Ng, Harada, Russell, ICML 1999) by the best so far, without discount, and
    `shaping.penalty`.

    Example:
        >>> improvement_only([0.25, 1.0, 0.5, 1.5, -0.25])
        [0.25, 0.75, 0.0, 0.5, -1.75]
    """
    return _over_valid(values, lambda valid: _gains(valid, start))


def improvement_ahead(values: Values, gamma: float = KEVIN_GAMMA, start: float = 0.0) -> list[float | None]:
    """Each turn its improvement and, discounted, those of later turns: credit for the turn that made one possible.

        G_t = sum over i >= t of gamma^(i - t) * g_i,    g of `improvement_only`

    Unlike `discounted_sum`, repeating a kernel earns nothing. With gamma = 1 it is the improvement that is still to
    come, best value of the episode less b_t; with small gamma, `improvement_only`.

    Range: that of `improvement_only`, times at most 1 / (1 - gamma) or the number of turns.
    Source: own; the discounted return of Kevin (Baronio et al., arXiv:2507.11948, section 3.2) of the telescoping
    rewards of `improvement_only`.

    Example:
        >>> improvement_ahead([0.0, 0.5, 0.5, 1.5], gamma=0.5)
        [0.375, 0.75, 0.5, 1.0]
    """
    _refuse_gamma(gamma)
    gains = improvement_only(values, start)
    return _backwards(gains, lambda later, gain: gain + gamma * later, empty=0.0)


def _gains(valid: list[float], start: float) -> list[float]:
    bests = pairwise(accumulate(valid, max, initial=start))
    return [
        after - before if value >= start else value - before
        for value, (before, after) in zip(valid, bests, strict=True)
    ]


def first_turn_anchored(values: Values) -> list[float | None]:
    """The first turn its own value, each later one its improvement over the first.

        G_0 = v_0,    G_t = v_t - v_0

    The first turn measures how well the problem is solved at once, the later ones how well feedback is used, whatever
    the problem. As long as each turn is a sample of its own, none can raise its credit by making another worse; the sum
    over turns would pay for a bad first one.

    Range: within plus or minus the width of the range of the values.
    Source: own.

    Example:
        >>> first_turn_anchored([0.25, 1.0, 0.0])
        [0.25, 0.75, -0.25]
    """
    return _over_valid(values, lambda valid: [valid[0], *(value - valid[0] for value in valid[1:])])


def _backwards(values: Values, step: Callable[[float, float], float], empty: float) -> list[float | None]:
    """Runs from the last turn to the first: step(credit of the next, value of this one)."""

    def credited(valid: list[float]) -> list[float]:
        return list(accumulate(reversed(valid), step, initial=empty))[:0:-1]

    return _over_valid(values, credited)


def _over_valid(values: Values, credit: Callable[[list[float]], list[float]]) -> list[float | None]:
    """Credits the turns that have a value, as if there were no others."""
    valid = [value for value in values if value is not None]
    credited = iter(credit(valid) if valid else [])
    return [None if value is None else next(credited) for value in values]


def _refuse_gamma(gamma: float) -> None:
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], got {gamma}")
