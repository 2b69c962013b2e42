"""ShardedSoftmax: the softmax of each row of a matrix that is cut by columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, Draw, InputMaker, LeastWork, Output, Problem, Tensor, Trials, close

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the width of one rank's shard."""
    return {"Nl": ax.divide("N", by="W")}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, int]:
    """Outside timing, another number of rows on each trial."""
    return {} if draw.timed else {"M": draw.randint(ax.M // 2, ax.M)}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, spread wider, so that few elements decide a row and any rank may hold them."""
    return (make.normal("x") * 3,)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal with fixed seeds."""
    return (make.seeded(1000 * make.trial + make.rank).normal("x"),)


def cost(ax: Axes) -> Cost:
    """Five operations an element; maxima and sums of M rows are all-reduced in float32."""
    link_bytes = 2 * 2 * (ax.W - 1) / ax.W * ax.M * 4
    return Cost(
        vector_flops=5 * ax.M * ax.Nl,
        memory_bytes=2 * ax.M * ax.Nl * ax.itemsize,
        link_in_bytes=link_bytes,
        link_out_bytes=link_bytes,
    )


PROBLEM = Problem(
    name="ShardedSoftmax",
    category="tensor_parallel",
    summary="Every rank receives its columns of the row-wise softmax of a column-sharded matrix.",
    tags=("all_reduce",),
    dtypes=("bfloat16", "float32"),
    sizes={
        "tiny": {"M": 16, "N": 64},
        "published": {"M": 4096, "N": 8192},
        "large": {"M": 8192, "N": 32768},
    },
    args=(Tensor("x", ("M", "Nl"), about="columns r*Nl .. (r+1)*Nl-1 of the matrix"),),
    outputs=(Output("out", ("M", "Nl"), check=close(rtol=2**-7)),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every element is read, and every element of the output written. Two numbers a row cross the link.",
        of=("memory",),
    ),
)
