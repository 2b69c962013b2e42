"""Gather: one rank collects all ranks' tensors, stacked in rank order; the others hand back their own."""

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
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Counts a negative dst from the last rank, and adds the shape of the result, which depends on the rank."""
    dst = ax.rank_axis("dst")
    block = (ax.M, ax.N)
    return {"dst": dst, "out_shape": (ax.W, *block) if ax.r == dst else block}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Every rank collects in turn, for several calls: a peer that uses scratch again too early shows it."""
    return {} if draw.timed else {"dst": draw.root(ax.W)}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Always on rank 0."""
    return {"dst": 0}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """The constant r + 1."""
    import torch

    return (torch.full((make.ax.M, make.ax.N), make.rank + 1, dtype=make.dtype, device=make.device),)


def cost(ax: Axes) -> Cost:
    """Every foreign block comes in once on dst; the others only send theirs and may return their input itself."""
    block = ax.M * ax.N * ax.itemsize
    is_root = ax.r == ax.dst
    return Cost(
        memory_bytes=(ax.W + 1) * block if is_root else block,
        link_in_bytes=(ax.W - 1) * block if is_root else 0,
        link_out_bytes=0 if is_root else block,
    )


PROBLEM = Problem(
    name="Gather",
    upstream="6_gather",
    category="collective_primitive",
    origin="NCCL / torch.distributed gather to one root",
    summary="Every rank's tensor is collected on one rank, stacked in rank order; the others return their own input.",
    weaknesses=("Inputs are constant and dst is always 0: writing s + 1 into slice s on rank 0 passes.",),
    tags=("gather",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48, "dst": -1},
        "published": {"M": 1024, "N": 1024, "dst": 0},
        "large": {"M": 4096, "N": 4096, "dst": 0},
    },
    args=(
        Tensor("tensor", ("M", "N"), about="this rank's block"),
        Scalar("dst", "int", about="rank that collects, equal on all ranks"),
    ),
    outputs=(
        Output(
            "out", "out_shape", check=same_bits(), about="(W, M, N) on rank dst; (M, N) elsewhere, equal to `tensor`"
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork("The foreign blocks are unknown to the root until they have come in, each from its own rank."),
)
