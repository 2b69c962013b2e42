"""The cost of a call: the work that a good kernel does, and the part of it that no kernel avoids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pkb_gym.engine.errors import DeclarationError
from pkb_gym.engine.problem.axes import Axes

CertainResource: TypeAlias = Literal["matrix", "memory", "link"]
"""Resources of a lower bound. Vector operations are none: how few of them a result takes is not known, and sums may be
taken on matrix units."""

MIN_LINK_BITS = 4
"""Bits that a number takes on a link at least.

What crosses a link may be coded. Of normal numbers, a lossless code keeps sign and significand, 8 bits of bfloat16; a
lossy one keeps what the check asks for, about log2(1 / tolerance) bits (rate-distortion theory, Shannon 1959). The
widest tolerance of the catalogue, 3 % of a row's norm, leaves 5 bits, and the published checks, 1 %, leave 6."""


@dataclass(frozen=True)
class Cost:
    """Work of one rank in a call: the numerators of the roofline.

    Operations are in flop, traffic in bytes. `link_in_bytes` and `link_out_bytes` cross the links of one rank.
    """

    matrix_flops: float = 0.0
    vector_flops: float = 0.0
    memory_bytes: float = 0.0
    link_in_bytes: float = 0.0
    link_out_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise DeclarationError(f"cost {name} must be a number >= 0, got {value!r}")


@dataclass(frozen=True)
class LeastWork:
    """The work that every legal kernel does, whatever its algorithm: the numerators of the lower bound.

    A legal kernel is right, within the check's tolerances, for all inputs of the declared shapes; docs/roofline.md
    describes the consequences for each resource. Where `work` is None the problem's cost counts, without its vector
    operations.

    Attributes:
        argument: Reason why no kernel does less, in a sentence or two.
        of: Resources for which the argument holds.
        work: Function that gives the least work of one rank where it is less than the cost, in the same units. Bytes
            over links are those of uncompressed numbers, before `MIN_LINK_BITS`.
    """

    argument: str
    of: tuple[CertainResource, ...] = ("matrix", "memory", "link")
    work: Callable[[Axes], Cost] | None = None

    def __post_init__(self) -> None:
        if not self.argument.endswith("."):
            raise DeclarationError(f"the argument of a lower bound must be a sentence, got {self.argument!r}")
        if "memory" not in self.of:
            raise DeclarationError(f"a lower bound counts the memory at least, got {self.of}")

    def on_rank(self, ax: Axes, cost: Cost) -> Cost:
        """The least work of one rank, with coded numbers on its links; never more than its cost.

        Args:
            ax: Axes of the rank.
            cost: Cost of the problem at these axes.
        """
        least = cost if self.work is None else self.work(ax)
        coded = MIN_LINK_BITS / (8 * ax.itemsize) if "link" in self.of else 0.0
        return Cost(
            matrix_flops=min(least.matrix_flops, cost.matrix_flops) if "matrix" in self.of else 0.0,
            memory_bytes=min(least.memory_bytes, cost.memory_bytes),
            link_in_bytes=min(least.link_in_bytes, cost.link_in_bytes) * coded,
            link_out_bytes=min(least.link_out_bytes, cost.link_out_bytes) * coded,
        )


def undeclared_cost(_: Axes) -> Cost:
    """The cost of a problem that declares none.

    Raises:
        DeclarationError: always.
    """
    raise DeclarationError("the problem declares no `cost`")


UNDECLARED_LEAST_WORK = LeastWork("The problem declares no `least_work`.")
"""The least work of a problem that declares none."""


def with_link(cost: Cost, link_in_bytes: float, link_out_bytes: float) -> Cost:
    """The cost with other traffic on the links."""
    return replace(cost, link_in_bytes=link_in_bytes, link_out_bytes=link_out_bytes)


def product_numbers(rows: int, columns: int, inner: int) -> int:
    """The count of numbers that determine a (rows, columns) product of that inner dimension.

    rank (rows + columns - rank), the dimension of the matrices of that rank, with rank = min(rows, columns, inner). It
    is less than rows * columns where the factors are smaller than the product.
    """
    rank = min(rows, columns, inner)
    return rank * (rows + columns - rank)
