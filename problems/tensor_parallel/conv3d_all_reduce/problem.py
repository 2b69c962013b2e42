"""Conv3dAllReduce: a 3-D convolution whose input channels are split over ranks; partial results are summed."""

from __future__ import annotations

from dataclasses import replace
from math import prod
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
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, all_of, norm_close, outside, rms, rule, wide

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]"


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's channels, the shapes, and the default group."""
    ax = ax.replace(Ci=ax.divide("C", by="W"))
    for channels in ("Ci", "Co"):
        ax.divide(channels, by="groups")
    size, kernel, stride, padding, dilation = (
        ax.ints(name) for name in ("size", "kernel", "stride", "padding", "dilation")
    )
    out_size = tuple(
        (n + 2 * pad - reach * (k - 1) - 1) // step + 1
        for n, k, step, pad, reach in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    if min(out_size) < 1:
        raise SizeError(f"axis size={size} is too small for kernel={kernel}, padding={padding}, dilation={dilation}")
    return {
        "Ci": ax.Ci,
        "input_shape": (ax.N, ax.Ci, *size),
        "weight_shape": (ax.Co, ax.Ci // ax.groups, *kernel),
        "out_shape": (ax.N, ax.Co, *out_size),
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing cycles through stride, padding, dilation and groups, with and without bias."""
    if draw.timed or draw.trial == 0:
        return {}
    local = ax.C // ax.W
    grouped = 2 if local % 2 == 0 and ax.Co % 2 == 0 else 1
    size, kernel = ax.ints("size"), ax.ints("kernel")
    fits = all(n >= 2 * (k - 1) + 1 for n, k in zip(size, kernel, strict=True))
    modes: tuple[dict[str, AxisValue], ...] = (
        {"padding": (0, 1, 1), "stride": (1, 1, 2)},
        {"stride": (1, 2, 2), "padding": (1, 0, 1), "groups": grouped},
        {"padding": (2, 1, 0), "has_bias": False},
        {"dilation": (2, 1, 2) if fits else (1, 1, 1), "padding": (1, 2, 1), "groups": grouped},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> Inputs:
    """Weights of std fan_in^(-1/2) for outputs of order 1, and a bias as large, equal on all ranks."""
    ax = make.ax
    fan_in = ax.C // ax.groups * prod(ax.ints("kernel"))
    bias = make.shared.normal("bias") if ax.flag("has_bias") else None
    return make.normal("input"), make.normal("weight", std=fan_in**-0.5), bias


def published_inputs(make: InputMaker) -> Inputs:
    """Standard normal input and weights, and the same small bias at all times."""
    import torch

    ax, stream = make.ax, make.seeded(42 + 76_000 + make.rank + 1_000_003 * make.trial)
    bias = torch.linspace(-0.1, 0.1, ax.Co, device=make.device).to(make.dtype) if ax.flag("has_bias") else None
    return stream.normal("input"), stream.normal("weight"), bias


def rounded_sum_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks |got - expected| > 1e-2 |expected| + 8e-2 max(2, sqrt(W)) rms(expected), scaled by dtype.

    The baseline rounds the W partial results, every sum of them, and the sum with the bias, which may nearly cancel it;
    a kernel may round once.
    """
    expected = wide(context.expected)
    absolute = 8e-2 * max(2.0, context.world_size**0.5) * rms(expected)
    return outside(wide(got), expected, DTYPE_SCALE[context.ax.dtype] * (1e-2 * expected.abs() + absolute))


def cost(ax: Axes) -> Cost:
    """One convolution of the local channels; partial results leave once and the sum comes in once.

    Endpoints that add need 2 (W - 1) / W times the output each way, a switch that adds and multicasts the output alone.
    Gathering inputs and filters instead, with W times the work, moves less where outputs are the larger.
    """
    inputs, weights, outputs = (prod(ax.ints(name)) for name in ("input_shape", "weight_shape", "out_shape"))
    bias = ax.Co if ax.flag("has_bias") else 0
    link = ax.itemsize * min(outputs, (ax.W - 1) * (inputs + weights)) if ax.W > 1 else 0
    return Cost(
        matrix_flops=2 * outputs * (weights // ax.Co),
        vector_flops=outputs if ax.flag("has_bias") else 0,
        memory_bytes=ax.itemsize * (inputs + weights + bias + outputs),
        link_in_bytes=link,
        link_out_bytes=link,
    )


def least_work(ax: Axes) -> Cost:
    """One product for each output and channel that it sees; over the link results, or inputs and filters."""
    inputs, weights, outputs = (prod(ax.ints(name)) for name in ("input_shape", "weight_shape", "out_shape"))
    return replace(
        cost(ax),
        matrix_flops=2 * outputs * (ax.Ci // ax.groups),
        link_out_bytes=ax.itemsize * min(outputs, inputs + weights) if ax.W > 1 else 0,
    )


_PLAIN: dict[str, AxisValue] = {
    "kernel": (3, 3, 3),
    "stride": (1, 1, 1),
    "padding": (0, 0, 0),
    "dilation": (1, 1, 1),
    "groups": 1,
    "has_bias": True,
}

PROBLEM = Problem(
    name="Conv3dAllReduce",
    upstream="76_opensora_conv3d_allreduce",
    category="tensor_parallel",
    origin="Open-Sora 2.0 video autoencoder: row-parallel 3-D convolution with channel chunking",
    summary=(
        "A 3-D convolution whose input channels are split over ranks; the partial results are summed by an all-reduce "
        "and the bias is added once."
    ),
    weaknesses=(
        "The bias never changes and is tiny beside outputs of standard deviation 118, for whose rounding the tolerance "
        "does not allow; padding, stride, dilation and no bias are never run.",
    ),
    tags=("all_reduce", "convolution", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"N": 1, "C": 8, "Co": 8, "size": (5, 8, 8), **_PLAIN},
        "published": {"N": 1, "C": 512, "Co": 512, "size": (19, 66, 66), **_PLAIN},
        "large": {"N": 1, "C": 512, "Co": 512, "size": (19, 130, 130), **_PLAIN},
    },
    args=(
        Tensor("input", "input_shape", about="(N, Ci, T, H, W), this rank's channels r*Ci .. (r+1)*Ci-1"),
        Tensor("weight", "weight_shape", about="(Co, Ci/groups, kt, kh, kw), the filters' part for these channels"),
        Tensor("bias", ("Co",), optional="has_bias", about="equal on all ranks"),
        Scalar("stride", "ints", about="along T, H, W"),
        Scalar("padding", "ints", about="zeros on each side, along T, H, W"),
        Scalar("dilation", "ints", about="along T, H, W"),
        Scalar("groups", "int", about="of the local convolution"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "out",
            "out_shape",
            check=all_of(
                (
                    rule(
                        rounded_sum_mark,
                        description="|out - ref| <= 1e-2 |ref| + 8e-2 max(2, sqrt W) rms of ref (bfloat16)",
                    ),
                    norm_close(7e-3),
                )
            ),
            about="(N, Co, T', H', W'), equal on all ranks",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The sum depends on every foreign partial result. Fast algorithms (Winograd, FFT) need at least one product "
        "for each output and input channel, whatever the kernel (Winograd 1980).",
        work=least_work,
    ),
)
