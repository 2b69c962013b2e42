"""UlyssesGatherHeadsScatterSeq: from whole sequences with some of the heads to sequence shards with all heads."""

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
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch

LAYOUTS = ("BThd", "Thd", "hTd")


def with_sizes(ax: Axes) -> Axes:
    """Replaces T and h by what follows from positions and heads per rank and in all, where they are None.

    Raises:
        SizeError: W does not divide the heads.
    """
    h = ax.divide("heads", by="W") if ax["h"] is None else ax.h
    return ax.replace(T=ax.T_per_rank * ax.W if ax["T"] is None else ax.T, h=h)


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds positions per rank, how many of this rank's are real, shapes, dimensions, and the default group.

    Raises:
        SizeError: unknown layout.
    """
    ax = with_sizes(ax)
    layout, c = ax.one_of("layout", LAYOUTS), -(-ax.T // ax.W)
    sizes = {dim: ax.number(dim) for dim in layout}
    after = sizes | {"T": c, "h": ax.W * ax.h}
    return {
        "T": ax.T,
        "h": ax.h,
        "c": c,
        "real": min(max(ax.T - ax.r * c, 0), c),
        "seq_dim": layout.index("T"),
        "head_dim": layout.index("h"),
        "x_shape": tuple(sizes.values()),
        "out_shape": tuple(after.values()),
        "width": prod(size for dim, size in sizes.items() if dim != "T"),
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through layouts and lengths: the size's own, one that W does not divide, one below W."""
    if draw.timed or draw.trial == 0:
        return {}
    T = with_sizes(ax).T
    uneven = T // ax.W * ax.W + draw.randint(1, ax.W - 1) if ax.W > 1 else T + 1
    short = draw.randint(1, max(1, ax.W - 1))
    modes = (("Thd", uneven), ("BThd", short), ("hTd", uneven), ("BThd", T), ("Thd", short), ("BThd", uneven))
    layout, length = modes[(draw.trial - 1) % len(modes)]
    return {"layout": layout, "T": length}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Always (B, T, h, d), T a multiple of W."""
    T = with_sizes(ax).T
    return {"layout": "BThd", "T": T + -T % ax.W}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("x"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 37_000 + make.rank + 1_000_003 * make.trial).normal("x"),)


def cost(ax: Axes) -> Cost:
    """Real positions cross the link once unless they stay; zeros are only written."""
    position, real = ax.width * ax.itemsize, ax.number("real")
    return Cost(
        memory_bytes=(ax.T + ax.c * ax.W) * position,
        link_in_bytes=(ax.W - 1) * real * position,
        link_out_bytes=(ax.T - real) * position,
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
    least_work=LeastWork(
        "Real positions that belong to another rank go out once, and foreign heads of the own ones come in once."
    ),
)
