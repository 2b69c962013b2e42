"""Reduce: the elementwise sum of all ranks' tensors lands on one rank; the others hand back a copy of their own."""

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
    Scalar,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, rule, unequal, wide
from pkb_gym.engine.problem.sum_rules import SUM_NORM, RoundedSum, deviation_of_sum, of_many_sizes, wrong_sum

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Counts a negative dst from the last rank."""
    return {"dst": ax.rank_axis("dst")}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Every rank is the root in turn, for several calls; one trial in three has whole numbers.

    A peer that uses scratch again too early shows it between two calls of one root.
    """
    if draw.timed:
        return {}
    return {"dst": draw.root(ax.W), "whole": draw.trial % 3 == 1}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Always to rank 0."""
    return {"dst": 0}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Whole numbers in [-8, 8], with sums exact in any order, or normal ones of many sizes, which no code shortens."""
    return (make.integers("tensor", -8, 9) if make.ax.flag("whole") else of_many_sizes(make, "tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """The constant r + 1."""
    import torch

    return (torch.full((make.ax.M, make.ax.N), make.rank + 1, dtype=make.dtype, device=make.device),)


def mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """On dst the sum, exact for whole numbers, else within what W - 1 roundings amount to; elsewhere the own tensor."""
    import torch

    ax = context.ax
    if context.rank != ax.dst:
        return unequal(got, context.tensor("tensor"))
    terms = torch.stack([wide(context.tensor("tensor", rank)) for rank in range(ax.W)])
    total, roundoff = terms.sum(0), 0.0 if ax.flag("whole") else UNIT_ROUNDOFF[ax.dtype]
    deviation = deviation_of_sum(total, terms.square().sum(0), ax.W, roundoff)
    return wrong_sum(got, RoundedSum(total, roundoff * ax.W * terms.abs().sum(0), deviation))


def cost(ax: Axes) -> Cost:
    """Additions spread over the ranks; the root takes in one tensor (a pipelined chain, or the switch adds)."""
    elements = ax.M * ax.N
    size = elements * ax.itemsize
    is_root = ax.r == ax.dst
    return Cost(
        vector_flops=(ax.W - 1) / ax.W * elements,
        memory_bytes=2 * size,
        link_in_bytes=size if is_root and ax.W > 1 else 0,
        link_out_bytes=0 if is_root else size,
    )


PROBLEM = Problem(
    name="Reduce",
    upstream="4_reduce",
    category="collective_primitive",
    origin="NCCL / torch.distributed reduce to one root",
    summary="The elementwise sum of all ranks' tensors lands on one rank; the others return a copy of their input.",
    weaknesses=("Inputs are constant and dst is always 0: writing W(W+1)/2 on rank 0 passes.",),
    tags=("reduce",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48, "dst": -1, "whole": False},
        "published": {"M": 1024, "N": 1024, "dst": 0, "whole": False},
        "large": {"M": 8192, "N": 4096, "dst": 0, "whole": False},
    },
    args=(
        Tensor("tensor", ("M", "N"), about="this rank's addend"),
        Scalar("dst", "int", about="rank that receives the sum, equal on all ranks"),
    ),
    outputs=(
        Output(
            "out",
            ("M", "N"),
            check=rule(
                mark,
                f"on dst |out - sum| <= 2^-8 W sum |x_r| (bfloat16; 0 for whole numbers) and {SUM_NORM}, else exact",
            ),
            about="the sum on rank dst, a copy of `tensor` elsewhere",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "The root's sum depends on every element of every other rank. A switch may add, so that one tensor comes in."
    ),
)
