"""UlyssesAllToAll: pieces cut along one dimension are exchanged and joined along another."""

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
    Scalar,
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch


def dims_of(ax: Axes) -> tuple[list[int], int, int]:
    """The shape of x, and both dimensions counted from the first.

    Raises:
        SizeError: x has no such dimension, or fewer than two.
    """
    shape = list(ax.ints("x_shape"))
    dims = ax.scatter_dim, ax.gather_dim
    if len(shape) < 2 or not all(-len(shape) <= dim < len(shape) for dim in dims):
        raise SizeError(
            f"axes scatter_dim, gather_dim={dims} must name dimensions of x_shape={tuple(shape)}, 2 or more"
        )
    return shape, dims[0] % len(shape), dims[1] % len(shape)


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the shape of the result, the number of elements and the default group."""
    shape, scatter, gather = dims_of(ax)
    if shape[scatter] % ax.W:
        raise SizeError(f"axis x_shape={tuple(shape)} must be a multiple of W={ax.W} along dimension {scatter}")
    out = list(shape)
    out[scatter] //= ax.W
    out[gather] *= ax.W
    return {"out_shape": tuple(out), "n": prod(shape), "group": None}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through layouts and pairs of dimensions, the size's own first."""
    if draw.timed:
        return {}
    shape, scatter, gather = dims_of(ax)
    cut, joined = shape[scatter], shape[gather]
    heads = ax.W * max(1, cut // (4 * ax.W))
    length = max(1, joined // 4)
    modes: tuple[tuple[tuple[int, ...], int, int], ...] = (
        (tuple(shape), scatter, gather),
        ((2, length, heads, 4), 2, 1),
        ((2, heads, length, 4), -3, -2),
        ((cut, joined), 0, 0),
        ((joined, cut), 1, 0),
        ((3, heads, 5), 1, 0),
    )
    chosen = modes[draw.trial % len(modes)]
    return dict(zip(("x_shape", "scatter_dim", "gather_dim"), chosen, strict=True))


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("x"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 33_000 + make.rank + 1_000_003 * make.trial).normal("x"),)


def cost(ax: Axes) -> Cost:
    """Every piece but the own one crosses the link once."""
    link = (ax.W - 1) / ax.W * ax.n * ax.itemsize
    return Cost(memory_bytes=2 * ax.n * ax.itemsize, link_in_bytes=link, link_out_bytes=link)


PROBLEM = Problem(
    name="UlyssesAllToAll",
    upstream="33_ulysses_all_to_all_tensor_primitive",
    category="context_parallel",
    origin="VeOmni sequence-parallel primitives (idea from DeepSpeed-Ulysses)",
    summary="Every rank cuts its tensor into one piece per rank along one dimension, the pieces are exchanged "
    "all-to-all, and each rank glues what it received along another dimension.",
    weaknesses=("The dimensions are always 0 and 1 of a 2-D tensor: ignoring both arguments passes.",),
    tags=("all_to_all", "ulysses"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"x_shape": (32, 24), "scatter_dim": 0, "gather_dim": 1},
        "published": {"x_shape": (1024, 1024), "scatter_dim": 0, "gather_dim": 1},
        "large": {"x_shape": (16384, 8192), "scatter_dim": 0, "gather_dim": 1},
    },
    args=(
        Tensor("x", "x_shape", about="local shard, at least 2-D, same shape on all ranks"),
        Scalar("scatter_dim", "int", about="dimension that is cut into W pieces; negative counts from the last"),
        Scalar("gather_dim", "int", about="dimension along which pieces are joined in rank order; may be the same"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output("out", "out_shape", check=same_bits(), about="x_shape / W along scatter_dim, then * W along gather_dim"),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork("Every piece for another rank goes out once, and every foreign one comes in once."),
)
