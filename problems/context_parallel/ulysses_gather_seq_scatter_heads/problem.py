"""UlyssesGatherSeqScatterHeads: from sequence shards with all heads to whole sequences with some of the heads."""

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

LAYOUTS = ("BThd", "Thd", "hTd")


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds heads per rank, the length U before and S after trimming, shapes, dimensions, and the default group.

    Raises:
        SizeError: unknown layout, or more padding than sequence.
    """
    layout, padding = ax.one_of("layout", LAYOUTS), ax.number_or_none("padding")
    whole = ax.W * ax.T
    if padding is not None and not 0 <= padding < max(1, whole):
        raise SizeError(f"axis padding={padding} must be None or in 0 .. {whole - 1}, the sequence being W*T={whole}")
    unpadded = 0 if padding is None else whole - padding
    kept = unpadded if unpadded % ax.W else whole
    heads = ax.divide("h", by="W")
    sizes = {dim: ax.number(dim) for dim in layout}
    after = sizes | {"T": kept, "h": heads}
    return {
        "U": unpadded,
        "S": kept,
        "m": heads,
        "seq_dim": layout.index("T"),
        "head_dim": layout.index("h"),
        "x_shape": tuple(sizes.values()),
        "out_shape": tuple(after.values()),
        "width": prod(size for dim, size in sizes.items() if dim not in "Th"),
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through layouts, sequences that are trimmed, and two lengths that W divides and that are not."""
    if draw.timed or draw.trial == 0:
        return {}
    trimmed = draw.randint(1, ax.W - 1) if ax.W > 1 and ax.T else 0
    multiple = ax.W if ax.T > 1 else 0
    modes = (("Thd", trimmed), ("hTd", multiple), ("BThd", trimmed), ("BThd", None), ("Thd", 0), ("hTd", trimmed))
    layout, padding = modes[(draw.trial - 1) % len(modes)]
    return {"layout": layout, "padding": padding}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Always (B, T, h, d), never trimmed."""
    return {"layout": "BThd", "padding": None}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("x"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 36_000 + make.rank + 1_000_003 * make.trial).normal("x"),)


def cost(ax: Axes) -> Cost:
    """Positions that stay are read once, their foreign heads go out, the own heads of foreign positions come in."""
    own = min(max(ax.S - ax.r * ax.T, 0), ax.T)
    position = ax.m * ax.width * ax.itemsize  # one rank's heads at one position
    return Cost(
        memory_bytes=(own * ax.W + ax.S) * position,
        link_in_bytes=(ax.S - own) * position,
        link_out_bytes=(ax.W - 1) * own * position,
    )


PROBLEM = Problem(
    name="UlyssesGatherSeqScatterHeads",
    upstream="36_ulysses_gather_seq_scatter_heads",
    category="context_parallel",
    origin="VeOmni Ulysses layer (DeepSpeed-Ulysses, the exchange before attention)",
    summary="Turns a tensor that is split over ranks along the sequence into one that is split along the heads, "
    "optionally with padding at the end of the sequence cut off.",
    weaknesses=("unpadded_dim_size is always 0 and the dimensions are always 1 and 2: ignoring all three passes.",),
    tags=("all_to_all", "ulysses"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    # T is the local length. padding None leaves unpadded_dim_size 0; else it is W*T - padding.
    sizes={
        "tiny": {"B": 2, "T": 3, "h": 8, "d": 16, "layout": "BThd", "padding": 1},
        "published": {"B": 16, "T": 16, "h": 8, "d": 64, "layout": "BThd", "padding": None},
        "large": {"B": 1, "T": 8192, "h": 64, "d": 128, "layout": "BThd", "padding": None},
    },
    args=(
        Tensor("x", "x_shape", about="positions r*T .. (r+1)*T-1, all heads; (B, T, h, d), (T, h, d) or (h, T, d)"),
        Scalar("seq_dim", "int", about="dimension of T"),
        Scalar("head_dim", "int", about="dimension of h"),
        Group("group", about="None means all ranks"),
        Scalar("unpadded_dim_size", "int", axis="U", about="sequence length before padding; 0 means unknown"),
    ),
    outputs=(
        Output(
            "out",
            "out_shape",
            check=same_bits(),
            about="W*T positions, heads r*h/W .. (r+1)*h/W-1; only the first U positions if W does not divide U",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Heads that belong to another rank go out once, and the own heads of foreign positions come in once."
    ),
)
