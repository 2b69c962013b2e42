"""GemmAllReduce: each rank multiplies its slice of the contraction dimension; the partial products are summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    Cost,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Tensor,
    Trials,
    product_numbers,
    with_link,
)
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, wide
from pkb_gym.engine.problem.sum_rules import RoundedSum, deviation_of_sum, rounded_sum

if TYPE_CHECKING:
    import torch


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Both standard normal and different on every rank and trial, so that no stored answer passes."""
    return make.normal("A_local"), make.normal("B_local")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of `robust`, from the published seed."""
    stream = make.seeded(42 + 13_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("A_local"), stream.normal("B_local")


def exact_product(context: CheckContext) -> RoundedSum:
    """The product, and what rounding may amount to.

        2^-8 (W sum_r |C_r| + sqrt(K)) + 4 u W K

    C_r are the exact partial products, sqrt(K) their standard deviation, and the last term, with the unit roundoff u
    of the accumulator, is what the order of the sums over k amounts to; it counts only where that is the dtype itself.
    """
    import torch

    ax = context.ax
    partials = torch.stack(
        [wide(context.tensor("A_local", rank)) @ wide(context.tensor("B_local", rank)) for rank in range(ax.W)]
    )
    accumulator = UNIT_ROUNDOFF["float64" if ax.dtype == "float64" else "float32"]
    total, roundoff, order = partials.sum(0), UNIT_ROUNDOFF[ax.dtype], 4 * accumulator * ax.W * ax.K
    bound = roundoff * (ax.W * partials.abs().sum(0) + ax.K**0.5) + order
    return RoundedSum(total, bound, deviation_of_sum(total, partials.square().sum(0), ax.W, roundoff) + order)


def cost(ax: Axes) -> Cost:
    """One product; every partial product leaves once and the sum comes in once."""
    elements = ax.M * ax.N
    return Cost(
        matrix_flops=2 * elements * ax.K,
        vector_flops=(ax.W - 1) / ax.W * elements,
        memory_bytes=(ax.M * ax.K + ax.K * ax.N + elements) * ax.itemsize,
        # Endpoints that add need 2 (W - 1) / W times the tensor each way, a switch that adds and multicasts the tensor
        # alone; a lower bound must allow for it.
        link_in_bytes=elements * ax.itemsize if ax.W > 1 else 0,
        link_out_bytes=elements * ax.itemsize if ax.W > 1 else 0,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link the sum of the others, and the own partial product, or their factors."""
    inward = product_numbers(ax.M, ax.N, (ax.W - 1) * ax.K)
    outward = product_numbers(ax.M, ax.N, ax.K) if ax.W > 1 else 0
    return with_link(cost(ax), inward * ax.itemsize, outward * ax.itemsize)


PROBLEM = Problem(
    name="GemmAllReduce",
    upstream="13_gemm_allreduce",
    category="tensor_parallel",
    origin="row-parallel linear layer of Megatron-LM",
    summary="Each rank multiplies its slice of the contraction dimension; the products are summed over all ranks.",
    tags=("all_reduce", "gemm", "overlap"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "K": 64, "N": 48},
        "published": {"M": 1024, "K": 512, "N": 1024},
        "large": {"M": 4096, "K": 7168, "N": 8192},
    },
    args=(
        Tensor("A_local", ("M", "K"), about="columns r*K .. (r+1)*K-1 of A (M, W*K)"),
        Tensor("B_local", ("K", "N"), about="rows r*K .. (r+1)*K-1 of B (W*K, N)"),
    ),
    outputs=(
        Output(
            "out",
            ("M", "N"),
            check=rounded_sum(exact_product, "|out - A B| <= 2^-8 (W sum |A_r B_r| + sqrt(K)) (bfloat16)"),
            about="A B, the same on every rank",
        ),
    ),
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The sum depends on every foreign partial product, and theirs on the own one: the numbers that determine a "
        "product of that rank come in, and go out.",
        work=least_work,
    ),
)
