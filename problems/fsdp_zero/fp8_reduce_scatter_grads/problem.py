"""FP8ReduceScatterGrads: gradients are rounded to 8-bit floats with delayed scaling, then averaged over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Tensor, Trials, with_link
from pkb_gym.engine.problem.rules import CheckContext, far, more_than, outside, rule, same_bits, wide
from pkb_gym.problems.fsdp_zero.amax_history import (
    history_values,
    published_values,
    rounded,
    scale_of,
    spread_values,
    with_least_scale,
)

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the length of the whole gradient."""
    return {"n": ax.p * ax.W}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs of very different magnitude, the same ones on all ranks: some runs are subnormal 8-bit floats everywhere."""
    grads = spread_values(make, "flat_grads", spread=1.0, magnitudes=make.shared)
    return with_least_scale(make, grads, history_values(make, "amax_history", grads))


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal gradients and a history of 1e-8."""
    return published_values(make, "flat_grads")


def mean_of_rounded(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks what no order of summation, and no other way of dividing by the scale, can give.

    Of an element whose quotient lies between two 8-bit floats a rank may take either; they are few. The sums may be
    made in bfloat16 or float32.
    """
    import torch

    ax, expected = context.ax, wide(context.expected)
    own = slice(ax.r * ax.p, (ax.r + 1) * ax.p)
    size = torch.zeros_like(expected)
    steps = torch.zeros_like(expected)
    for rank in range(ax.W):
        scale = scale_of(context, "flat_grads", rank)
        term = wide(rounded(context.tensor("flat_grads", rank)[own], scale)).abs()
        size += term / ax.W
        steps += torch.maximum(term / 8, scale * 2.0**-9) / ax.W
    bad = outside(wide(got), expected, steps + 2e-2 * size)
    bad |= more_than(0.02, wide(got), expected, 1e-2 * size)
    return bad | far(wide(got), expected, 2.2e-2 * torch.linalg.vector_norm(expected))


def cost(ax: Axes) -> Cost:
    """One byte an element and one scale cross the link to each peer; the endpoints do the adding."""
    exchanged = (ax.W - 1) * (ax.p + 4)
    return Cost(
        vector_flops=5 * ax.n + ax.W * ax.p,
        memory_bytes=ax.itemsize * (ax.n + ax.p) + 2 * 2 * ax.L,
        link_in_bytes=exchanged,
        link_out_bytes=exchanged,
    )


def least_work(ax: Axes) -> Cost:
    """One slice in."""
    base = cost(ax)
    return with_link(base, ax.p if ax.W > 1 else 0, base.link_out_bytes)


PROBLEM = Problem(
    name="FP8ReduceScatterGrads",
    upstream="52_fp8_reduce_scatter_grads",
    category="fsdp_zero",
    origin="FP8 gradient communication with Transformer Engine style amax history (FP8-LM / MS-AMP)",
    summary="Each rank rounds its gradients to 8-bit floats with a scale from a rolling history of maxima, then the "
    "ranks average them so that each keeps one slice.",
    weaknesses=(
        "The history is constant and far below the data: it never decides a scale, and its order cannot be seen.",
        "One scale for unit normal data: 8-bit subnormals, underflow and large stale maxima never occur.",
    ),
    tags=("reduce_scatter", "quantisation", "fp8"),
    dtypes=("bfloat16",),
    sizes={"tiny": {"p": 520, "L": 16}, "published": {"p": 4096, "L": 16}, "large": {"p": 16_777_216, "L": 16}},
    args=(
        Tensor("flat_grads", ("n",), about="this rank's whole gradient, W slices of p"),
        Tensor("amax_history", ("L",), dtype="bfloat16", about="past absolute maxima, oldest first"),
    ),
    outputs=(
        Output(
            "out_shard",
            ("p",),
            check=rule(
                mean_of_rounded,
                "||error|| <= 2.2e-2 ||out||; 98 % within 1e-2 of the mean |addend|, all within the mean float8 step",
            ),
            about="slice r of the mean over ranks of the rounded gradients",
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
        "The sum of each slice depends on every rank's part, which goes out once. A switch may add, so that one slice "
        "comes in.",
        work=least_work,
    ),
)
