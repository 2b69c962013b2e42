"""AllReduce: every rank receives the elementwise sum of all ranks' tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Tensor, Trials, with_link
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, wide
from pkb_gym.engine.problem.sum_rules import RoundedSum, deviation_of_sum, of_many_sizes, rounded_sum

if TYPE_CHECKING:
    import torch


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Normal ones of many sizes, so that no closed form, and no narrower number on the wire, gives the sum."""
    return (of_many_sizes(make, "tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """The constant r + 1."""
    import torch

    return (torch.full((make.ax.M, make.ax.N), make.rank + 1, dtype=make.dtype, device=make.device),)


def exact_sum(context: CheckContext) -> RoundedSum:
    """The sum of all ranks' tensors, and 2^-8 W sum |x_r|: what W - 1 roundings in any order can amount to."""
    W, roundoff = context.world_size, UNIT_ROUNDOFF[context.ax.dtype]
    total = wide(context.tensor("tensor", 0)).clone()
    sizes, squares = total.abs(), total.square()
    for rank in range(1, W):
        term = wide(context.tensor("tensor", rank))
        total += term
        sizes += term.abs()
        squares += term.square()
    return RoundedSum(total, sizes.mul_(roundoff * W), deviation_of_sum(total, squares, W, roundoff))


def cost(ax: Axes) -> Cost:
    """Endpoints do the adding: reduce-scatter, then all-gather."""
    elements = ax.M * ax.N
    share = (ax.W - 1) / ax.W
    return Cost(
        vector_flops=share * elements,
        memory_bytes=2 * elements * ax.itemsize,
        link_in_bytes=2 * share * elements * ax.itemsize,
        link_out_bytes=2 * share * elements * ax.itemsize,
    )


def least_work(ax: Axes) -> Cost:
    """One tensor over the link each way."""
    size = ax.M * ax.N * ax.itemsize if ax.W > 1 else 0
    return with_link(cost(ax), size, size)


PROBLEM = Problem(
    name="AllReduce",
    upstream="1_allreduce",
    category="collective_primitive",
    origin="NCCL / torch.distributed all-reduce",
    summary="Every rank holds a tensor of the same shape and every rank receives the elementwise sum over all ranks.",
    weaknesses=("Inputs are constant over positions and trials: writing W(W+1)/2 without communication passes.",),
    tags=("all_reduce",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48},
        "published": {"M": 1024, "N": 1024},
        "large": {"M": 8192, "N": 4096},
    },
    args=(Tensor("tensor", ("M", "N"), about="this rank's addend"),),
    outputs=(Output("out", ("M", "N"), check=rounded_sum(exact_sum, "|out - sum| <= 2^-8 W sum |x_r| (bfloat16)")),),
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "A rank's sum depends on every element of the others, and theirs on every one of its own: one tensor in, one "
        "out. A switch that adds and multicasts needs no more.",
        work=least_work,
    ),
)
