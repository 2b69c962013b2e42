"""RingAttention: exact attention over a sequence that is split over ranks."""

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
    Tensor,
    Trials,
    with_link,
)
from pkb_gym.engine.problem.rules import all_of, norm_close, rows_close

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's number of positions, and keeps the default group."""
    return {"S": ax.number_or_none("S") or max(1, ax.T // ax.W), "group": None}


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: with and without mask, with the default scale and with others far from it."""
    if draw.timed:
        return {}
    scale = draw.choice((0.6, 1.6)) * draw.uniform(0.9, 1.1) * ax.d**-0.5
    modes: tuple[dict[str, AxisValue], ...] = (
        {},
        {"causal": False, "softmax_scale": scale},
        {"causal": True, "softmax_scale": scale},
        {"causal": False, "softmax_scale": None},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Standard normal: scores have std 1 at the default scale."""
    return make.normal("q"), make.normal("k"), make.normal("v")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs of `robust`, from the published seed."""
    stream = make.seeded(42 + 54_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("q"), stream.normal("k"), stream.normal("v")


def cost(ax: Axes) -> Cost:
    """Mean over the ranks, since a kernel may balance the causal mask's work among them.

    The sequence is exchanged by the cheaper of two ways: keys and values sent to those who need them, or heads for
    positions and back.
    """
    width, length = ax.h * ax.d, ax.W * ax.S
    elements = ax.B * ax.S * width
    pairs = ax.S * (length + 1) / 2 if ax.flag("causal") else ax.S * length
    senders = (ax.W - 1) / (2 if ax.flag("causal") else 1)  # foreign blocks that a rank needs
    link = min(2 * senders, 4 * (ax.W - 1) / ax.W) * elements * ax.itemsize
    return Cost(
        matrix_flops=4 * ax.B * width * pairs,
        vector_flops=5 * ax.B * ax.h * pairs,
        memory_bytes=4 * elements * ax.itemsize,
        link_in_bytes=link,
        link_out_bytes=link,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link results, or keys and values; with a mask that holds for the last rank and the first."""
    elements = ax.B * ax.S * ax.h * ax.d * ax.itemsize
    return with_link(cost(ax), elements if ax.W > 1 else 0, min(2, ax.W - 1) * elements)


PROBLEM = Problem(
    name="RingAttention",
    upstream="54_ring_attention",
    category="context_parallel",
    origin="Ring Attention (Liu et al., 2023), in the style of ring-flash-attention",
    summary="Exact attention over a sequence that is split over ranks: keys and values travel around a ring while each "
    "rank folds in one block at a time for its own queries.",
    weaknesses=("Only causal = True with the default scale is run, so that both arguments may be ignored.",),
    tags=("ring", "attention", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    # S None is T / W, T being the global length.
    sizes={
        "tiny": {"B": 2, "S": 4, "T": None, "h": 8, "d": 16, "causal": True, "softmax_scale": None},
        "published": {"B": 16, "S": None, "T": 16, "h": 8, "d": 64, "causal": True, "softmax_scale": None},
        "large": {"B": 1, "S": 4096, "T": None, "h": 32, "d": 128, "causal": True, "softmax_scale": None},
    },
    args=(
        Tensor("q", ("B", "S", "h", "d"), about="queries of positions r*S .. (r+1)*S-1"),
        Tensor("k", ("B", "S", "h", "d"), about="keys of the same positions"),
        Tensor("v", ("B", "S", "h", "d"), about="values of the same positions"),
        Scalar("softmax_scale", "float", optional=True, about="None means d^(-1/2)"),
        Scalar("causal", "bool", about="mask future positions"),
        Group("group", about="None means all ranks"),
    ),
    # Correct bfloat16 variants differ by 0.003 in norm, keys and values of 8 bits by 0.006. An absolute tolerance would
    # see nothing of long sequences, whose outputs are averages of many values.
    outputs=(Output("out", ("B", "S", "h", "d"), check=all_of((norm_close(rel=5e-3), rows_close(rel=2e-2)))),),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The result depends on every foreign key and value before it: as many numbers come in as it has; a rank's "
        "keys and values, or what they add to other results, go out.",
        work=least_work,
    ),
)
