"""AllGather: every rank receives all ranks' tensors, stacked in rank order."""

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
    """The constant r + 1."""
    import torch

    return (torch.full((make.ax.M, make.ax.N), make.rank + 1, dtype=make.dtype, device=make.device),)


def cost(ax: Axes) -> Cost:
    """Every foreign block comes in once."""
    block = ax.M * ax.N * ax.itemsize
    return Cost(
        memory_bytes=(ax.W + 1) * block,
        link_in_bytes=(ax.W - 1) * block,
        # A switch that multicasts takes each block once; a lower bound must allow for it.
        link_out_bytes=block if ax.W > 1 else 0,
    )


PROBLEM = Problem(
    name="AllGather",
    upstream="2_allgather",
    category="collective_primitive",
    origin="NCCL / torch.distributed all-gather",
    summary="Every rank holds one tensor and every rank receives all of them, stacked in rank order.",
    weaknesses=("Inputs are constant inside each tensor and over trials: writing s + 1 into slice s passes.",),
    tags=("all_gather",),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "N": 48},
        "published": {"M": 1024, "N": 1024},
        "large": {"M": 4096, "N": 4096},
    },
    args=(Tensor("tensor", ("M", "N"), about="this rank's block"),),
    outputs=(Output("out", ("W", "M", "N"), check=same_bits(), about="slice s is rank s's block"),),
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "A foreign block is unknown to a rank until it has come in. The own one goes out once, as a switch may "
        "multicast it.",
    ),
)
