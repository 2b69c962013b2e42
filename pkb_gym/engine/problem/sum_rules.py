"""A rule for sums over ranks: a bound of each element's error, and one of the norm of all errors.

The bound of an element has to hold where all of its roundings go the same way, and so it grows with the ranks: on eight
of them it allows for addends of half as many bits. That hardly ever happens, and not in all elements at once: the norm
of the errors of a sum of whole addends is a fraction of those bounds' norm. The rule is for addends that are alike in
size, as those of ranks are: behind one large addend each of the others is rounded as that one is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pkb_gym.engine.problem.rules import CheckContext, far, outside, wide

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem.inputs import InputMaker

DEVIATION = 0.43
"""Standard deviation of one rounding's relative error, in units of the roundoff, for numbers of any size alike."""

ROOM = 1.5
"""Largest norm, in units of the deviation that follows from the roundings. A sum in the dtype of its addends, one after
the other, has 1; addends of nine bits on eight ranks, instead of sixteen, have 1.8."""

ROOM_OF_FEW = 4.0
"""Additional room for the norm of few elements, over the square root of their number."""

SUM_NORM = "||error|| <= 1.5 times its expectation with one rounding per addition"
"""The second half of the rule in a few words, for the agent."""


MAX_EXPONENT = 5
"""Largest exponent of the powers of two by which elements differ in size."""


@dataclass(frozen=True)
class RoundedSum:
    """A sum and its roundings, each of the shape of the output and in the dtype of the comparison.

    Attributes:
        total: Exact sum.
        bound: Bound of the error of each element; 0 where sums are exact in any order.
        deviation: Standard deviation of that error.
    """

    total: torch.Tensor
    bound: torch.Tensor
    deviation: torch.Tensor


@dataclass(frozen=True)
class rounded_sum:  # noqa: N801  # reads as a function where rules are declared
    """|got - total| <= bound in each element, and ||(got - total) / deviation|| <= 1.5 sqrt(elements) over all.

    Attributes:
        compute: Module-level function of the problem that gives the sum from the inputs of all ranks.
        description: Description of the bound, for the agent.
        batched: Whether `wrong` takes a batch of calls, as in `Check`.
    """

    compute: Callable[[CheckContext], RoundedSum]
    description: str
    batched: bool = True

    def describe(self, dtype: str = "bfloat16") -> str:  # noqa: ARG002
        """The rule in a few words, for the agent."""
        return f"{self.description} and {SUM_NORM}"

    def wrong(self, got: torch.Tensor, context: CheckContext) -> torch.Tensor:
        """Marks the wrong elements of `got`."""
        return wrong_sum(got, self.compute(context))


def wrong_sum(got: torch.Tensor, expected: RoundedSum) -> torch.Tensor:
    """Marks the elements outside their bounds, or all where there are none and the norm is too large."""
    import torch

    values = wide(got)
    marks = outside(values, expected.total, expected.bound)
    elements = max(1, values.numel())
    # Each by its own deviation, or few large ones would decide. Where there is none, the bound is 0 as well.
    unit = torch.where(expected.deviation > 0, expected.deviation.reciprocal(), 0.0)
    too_far = far(values * unit, expected.total * unit, ROOM * elements**0.5 + ROOM_OF_FEW)
    return marks | (too_far & ~marks.any())


def deviation_of_sum(total: torch.Tensor, squares: torch.Tensor, addends: int, unit_roundoff: float) -> torch.Tensor:
    """Standard deviation of the error of a sum of which each addend, and each partial sum of them, is rounded.

    On average over the orders of addition, partial sums of k addends have the mean square k q + k (k - 1) c, where q is
    the addends' mean square and c the mean product of two of them.

    Args:
        total: Sum of the addends.
        squares: Sum of their squares.
        addends: Number of addends.
        unit_roundoff: Unit roundoff of the dtype in which they are rounded.
    """
    products = (total.square() - squares).clamp(min=0)  # of all ordered pairs
    mean_square = (addends + 1) / 2 * squares + (addends + 1) / 3 * products
    return DEVIATION * unit_roundoff * mean_square.sqrt()


def of_many_sizes(make: InputMaker, name: str) -> torch.Tensor:
    """Normal values of a tensor argument, element by element times a power of two that is the same on all ranks.

    A code that shares one scale among neighbours, for fewer bits of each, loses the small ones.
    """
    import torch

    with torch._C.DisableTorchFunction():  # as in `Stream`, whose tensors these are
        values = make.normal(name)
        return values * make.shared.powers_of_two(-MAX_EXPONENT, MAX_EXPONENT + 1, tuple(values.shape), values.dtype)
