"""FP8AllGatherParams: slices of the parameters are rounded to 8-bit floats with delayed scaling, then gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Tensor, Trials
from pkb_gym.engine.problem.rules import CheckContext, far, more_than, outside, rule, same_bits, wide
from pkb_gym.problems.fsdp_zero.amax_history import (
    history_values,
    published_values,
    scale_of,
    spread_values,
    with_least_scale,
)

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the length of all slices."""
    return {"n": ax.p * ax.W}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs of very different magnitude, down to subnormal 8-bit floats; the ranks' scales differ by up to 2^6."""
    shard = spread_values(make, "flat_param_shard", spread=3.0, magnitudes=make)
    return with_least_scale(make, shard, history_values(make, "amax_history", shard))


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal parameters and a history of 1e-8."""
    return published_values(make, "flat_param_shard")


def all_rounded(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks what no way of dividing by the scale can give.

    Of an element whose quotient lies between two 8-bit floats either may be taken; they are few.
    """
    import torch

    world_size = context.world_size
    expected = wide(context.expected).view(world_size, -1)
    value = wide(got).view(world_size, -1)
    scales = torch.stack([scale_of(context, "flat_param_shard", rank) for rank in range(world_size)])
    bfloat16_step = 2.0**-7 * expected.abs()
    float8_step = torch.maximum(expected.abs() / 8, scales[:, None] * 2.0**-9)
    bad = outside(value, expected, float8_step + bfloat16_step)
    bad |= more_than(0.03, value, expected, bfloat16_step)
    bad |= far(value, expected, 1.2e-2 * torch.linalg.vector_norm(expected, dim=1, keepdim=True), dim=1)
    return bad.view(-1)


def cost(ax: Axes) -> Cost:
    """One byte an element and one scale come in from each peer; what arrives is scaled back."""
    return Cost(
        vector_flops=5 * ax.p + (ax.W - 1) * ax.p,
        memory_bytes=ax.itemsize * (ax.p + ax.n) + 2 * 2 * ax.L,
        link_in_bytes=(ax.W - 1) * (ax.p + 4),
        # A switch that multicasts takes each slice once; a lower bound must allow for it.
        link_out_bytes=ax.p + 4 if ax.W > 1 else 0,
    )


PROBLEM = Problem(
    name="FP8AllGatherParams",
    upstream="53_fp8_allgather_params",
    category="fsdp_zero",
    origin="FP8 parameter all-gather for FSDP (torchao / Transformer Engine style delayed scaling)",
    summary="Each rank rounds its parameter slice to 8-bit floats with a scale from a rolling history of maxima, and "
    "all ranks gather the rounded slices.",
    weaknesses=(
        "The history is constant and far below the data: it never decides a scale, and its order cannot be seen.",
        "No 8-bit subnormals, no stale maxima and nearly equal scales; 8 KB per rank measure only launch latency.",
    ),
    tags=("all_gather", "quantisation", "fp8"),
    dtypes=("bfloat16",),
    sizes={"tiny": {"p": 520, "L": 16}, "published": {"p": 4096, "L": 16}, "large": {"p": 33_554_432, "L": 16}},
    args=(
        Tensor("flat_param_shard", ("p",), about="flat elements r*p .. (r+1)*p-1 of the parameters"),
        Tensor("amax_history", ("L",), dtype="bfloat16", about="past absolute maxima, oldest first"),
    ),
    outputs=(
        Output(
            "full",
            ("n",),
            check=rule(
                all_rounded,
                "||error|| <= 1.2e-2 ||slice||; 97 % within a bfloat16 step, all within one float8 step",
            ),
            about="the rounded slices in rank order",
        ),
        Output(
            "updated_history",
            ("L",),
            dtype="bfloat16",
            check=same_bits(),
            about="without its oldest entry",
            is_local=True,
        ),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every foreign code is unknown to a rank until it has come in. The own ones go out once, as a switch may "
        "multicast them.",
    ),
)
