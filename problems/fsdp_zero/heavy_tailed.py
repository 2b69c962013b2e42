"""Gradients whose norm hangs on few elements, so that no part of them and no law of large numbers gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import gamma, pi, prod, sqrt
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import AxisValue, InputMaker
from pkb_gym.engine.problem.rules import CheckContext, outside

if TYPE_CHECKING:
    import torch

OUTLIERS = 8
"""The outliers of each tensor; fewer in a small one. They have about half of its sum of squares."""

MIN_FACTOR, MAX_FACTOR = 0.75, 1.25
"""Range of an outlier's size, that of an equal share in this half being 1."""


NO_POISON: dict[str, AxisValue] = {"poison": None, "poisoned_rank": 0}

NORM_ERROR = 1e-4
NORM_RULE = "rtol=1e-4 of the baseline's norm, or as near as that to the exact one"


def outliers_of(elements: int) -> int:
    """The number of outliers in a tensor."""
    return min(OUTLIERS, -(-elements // 8))


def heavy_tailed(make: InputMaker, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    """Normal values of standard deviation `scale`, and outliers at random places, in the problem's dtype."""
    values = make.randn(*shape)
    count = outliers_of(values.numel())
    if count:
        size = sqrt(values.numel() / count) * (MIN_FACTOR + (MAX_FACTOR - MIN_FACTOR) * make.rand(count))
        sign = 2.0 * make.randint(0, 2, count) - 1
        # Places may coincide: one outlier less.
        values.view(-1)[make.randint(0, values.numel(), count)] = sign * size
    return (values * scale).to(make.dtype)


def poison(make: InputMaker, gradients: Sequence[torch.Tensor | None]) -> None:
    """Puts a NaN or an infinity into the gradients of one rank, as set by the axes `poison` and `poisoned_rank`.

    A norm that is no number clips nothing; an infinite one makes all gradients 0, and the infinite one NaN.
    """
    held = [g.view(-1) for g in gradients if g is not None and g.numel()]
    if make.ax["poison"] is None or make.ax.number("poisoned_rank") != make.rank or not held:
        return
    chosen = held[int(make.randint(0, len(held)))]
    chosen[int(make.randint(0, chosen.numel()))] = float(make.ax.text("poison"))


def expected_powers(shape: tuple[int, ...], scale: float, p: float) -> float:
    """The sum of |x|^p to be expected of such a tensor."""
    elements = prod(shape)
    count = outliers_of(elements)
    normal = 2 ** (p / 2) * gamma((p + 1) / 2) / sqrt(pi)  # E |N(0, 1)|^p
    # E u^p of uniform u
    outlier = (MAX_FACTOR ** (p + 1) - MIN_FACTOR ** (p + 1)) / ((p + 1) * (MAX_FACTOR - MIN_FACTOR))
    share = (elements / count) ** (p / 2) if count else 0.0
    return float(scale**p * ((elements - count) * normal + count * outlier * share))


def exact_norm(gradients: Iterable[torch.Tensor | None], p: float) -> torch.Tensor:
    """The p-norm of all elements of all gradients, 0-dim float64."""
    import torch

    powers = [g.double().abs().pow(p).sum() for g in gradients if g is not None]
    return torch.stack(powers).sum() ** (1 / p) if powers else torch.zeros((), dtype=torch.float64)


def norm_mark(
    got: torch.Tensor, context: CheckContext, exact: Callable[[CheckContext], Sequence[torch.Tensor]]
) -> torch.Tensor:
    """Marks a norm that is off by more than 1e-4, unless it is as near an exact norm as the baseline, to within 1e-4.

    The baseline's own float32 sum may be worse: on a CPU, torch adds the cubes of a million elements one after another,
    and is off by 7e-4.

    Args:
        got: Norm of the candidate, 0-dim.
        context: Context of the check.
        exact: Function to the norm in float64 of the baseline's terms, then of other terms that may be summed.
    """
    import torch

    expected, value = context.expected.double(), got.double()
    bad = outside(value, expected, NORM_ERROR * expected)
    if not bad.any():
        return bad
    truths = [truth.to(expected.device) for truth in exact(context)]
    own_error = (expected - truths[0]).abs()
    marks = [outside(value, truth, NORM_ERROR * truth + own_error) for truth in truths]
    return torch.stack(marks).all(dim=0)
