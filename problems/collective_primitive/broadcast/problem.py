"""Broadcast: one source rank's tensor is copied to every rank."""

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


def derive(ax: Axes) -> dict[str, int]:
    """Counts a negative src from the last rank."""
    return {"src": ax.rank_axis("src")}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Every rank is the source in turn, for several calls: one that uses scratch again too early shows it."""
    return {} if draw.timed else {"src": draw.root(ax.W)}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Always from rank 0."""
    return {"src": 0}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, different on every rank, so that neither own data nor stored data passes."""
    return (make.bits("tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """The constant r + 1."""
    import torch

    return (torch.full((make.ax.M, make.ax.N), make.rank + 1, dtype=make.dtype, device=make.device),)


def cost(ax: Axes) -> Cost:
    """The source reads and sends its tensor once (multicast or a pipelined chain), the others take it in once."""
    size = ax.M * ax.N * ax.itemsize
    is_source = ax.r == ax.src
    return Cost(
        memory_bytes=2 * size if is_source else size,
        link_in_bytes=0 if is_source else size,
        link_out_bytes=size if is_source and ax.W > 1 else 0,
    )


PROBLEM = Problem(
    name="Broadcast",
    upstream="3_broadcast",
    category="collective_primitive",
    origin="NCCL / torch.distributed broadcast",
    summary="One source rank's tensor is copied to every rank.",
    weaknesses=("Inputs are constant and src is always 0: an output filled with 1 passes.",),
    tags=("broadcast",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48, "src": -1},
        "published": {"M": 1024, "N": 1024, "src": 0},
        "large": {"M": 8192, "N": 4096, "src": 0},
    },
    args=(
        Tensor("tensor", ("M", "N"), about="the data on rank src; elsewhere only a template"),
        Scalar("src", "int", about="rank of the source, equal on all ranks"),
    ),
    outputs=(Output("out", ("M", "N"), check=same_bits()),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "The source's tensor is unknown elsewhere until it has come in. The source sends it once, as a switch may "
        "multicast it.",
    ),
)
