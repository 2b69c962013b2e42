"""ReduceScatter: all ranks' tensors are summed, and the sum is cut into W row blocks, one for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, AxisValue, Cost, Draw, InputMaker, LeastWork, Output, Problem, Tensor, Trials
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, wide
from pkb_gym.engine.problem.sum_rules import RoundedSum, deviation_of_sum, of_many_sizes, rounded_sum

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the rows of the whole tensor."""
    return {"D0": ax.W * ax.M}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Whole and normal numbers by turns."""
    return {} if draw.timed else {"whole": draw.trial % 2 == 1}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Whole numbers in [-8, 8], with sums exact in any order, or normal ones of many sizes, which no code shortens."""
    return (make.integers("tensor", -8, 9) if make.ax.flag("whole") else of_many_sizes(make, "tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """The constant r + 1."""
    import torch

    return (torch.full((make.ax.D0, make.ax.N), make.rank + 1, dtype=make.dtype, device=make.device),)


def exact_sum(context: CheckContext) -> RoundedSum:
    """The sum of all ranks' blocks, and 2^-8 W sum |x_s|, what W - 1 roundings amount to; 0 for whole numbers."""
    import torch

    ax = context.ax
    rows = slice(ax.r * ax.M, (ax.r + 1) * ax.M)
    terms = torch.stack([wide(context.tensor("tensor", rank)[rows]) for rank in range(ax.W)])
    total, roundoff = terms.sum(0), 0.0 if ax.flag("whole") else UNIT_ROUNDOFF[ax.dtype]
    deviation = deviation_of_sum(total, terms.square().sum(0), ax.W, roundoff)
    return RoundedSum(total, roundoff * ax.W * terms.abs().sum(0), deviation)


def cost(ax: Axes) -> Cost:
    """Every block for another rank goes out once."""
    block = ax.M * ax.N
    return Cost(
        vector_flops=(ax.W - 1) * block,
        memory_bytes=(ax.W + 1) * block * ax.itemsize,
        # A switch that adds hands down the sum alone; a lower bound must allow for it.
        link_in_bytes=block * ax.itemsize if ax.W > 1 else 0,
        link_out_bytes=(ax.W - 1) * block * ax.itemsize,
    )


PROBLEM = Problem(
    name="ReduceScatter",
    upstream="7_reducescatter",
    category="collective_primitive",
    origin="NCCL / torch.distributed reduce-scatter",
    summary="All ranks' tensors are summed elementwise and rank r receives row block r of the sum.",
    weaknesses=("Inputs are constant and all row blocks equal: writing W(W+1)/2, or the wrong block, passes.",),
    tags=("reduce_scatter",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48, "whole": False},
        "published": {"M": 1024, "N": 1024, "whole": False},
        "large": {"M": 4096, "N": 4096, "whole": False},
    },
    args=(Tensor("tensor", ("D0", "N"), about="this rank's addend, W row blocks of M rows one after another"),),
    outputs=(
        Output(
            "out",
            ("M", "N"),
            check=rounded_sum(exact_sum, "|out - sum| <= 2^-8 W sum |x_s| (bfloat16; exact for whole numbers)"),
            about="row block r of the sum",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The sum of each block depends on every rank's part, which goes out once. A switch may add, so that one block "
        "comes in.",
    ),
)
