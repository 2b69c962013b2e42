"""AllToAll: rank s sends its block d to rank d, a transposition of blocks between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Tensor, Trials
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Block d is the constant 10 r + d."""
    import torch

    ax = make.ax
    blocks = 10 * make.rank + torch.arange(ax.W, dtype=make.dtype, device=make.device)
    return (blocks.view(ax.W, 1, 1).repeat(1, ax.M, ax.N),)


def cost(ax: Axes) -> Cost:
    """Every block but the own one crosses the link once."""
    block = ax.M * ax.N * ax.itemsize
    return Cost(
        memory_bytes=2 * ax.W * block,
        link_in_bytes=(ax.W - 1) * block,
        link_out_bytes=(ax.W - 1) * block,
    )


PROBLEM = Problem(
    name="AllToAll",
    upstream="8_alltoall",
    category="collective_primitive",
    origin="NCCL / torch.distributed even all-to-all",
    summary="Every rank holds one block for each rank and sends block d to rank d.",
    weaknesses=("Inputs are constant inside each block and over trials: writing 10 s + r into block s passes.",),
    tags=("all_to_all",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48},
        "published": {"M": 1024, "N": 1024},
        "large": {"M": 4096, "N": 4096},
    },
    args=(Tensor("tensor", ("W", "M", "N"), about="tensor[d] is the block for rank d"),),
    outputs=(Output("out", ("W", "M", "N"), check=same_bits(), about="slice s is the block from rank s"),),
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork("Every block for another rank goes out once, and every foreign one comes in once."),
)
