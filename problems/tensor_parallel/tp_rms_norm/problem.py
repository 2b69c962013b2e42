"""TPRMSNorm: RMS normalisation of rows whose hidden dimension is split over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, wide, within

if TYPE_CHECKING:
    import torch


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing, two epsilons by turns."""
    return {} if draw.timed else {"eps": (1e-5, 1e-6)[draw.trial % 2]}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal rows with a scale of their own on every rank; an eighth are zero and an eighth so small that eps counts.

    Without the other ranks' squares, or without normalisation, no row is nearly right.
    """
    ax = make.ax
    hidden = make.randn(ax.M, ax.n) * (4 * make.rand(ax.M, 1) - 2).exp()
    special = make.shared.permutation(ax.M)
    few = ax.M // 8
    hidden[special[:few]] = 0
    hidden[special[few : 2 * few]] *= 1e-3
    return hidden.to(make.dtype), make.normal("local_weight")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Both standard normal, from the published seed."""
    stream = make.seeded(42 + 18_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("local_hidden_states"), stream.normal("local_weight")


def exact_norm(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's columns, and 1e-2 |exact| for bfloat16: two roundings, and the order of a float32 sum."""
    import torch

    ax = context.ax
    squares = torch.zeros(ax.M, 1, dtype=torch.float64, device=context.expected.device)
    for rank in range(ax.W):
        hidden = wide(context.tensor("local_hidden_states", rank))
        squares = squares + hidden.square().sum(1, keepdim=True, dtype=torch.float64)
    inverse = torch.rsqrt(squares / (ax.n * ax.W) + ax.real("eps"))
    exact = wide(context.tensor("local_weight")) * (wide(context.tensor("local_hidden_states")) * inverse)
    # 1e-6 covers the subnormal numbers of float16.
    return exact, DTYPE_SCALE[ax.dtype] * (1e-2 * exact.abs() + 1e-6)


def cost(ax: Axes) -> Cost:
    """Hidden states stay on chip across the exchange of one float32 number a row."""
    elements = ax.M * ax.n
    # Endpoints that add need 2 (W - 1) / W times the rows' sums each way, a switch that adds and multicasts the sums
    # alone; a lower bound must allow for it.
    link = 4 * ax.M if ax.W > 1 else 0
    return Cost(
        vector_flops=4 * elements + 3 * ax.M,
        memory_bytes=(2 * elements + ax.n) * ax.itemsize,
        link_in_bytes=link,
        link_out_bytes=link,
    )


PROBLEM = Problem(
    name="TPRMSNorm",
    upstream="18_tp_rms_norm",
    category="tensor_parallel",
    origin="RMSNorm of Llama made tensor-parallel, as vLLM has it for MiniMax",
    summary="RMS normalisation of rows whose hidden dimension is split over the ranks, so the mean square needs a sum "
    "across ranks.",
    weaknesses=(
        "Every row has mean square 1 on every rank: skipping the exchange is off by 1 to 2 percent, and epsilon has "
        "no visible effect.",
    ),
    tags=("all_reduce", "normalisation", "latency"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"M": 16, "n": 64, "eps": 1e-5},
        "published": {"M": 1024, "n": 1024, "eps": 1e-5},
        "large": {"M": 32768, "n": 4096, "eps": 1e-5},
    },
    args=(
        Tensor("local_hidden_states", ("M", "n"), about="columns r*n .. (r+1)*n-1 of the rows"),
        Tensor("local_weight", ("n",), about="gain of these columns"),
        Scalar("variance_epsilon", "float", axis="eps", about="added to the mean square over all n*W columns"),
    ),
    outputs=(
        Output(
            "out",
            ("M", "n"),
            check=within(exact_norm, description="|out - exact| <= 1e-2 |exact| + 1e-6 (bfloat16)"),
            about="this rank's columns of the normalised rows",
        ),
    ),
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The shard and the gain are read and the result is written. What crosses the link, one number a row, is too "
        "little to count.",
        of=("memory",),
    ),
)
