"""Scatter: one source rank holds a stack of W blocks and sends block r to rank r."""

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
    """Counts a negative src from the last rank, and adds the shape of the argument, which depends on the rank."""
    src = ax.rank_axis("src")
    block = (ax.M, ax.N)
    return {"src": src, "tensor_shape": (ax.W, *block) if ax.r == src else block}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Every rank is the source in turn, for several calls: one that uses scratch again too early shows it."""
    return {} if draw.timed else {"src": draw.root(ax.W)}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Always from rank 0."""
    return {"src": 0}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, in the templates too, which must not reach any output."""
    return (make.bits("tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Block k of the source is the constant k + 1; templates are zero."""
    import torch

    ax = make.ax
    if make.rank != ax.src:
        return (torch.zeros(ax.M, ax.N, dtype=make.dtype, device=make.device),)
    blocks = torch.arange(1, ax.W + 1, dtype=make.dtype, device=make.device)
    return (blocks.view(ax.W, 1, 1).repeat(1, ax.M, ax.N),)


def cost(ax: Axes) -> Cost:
    """The source reads its stack and sends all blocks but its own; the others write what comes in."""
    block = ax.M * ax.N * ax.itemsize
    is_source = ax.r == ax.src
    return Cost(
        memory_bytes=(ax.W + 1) * block if is_source else block,
        link_in_bytes=0 if is_source else block,
        link_out_bytes=(ax.W - 1) * block if is_source else 0,
    )


PROBLEM = Problem(
    name="Scatter",
    upstream="5_scatter",
    category="collective_primitive",
    origin="NCCL / torch.distributed scatter",
    summary="One source rank holds a stack of W blocks and sends block r to rank r.",
    weaknesses=("Inputs are constant inside each block and src is always 0: an output filled with r + 1 passes.",),
    tags=("scatter",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48, "src": -1},
        "published": {"M": 1024, "N": 1024, "src": 0},
        "large": {"M": 4096, "N": 4096, "src": 0},
    },
    args=(
        Tensor("tensor", "tensor_shape", about="(W, M, N) on rank src: the blocks; (M, N) elsewhere: only a template"),
        Scalar("src", "int", about="rank of the source, equal on all ranks"),
    ),
    outputs=(Output("out", ("M", "N"), check=same_bits(), about="block r of rank src's stack"),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Every block but the source's own is unknown to its rank until it has come in, and leaves the source."
    ),
)
