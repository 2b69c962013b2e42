"""UlyssesGatherHeadsScatterSeq: from whole sequences with some of the heads to sequence shards with all heads."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, cast

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InputMaker,
    Output,
    Problem,
    Scalar,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch

LAYOUTS = ("BThd", "Thd", "hTd")


def with_sizes(axes: dict[str, AxisValue]) -> dict[str, AxisValue]:
    """Replaces T and h by what follows from positions and heads per rank and in all, where they are None.

    Raises:
        SizeError: W does not divide the heads.
    """
    world_size = cast(int, axes["W"])
    heads = cast(int, axes["heads"])
    if axes["h"] is None and heads % world_size:
        raise SizeError(f"axis heads={heads} must be a multiple of W={world_size}")
    length = cast(int, axes["T_per_rank"]) * world_size if axes["T"] is None else axes["T"]
    return axes | {"T": length, "h": heads // world_size if axes["h"] is None else axes["h"]}


def derive(axes: dict[str, AxisValue]) -> dict[str, AxisValue]:
    """Adds positions per rank, how many of this rank's are real, shapes, dimensions, and the default group.

    Raises:
        SizeError: unknown layout.
    """
    axes = with_sizes(axes)
    layout = axes["layout"]
    if layout not in LAYOUTS:
        raise SizeError(f"axis layout={layout!r} must be one of {', '.join(LAYOUTS)}")
    world_size, T = cast(int, axes["W"]), cast(int, axes["T"])
    c = -(-T // world_size)
    sizes = {dim: cast(int, axes[dim]) for dim in layout}
    after = sizes | {"T": c, "h": world_size * sizes["h"]}
    return axes | {
        "c": c,
        "real": min(max(T - cast(int, axes["r"]) * c, 0), c),
        "seq_dim": layout.index("T"),
        "head_dim": layout.index("h"),
        "x_shape": tuple(sizes.values()),
        "out_shape": tuple(after.values()),
        "width": prod(size for dim, size in sizes.items() if dim != "T"),
        "group": None,
    }


def robust_vary(axes: dict[str, AxisValue], draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through layouts and lengths: the size's own, one that W does not divide, one below W."""
    if draw.timed or draw.trial == 0:
        return axes
    axes = with_sizes(axes)
    world_size, T = cast(int, axes["W"]), cast(int, axes["T"])
    uneven = T // world_size * world_size + draw.randint(1, world_size - 1) if world_size > 1 else T + 1
    short = draw.randint(1, max(1, world_size - 1))
    modes = (("Thd", uneven), ("BThd", short), ("hTd", uneven), ("BThd", T), ("Thd", short), ("BThd", uneven))
    layout, length = modes[(draw.trial - 1) % len(modes)]
    return axes | {"layout": layout, "T": length}


def published_vary(axes: dict[str, AxisValue], draw: Draw) -> dict[str, AxisValue]:
    """Always (B, T, h, d), T a multiple of W."""
    axes = with_sizes(axes)
    return axes | {"layout": "BThd", "T": cast(int, axes["T"]) + -cast(int, axes["T"]) % cast(int, axes["W"])}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("x"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 37_000 + make.rank + 1_000_003 * make.trial).normal("x"),)


def cost(ax: Axes) -> Cost:
    """Real positions cross the link once unless they stay; zeros are only written."""
    position = ax.width * ax.itemsize
    return Cost(
        memory_bytes=(ax.T + ax.c * ax.W) * position,
        link_in_bytes=(ax.W - 1) * ax.real * position,
        link_out_bytes=(ax.T - ax.real) * position,
    )


PROBLEM = Problem(
    name="UlyssesGatherHeadsScatterSeq",
    upstream="37_ulysses_gather_heads_scatter_seq",
    category="context_parallel",
    origin="VeOmni Ulysses layer (DeepSpeed-Ulysses, the exchange after attention)",
    summary="Turns a tensor split over ranks along the heads into one split along the sequence, the sequence first "
    "being zero-padded to a multiple of the rank count.",
    weaknesses=(
        "Every legal W divides the sequence and the dimensions are always 1 and 2: never padding and ignoring both "
        "arguments passes.",
    ),
    tags=("all_to_all", "ulysses"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    # T is the global length and h the local number of heads; T None is T_per_rank * W, h None is heads / W.
    sizes={
        "tiny": {"B": 2, "T": 9, "h": 2, "d": 16, "T_per_rank": 0, "heads": 0, "layout": "BThd"},
        "published": {"B": 16, "T": 16, "h": 8, "d": 64, "T_per_rank": 0, "heads": 0, "layout": "BThd"},
        "large": {"B": 1, "T": None, "h": None, "d": 128, "T_per_rank": 8192, "heads": 64, "layout": "BThd"},
    },
    args=(
        Tensor("x", "x_shape", about="whole sequence, heads r*h .. (r+1)*h-1; (B, T, h, d), (T, h, d) or (h, T, d)"),
        Scalar("seq_dim", "int", about="dimension of T"),
        Scalar("head_dim", "int", about="dimension of h"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "out",
            "out_shape",
            check=same_bits(),
            about="positions r*c .. (r+1)*c-1 with c = ceil(T / W), W*h heads; +0 from position T on",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
)
