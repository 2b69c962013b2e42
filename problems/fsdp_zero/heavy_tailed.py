"""Gradients whose norm hangs on few elements, so that no part of them and no law of large numbers gives it."""

from __future__ import annotations

from math import gamma, pi, prod, sqrt
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import InputMaker

if TYPE_CHECKING:
    import torch

OUTLIERS = 8
"""Of each tensor; fewer in a small one. They have about half of its sum of squares."""

LEAST, MOST = 0.75, 1.25
"""Range of an outlier's size, that of an equal share in this half being 1."""


def outliers_of(elements: int) -> int:
    """How many elements of a tensor are outliers."""
    return min(OUTLIERS, -(-elements // 8))


def heavy_tailed(make: InputMaker, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    """Normal values of standard deviation `scale`, and outliers at random places, in the problem's dtype."""
    values = make.randn(*shape)
    count = outliers_of(values.numel())
    if count:
        size = sqrt(values.numel() / count) * (LEAST + (MOST - LEAST) * make.rand(count))
        sign = 2.0 * make.randint(0, 2, count) - 1
        # Places may coincide: one outlier less.
        values.view(-1)[make.randint(0, values.numel(), count)] = sign * size
    return (values * scale).to(make.dtype)


def expected_powers(shape: tuple[int, ...], scale: float, p: float) -> float:
    """The sum of |x|^p to be expected of such a tensor."""
    elements = prod(shape)
    count = outliers_of(elements)
    normal = 2 ** (p / 2) * gamma((p + 1) / 2) / sqrt(pi)  # E |N(0, 1)|^p
    outlier = (MOST ** (p + 1) - LEAST ** (p + 1)) / ((p + 1) * (MOST - LEAST))  # E u^p of uniform u
    share = (elements / count) ** (p / 2) if count else 0.0
    return float(scale**p * ((elements - count) * normal + count * outlier * share))
