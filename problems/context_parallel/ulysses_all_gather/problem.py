"""UlyssesAllGather: every rank receives all ranks' tensors, one after another along the first dimension."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the shape of the result, the number of elements and the default group.

    Raises:
        SizeError: x has no dimension.
    """
    shape = ax.ints("x_shape")
    if not shape:
        raise SizeError("axis x_shape=() must have at least one dimension")
    out = (ax.W * shape[0], *shape[1:])
    return {"out_shape": out, "n": prod(shape), "group": None}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through the size's own shape, an odd 3-D one and an odd 1-D one."""
    shape = ax.ints("x_shape")
    if draw.timed or not prod(shape):
        return {}
    shapes = (shape, (shape[0] // 6 | 1, 3, 2), (prod(shape) - 1 | 1,))
    return {"x_shape": shapes[draw.trial % len(shapes)]}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("x"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 34_000 + make.rank + 1_000_003 * make.trial).normal("x"),)


def cost(ax: Axes) -> Cost:
    """Every foreign tensor comes in once."""
    size = ax.n * ax.itemsize
    return Cost(
        memory_bytes=(ax.W + 1) * size,
        link_in_bytes=(ax.W - 1) * size,
        # A switch that multicasts takes each tensor once; a lower bound must allow for it.
        link_out_bytes=size if ax.W > 1 else 0,
    )


PROBLEM = Problem(
    name="UlyssesAllGather",
    upstream="34_ulysses_all_gather_into_tensor_primitive",
    category="context_parallel",
    origin="VeOmni sequence-parallel primitives (DeepSpeed-Ulysses family)",
    summary="Every rank ends with all ranks' equally shaped tensors stacked one after another along the first "
    "dimension.",
    tags=("all_gather", "ulysses"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"x_shape": (32, 24)},
        "published": {"x_shape": (1024, 1024)},
        "large": {"x_shape": (8192, 8192)},
    },
    args=(
        Tensor("x", "x_shape", about="local shard, at least 1-D, same shape on all ranks"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output("out", "out_shape", check=same_bits(), about="(W*D0, ...): rows s*D0 .. (s+1)*D0-1 are rank s's x"),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "A foreign tensor is unknown to a rank until it has come in. The own one goes out once, as a switch may "
        "multicast it.",
    ),
)
