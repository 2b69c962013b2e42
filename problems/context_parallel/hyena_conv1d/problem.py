"""HyenaConv1d: causal short convolution of a zigzag-split sequence, with an exchange of halos."""

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
    SizeError,
    Tensor,
    Trials,
    close,
)

if TYPE_CHECKING:
    import torch

LONG_FILTER = 128
"""Taps of the medium-length filters."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Checks that halos come from one chunk, and keeps the default group."""
    if ax.l % 2:
        raise SizeError(f"axis l={ax.l} must be even; nearest {ax.l - 1} and {ax.l + 1}")
    if ax.l // 2 < ax.K - 1:
        raise SizeError(f"axis l={ax.l} must be at least 2*(K-1) = {2 * (ax.K - 1)}")
    return {"group": None}


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: the size, a short filter, chunks that are all tail, and a long filter.

    Odd trials have twice the batch and half the length.
    """
    if draw.timed:
        return {}
    short = draw.choice((2, 3, 4))
    modes: tuple[dict[str, AxisValue], ...] = (
        {},
        {"K": short, "B": 2 * ax.B, "l": max(ax.l // 4 * 2, 2 * short)},
        {"l": max(2, 2 * (ax.K - 1))},
        {"K": LONG_FILTER, "B": 2 * ax.B, "l": max(ax.l // 4 * 2, 2 * LONG_FILTER)},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal; on half of the trials all ranks have the same filters, as in training."""
    shared = make.trial % 4 in (1, 2)
    return make.normal("x"), (make.shared if shared else make).normal("weight")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal, every rank with its own filters, from the published seed."""
    stream = make.seeded(42 + 71_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("x"), stream.normal("weight")


def cost(ax: Axes) -> Cost:
    """Halos alone travel; ranks at either end have one neighbour."""
    halo = ax.B * ax.H * (ax.K - 1)
    neighbours = (ax.r > 0) + (ax.r < ax.W - 1)
    link = neighbours * halo * ax.itemsize
    return Cost(
        vector_flops=2 * ax.K * ax.B * ax.H * ax.l,
        memory_bytes=(2 * ax.B * ax.H * ax.l + ax.H * ax.K) * ax.itemsize,
        link_in_bytes=link,
        link_out_bytes=link,
    )


PROBLEM = Problem(
    name="HyenaConv1d",
    upstream="71_hyena_conv1d_boundary_exchange",
    category="context_parallel",
    origin="StripedHyena 2 / Evo 2 training (Savanna, NVIDIA NeMo): causal short convolution with zigzag splitting",
    summary="A causal depthwise convolution over a sequence split zigzag over the ranks, in which only the last few "
    "positions of each chunk go to a neighbour.",
    weaknesses=("B = 1, 7 taps and different filters on every rank are all that is ever run.",),
    tags=("halo", "send_recv", "convolution", "zigzag", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"B": 2, "H": 16, "l": 32, "K": 7},
        "published": {"B": 1, "H": 1024, "l": 2048, "K": 7},
        "large": {"B": 1, "H": 4096, "l": 32768, "K": 128},
    },
    args=(
        Tensor("x", ("B", "H", "l"), about="chunks r and 2W-1-r of the sequence's 2W"),
        Tensor("weight", ("H", 1, "K"), about="this rank's filters; the last tap meets the current position"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(Output("y", ("B", "H", "l"), check=close(rtol=1e-2, atol=1e-2)),),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Outputs at the start of a chunk depend on the K - 1 positions before it, which lie on the neighbour."
    ),
)
