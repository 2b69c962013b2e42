"""GemmReduceScatter: a product split over its inner dimension; partial products are summed and left split by rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Tensor,
    Trials,
    product_numbers,
    with_link,
)
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, rms, wide
from pkb_gym.engine.problem.sum_rules import RoundedSum, deviation_of_sum, rounded_sum

if TYPE_CHECKING:
    import torch

TERMS = 1024
"""Most terms of a whole-number sum that differ from 0, on average: 8 standard deviations stay within bfloat16's 256."""


def derive(ax: Axes) -> dict[str, int]:
    """Adds the inner dimension k and the output rows m of one rank."""
    return {"k": ax.divide("K", by="W"), "m": ax.divide("M", by="W")}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Whole and normal numbers by turns."""
    return {} if draw.timed else {"whole": draw.trial % 2 == 1}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal, B scaled so that outputs are of order 1; or -1, 0 and 1, whose sums are exact in any order."""
    ax = make.ax
    if not ax.flag("whole"):
        return make.normal("A_local"), make.normal("B_local", std=ax.K**-0.5)
    density = min(1.0, TERMS / ax.K) ** 0.5
    A_local, B_local = (2 * make.integers(name, 0, 2) - 1 for name in ("A_local", "B_local"))
    return A_local * (make.rand(*A_local.shape) < density), B_local * (make.rand(*B_local.shape) < density)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Both standard normal, from the published seed."""
    stream = make.seeded(42 + 16_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("A_local"), stream.normal("B_local")


def exact_product(context: CheckContext) -> RoundedSum:
    """This rank's rows of the product, and what rounding may amount to; nothing for whole numbers.

        u_d W sum_j |C_j| + (u_d / sqrt(W) + 4 u K) rms(C)

    C_j are the exact partial products, each rounded and summed in any order; u is the unit roundoff of the accumulator
    and counts only where that is the dtype itself.
    """
    import torch

    ax = context.ax
    rows = slice(ax.r * ax.m, (ax.r + 1) * ax.m)
    partials = torch.stack(
        [wide(context.tensor("A_local", rank)[rows]) @ wide(context.tensor("B_local", rank)) for rank in range(ax.W)]
    )
    total = partials.sum(0)
    if ax.flag("whole"):
        return RoundedSum(total, torch.zeros_like(total), torch.zeros_like(total))
    rounding = UNIT_ROUNDOFF[ax.dtype]
    accumulator = UNIT_ROUNDOFF["float64" if ax.dtype == "float64" else "float32"]
    order = 4 * accumulator * ax.K * rms(total)
    bound = rounding * (ax.W * partials.abs().sum(0) + ax.W**-0.5 * rms(total)) + order
    return RoundedSum(total, bound, deviation_of_sum(total, partials.square().sum(0), ax.W, rounding) + order)


def cost(ax: Axes) -> Cost:
    """One product; either partial products cross the link, or the factors of each rank's own rows do."""
    product, A_rows, B_shard = ax.m * ax.N, ax.m * ax.k, ax.k * ax.N
    others = ax.W - 1
    # A switch that adds hands down one sum, and one that multicasts takes a shard of B once; a lower bound must allow
    # for both.
    fewest_in = min(product, others * (A_rows + B_shard)) if others else 0
    fewest_out = min(others * product, others * A_rows + B_shard) if others else 0
    return Cost(
        matrix_flops=2 * ax.M * ax.k * ax.N,
        vector_flops=others * product,
        memory_bytes=(ax.M * ax.k + B_shard + product) * ax.itemsize,
        link_in_bytes=fewest_in * ax.itemsize,
        link_out_bytes=fewest_out * ax.itemsize,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link the sum of the others' products, and the own ones of their rows, or the factors."""
    others = ax.W - 1
    inward = product_numbers(ax.m, ax.N, others * ax.k)
    outward = product_numbers(others * ax.m, ax.N, ax.k)
    return with_link(cost(ax), inward * ax.itemsize, outward * ax.itemsize)


PROBLEM = Problem(
    name="GemmReduceScatter",
    upstream="16_gemm_reducescatter",
    category="tensor_parallel",
    origin="row-parallel linear layer with sequence-parallel output, in the manner of Megatron-LM",
    summary="A matrix product split over its inner dimension, whose partial results are summed across ranks and left "
    "split by rows.",
    tags=("reduce_scatter", "gemm", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"M": 32, "K": 64, "N": 48, "whole": False},
        "published": {"M": 1024, "K": 512, "N": 1024, "whole": False},
        "large": {"M": 8192, "K": 16384, "N": 8192, "whole": False},
    },
    args=(
        Tensor("A_local", ("M", "k"), about="columns r*k .. (r+1)*k-1 of A (M, K)"),
        Tensor("B_local", ("k", "N"), about="rows r*k .. (r+1)*k-1 of B (K, N)"),
    ),
    outputs=(
        Output(
            "C_local",
            ("m", "N"),
            check=rounded_sum(
                exact_product,
                "|C - A B| <= 2^-8 (W sum |A_j B_j| + rms(A B) / sqrt(W)) (bfloat16; exact for whole numbers)",
            ),
            about="rows r*m .. (r+1)*m-1 of A B",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The own rows depend on every foreign partial product of them, and theirs on the own ones: the numbers that "
        "determine products of that rank come in, and go out.",
        work=least_work,
    ),
)
