"""Conv2dBoundaryExchange: a 2-D convolution of an image split by rows; neighbours exchange boundary rows first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

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
    close,
)

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]"

IMAGE_ROWS = 128
"""Of one guidance branch; the published size has as many rows per rank as if half of the ranks held one branch."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the rows of one rank where the size does not give them, those of the output, and the default group."""
    if ax["Hl"] is None:
        ax = ax.replace(Hl=max(3, IMAGE_ROWS // max(1, ax.W // 2)))
    if ax.Hl < ax.padding:
        raise SizeError(f"axis Hl={ax.Hl} must be at least padding={ax.padding}")
    rows = (ax.Hl + 2 * ax.padding - ax.kh) // ax.stride + 1
    columns = (ax.width + 2 * ax.padding - ax.kw) // ax.stride + 1
    if rows < 1 or columns < 1:
        raise SizeError(f"{ax.Hl} x {ax.width} with padding={ax.padding} is smaller than the kernel {ax.kh} x {ax.kw}")
    return {"Hl": ax.Hl, "Ho": rows, "Wo": columns, "group": None}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing cycles through strides, paddings and kernels, with and without bias."""
    if draw.timed or draw.trial == 0:
        return {}
    modes: tuple[dict[str, AxisValue], ...] = (
        {"stride": 2},
        {"padding": 2, "kh": 5, "kw": 3, "has_bias": False},
        {"padding": 2, "stride": 2},
        {"padding": 0, "has_bias": False},
        {"padding": 1, "kh": 2, "kw": 5},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> Inputs:
    """Weights of std fan_in^(-1/2) for outputs of order 1; all differ by rank."""
    ax = make.ax
    bias = make.normal("bias") if ax.flag("has_bias") else None
    return make.normal("x"), make.normal("weight", std=(ax.C * ax.kh * ax.kw) ** -0.5), bias


def published_inputs(make: InputMaker) -> Inputs:
    """Standard normal, from the published seed."""
    stream = make.seeded(42 + 87_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("x"), stream.normal("weight"), stream.normal("bias") if make.ax.flag("has_bias") else None


def boundary_rows(ax: Axes) -> tuple[int, int]:
    """The number of rows of the neighbours above and below that the kernel's steps touch."""
    first = range(-ax.padding, -ax.padding + ax.Ho * ax.stride, ax.stride)
    touched = {row + u for row in first for u in range(ax.kh)}
    return sum(row < 0 for row in touched), sum(row >= ax.Hl for row in touched)


def cost(ax: Axes) -> Cost:
    """One convolution; of the neighbours' boundary rows those that are used, inner ranks having two neighbours."""
    above, below = boundary_rows(ax)
    has_above, has_below = ax.r > 0, ax.r < ax.W - 1
    row = ax.itemsize * ax.B * ax.C * ax.width
    bias = ax.Co if ax.flag("has_bias") else 0
    outputs = ax.B * ax.Co * ax.Ho * ax.Wo
    pixels = ax.B * ax.C * ax.Hl * ax.width
    if ax.stride > max(ax.kh, ax.kw):
        pixels = min(pixels, outputs // ax.Co * ax.C * ax.kh * ax.kw)
    return Cost(
        matrix_flops=2 * outputs * ax.C * ax.kh * ax.kw,
        memory_bytes=ax.itemsize * (pixels + ax.Co * ax.C * ax.kh * ax.kw + bias + outputs),
        link_in_bytes=row * (above * has_above + below * has_below),
        link_out_bytes=row * (below * has_above + above * has_below),
    )


def least_work(ax: Axes) -> Cost:
    """One product for each output and channel; over the link boundary rows, or one row of results if that is less."""
    base = cost(ax)
    results = ax.itemsize * ax.B * ax.Co * ax.Wo
    return replace(
        base,
        matrix_flops=2 * ax.B * ax.Co * ax.Ho * ax.Wo * ax.C,
        link_in_bytes=min(base.link_in_bytes, results),
        link_out_bytes=min(base.link_out_bytes, results),
    )


_PLAIN: dict[str, AxisValue] = {"kh": 3, "kw": 3, "stride": 1, "padding": 1, "has_bias": True}

PROBLEM = Problem(
    name="Conv2dBoundaryExchange",
    upstream="87_conv2d_boundary_exchange",
    category="geometric_spatial",
    origin="DistriFusion (MIT HAN Lab): patch-parallel convolution of diffusion U-Nets",
    summary="A 2-D convolution of an image split by rows over ranks; neighbours exchange boundary rows first.",
    weaknesses=(
        "Weights of unit variance make outputs of standard deviation 107, and strides, paddings other than 1 and no "
        "bias are never run.",
    ),
    tags=("halo", "all_gather", "convolution", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    # Hl None is 128 / max(1, W / 2).
    sizes={
        "tiny": {"B": 1, "C": 4, "Co": 4, "Hl": 4, "width": 8, **_PLAIN},
        "published": {"B": 1, "C": 1280, "Co": 1280, "Hl": None, "width": 128, **_PLAIN},
        "large": {"B": 2, "C": 1280, "Co": 1280, "Hl": 128, "width": 512, **_PLAIN},
    },
    args=(
        Tensor("x", ("B", "C", "Hl", "width"), about="rows r*Hl .. (r+1)*Hl-1 of the image"),
        Tensor("weight", ("Co", "C", "kh", "kw"), about="differs by rank; every rank uses its own"),
        Tensor("bias", ("Co",), optional="has_bias", about="likewise"),
        Scalar("stride", "int", about="along both axes; every rank begins at its first extended row"),
        Scalar("padding", "int", about="rows from each neighbour (zeros at the border), and zero columns"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "out",
            ("B", "Co", "Ho", "Wo"),
            # torch rounds sums up to 8 before it adds the bias, by up to 2^-6: 1.1 % of a typical element.
            check=close(rtol=1e-2, atol_rms=1.25e-2),
            about="this rank's rows",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Boundary outputs depend on the neighbours' rows. Fast algorithms (Winograd, FFT) need at least one product "
        "for each output and input channel, whatever the kernel (Winograd 1980).",
        work=least_work,
    ),
)
