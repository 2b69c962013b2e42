"""Advantages: returns of turns compared within a group, for policy gradients without a critic.

A group is some episodes of one problem, each the returns of its turns (see `returns`), None for an infrastructure
failure. Episodes may have different numbers of turns. Advantages have the shape of the group. None stays None and
counts for no other turn; a turn without any other to be compared with gets 0.

    >>> group = [[1.0, 2.0], [3.0, None]]
    >>> group_relative(group, normalise=False), leave_one_out(group)
    ([[-1.0, 0.0], [1.0, None]], [[-2.0, 0.0], [2.0, None]])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Literal, TypeAlias

Group: TypeAlias = Sequence[Sequence[float | None]]
"""Returns: episode by episode, turn by turn."""

Advantages: TypeAlias = list[list[float | None]]

Over: TypeAlias = Literal["turn", "group"]
"""The turns that are compared: those of the same number, or all of the group."""

EPSILON = 1e-4
"""Added to the standard deviation, so that equal returns are not divided by zero."""


def group_relative(group: Group, normalise: bool = True, over: Over = "turn") -> Advantages:
    """A return less the mean, with or without division by the standard deviation.

        A = (G - mean) / (std + 1e-4)    or    A = G - mean

    mean and std (of the population) are of all turns of that number, or of all turns of the group. Division gives
    problems of small and great spread equal weight. Without it, rare wins on easy or hard problems are not raised.

    Range: within +-sqrt(n - 1) for n returns, or within the width of the returns.
    Source: GRPO (Shao et al., DeepSeekMath, arXiv:2402.03300); without std, Dr. GRPO (Liu et al., arXiv:2503.20783).
    Over the group, Kevin (arXiv:2507.11948), which normalises over all turns of all trajectories of a problem.

    Example:
        >>> group_relative([[0.0], [1.0], [2.0]], normalise=False)
        [[-1.0], [0.0], [1.0]]
        >>> group_relative([[0.0, 1.0], [2.0, 3.0]], normalise=False, over="group")
        [[-1.5, -0.5], [0.5, 1.5]]
    """

    def relative(valid: list[float]) -> list[float]:
        mean = sum(valid) / len(valid)
        if not normalise:
            return [value - mean for value in valid]
        std = sqrt(sum((value - mean) ** 2 for value in valid) / len(valid))
        return [(value - mean) / (std + EPSILON) for value in valid]

    return _compared(group, over, relative)


def leave_one_out(group: Group, over: Over = "turn") -> Advantages:
    """A return less the mean of the others.

        A_i = G_i - (sum over j != i of G_j) / (n - 1) = n / (n - 1) * (G_i - mean)

    The mean of all contains the return itself, which shrinks its advantage by (n - 1) / n, and not equally where turns
    have different numbers of episodes; the mean of the others does not.

    Range: within the width of the returns.
    Source: TRLOO of Dr. Kernel (Liu et al., arXiv:2602.05885), turn by turn; over whole replies, RLOO (Kool, van Hoof,
    Welling, 2019; Ahmadian et al., arXiv:2402.14740).

    Example:
        >>> leave_one_out([[0.0, 1.0], [1.0, 3.0], [2.0]])
        [[-1.5, -2.0], [0.0, 2.0], [1.5]]
    """

    def others(valid: list[float]) -> list[float]:
        if len(valid) < 2:
            return [0.0] * len(valid)
        total = sum(valid)
        return [value - (total - value) / (len(valid) - 1) for value in valid]

    return _compared(group, over, others)


def _compared(group: Group, over: Over, compare: Callable[[list[float]], list[float]]) -> Advantages:
    if over not in ("turn", "group"):
        raise ValueError(f"over must be 'turn' or 'group', got {over!r}")
    found: Advantages = [[None] * len(episode) for episode in group]
    places: dict[int, list[tuple[int, int, float]]] = {}
    for row, episode in enumerate(group):
        for turn, value in enumerate(episode):
            if value is not None:
                places.setdefault(turn if over == "turn" else 0, []).append((row, turn, value))
    for same in places.values():
        values = [value for _, _, value in same]
        # Equal ones are exactly alike: what rounding leaves of a mean, an optimizer like Adam would blow up.
        advantages = compare(values) if min(values) < max(values) else [0.0] * len(values)
        for (row, turn, _), advantage in zip(same, advantages, strict=True):
            found[row][turn] = advantage
    return found
