"""UlyssesQKVGatherSeqScatterHeads: the exchange before attention, on one fused Q|K|V tensor."""

from __future__ import annotations

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


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds columns per rank, the length U before and S after trimming, shapes, and the default group.

    Raises:
        SizeError: more padding than sequence.
    """
    padding, whole = ax.number_or_none("padding"), ax.W * ax.T
    if padding is not None and not 0 <= padding < max(1, whole):
        raise SizeError(f"axis padding={padding} must be None or in 0 .. {whole - 1}, the sequence being W*T={whole}")
    unpadded = None if padding is None else whole - padding
    kept = unpadded if unpadded and unpadded % ax.W else whole
    ax = ax.replace(E=ax.h * ax.d)
    w = ax.divide("E", by="W")
    batch = () if ax["B"] is None else (ax.B,)
    return {
        "E": ax.E,
        "U": unpadded,
        "S": kept,
        "w": w,
        "rows": batch[0] if batch else 1,
        "seq_dim": len(batch),
        "qkv_shape": (*batch, ax.T, 3 * ax.E),
        "out_shape": (*batch, kept, 3 * w) if ax.flag("restore_shape") else (*batch, kept, 3, w),
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through trimmed sequences and others, joined results and not, with a batch dimension and without."""
    if draw.timed or draw.trial == 0:
        return {}
    trimmed = draw.randint(1, ax.W - 1) if ax.W > 1 and ax.T else 0
    multiple = ax.W if ax.T > 1 else 0
    batch = ax["B"]
    modes = (
        (batch, trimmed, False),
        (None, trimmed, True),
        (batch, multiple, False),
        (None, None, False),
        (batch, 0, True),
        (batch, trimmed, True),
        (None, multiple, True),
    )
    mode = modes[(draw.trial - 1) % len(modes)]
    return dict(zip(("B", "padding", "restore_shape"), mode, strict=True))


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Never trimmed, always joined."""
    return {"padding": None, "restore_shape": True}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("qkv_tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 38_000 + make.rank + 1_000_003 * make.trial).normal("qkv_tensor"),)


def cost(ax: Axes) -> Cost:
    """Positions that stay are read once; their foreign columns go out, the own ones of foreign positions come in."""
    own = min(max(ax.S - ax.r * ax.T, 0), ax.T)
    position = ax.rows * 3 * ax.w * ax.itemsize  # one rank's columns at one position
    return Cost(
        memory_bytes=(own * ax.W + ax.S) * position,
        link_in_bytes=(ax.S - own) * position,
        link_out_bytes=(ax.W - 1) * own * position,
    )


PROBLEM = Problem(
    name="UlyssesQKVGatherSeqScatterHeads",
    upstream="38_ulysses_gather_seq_scatter_heads_qkv",
    category="context_parallel",
    origin="VeOmni Ulysses layer (DeepSpeed-Ulysses, fused-QKV form)",
    summary="The sequence-to-heads exchange applied to one fused Q|K|V projection output: each rank ends with the "
    "whole sequence and its own share of the columns of Q, of K and of V.",
    weaknesses=("unpadded_dim_size is always None and restore_shape always True: ignoring both passes.",),
    tags=("all_to_all", "ulysses"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    # T is the local length; B None leaves the dimension out. padding None leaves unpadded_dim_size None; else it is
    # W*T - padding.
    sizes={
        "tiny": {"B": 2, "T": 3, "h": 8, "d": 16, "padding": 1, "restore_shape": True},
        "published": {"B": 16, "T": 16, "h": 8, "d": 64, "padding": None, "restore_shape": True},
        "large": {"B": 1, "T": 8192, "h": 64, "d": 128, "padding": None, "restore_shape": True},
    },
    args=(
        Tensor("qkv_tensor", "qkv_shape", about="positions r*T .. (r+1)*T-1; columns are Q, K, V of E each"),
        Scalar("seq_dim", "int", about="dimension of T"),
        Group("group", about="None means all ranks"),
        Scalar("unpadded_dim_size", "int", axis="U", optional=True, about="sequence length before padding, or None"),
        Scalar("restore_shape", "bool", about="whether the last two dimensions of the result are joined"),
    ),
    outputs=(
        Output(
            "out",
            "out_shape",
            check=same_bits(),
            about="W*T positions (the first U if W does not divide U), columns r*w .. (r+1)*w-1 of Q, K and V, w = E/W",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Columns that belong to another rank go out once, and the own columns of foreign positions come in once."
    ),
)
