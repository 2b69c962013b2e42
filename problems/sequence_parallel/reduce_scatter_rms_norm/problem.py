"""ReduceScatterRMSNorm: the mean of the ranks' partial activations, cut by rows, and RMS normalisation of the rows."""

from __future__ import annotations

from math import sqrt
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
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, far, outside, rule, wide

if TYPE_CHECKING:
    import torch

ROW_ERROR = 1e-2
ELEMENT_ERROR = 8e-2


def derive(ax: Axes) -> dict[str, int]:
    """Adds a rank's rows, unless they are fixed, and the lengths of its share and of the input."""
    rows = ax.number_or_none("rows_per_rank")
    if rows is None:
        rows = ax.total_rows // max(ax.W, ax.fewest_shares)
    return {"rows": rows, "C": rows * ax.h, "length": ax.W * rows * ax.h}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Two values of eps in turn."""
    return {} if draw.timed else {"eps": (1e-5, 1e-6)[draw.trial % 2]}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal values times a factor of their row in 10^(-3 .. 1), common to the ranks; gamma 1 + 0.2 N(0, 1).

    The first row of each rank has a mean square next to eps, where eps and the division by W matter; the last one of
    several is zero.
    """
    import torch

    ax = make.ax
    factors = torch.pow(10.0, 4 * make.shared.rand(ax.W, ax.rows, 1) - 3)
    factors[:, :1] = sqrt(ax.W * ax.real("eps"))
    if ax.rows > 1:
        factors[:, -1] = 0.0
    x = make.randn(ax.W, ax.rows, ax.h) * factors
    return x.view(-1).to(make.dtype), make.shared.normal("gamma", std=0.2, mean=1.0)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Both standard normal; gamma from the seed of rank 0."""
    seed = 42 + 45_000 + 1_000_003 * make.trial
    return make.seeded(seed + make.rank).normal("rs_input_1d"), make.seeded(seed).normal("gamma")


def mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Rows and elements too far from the rows that sums in float32 give; zero rows must be zero."""
    import torch

    ax = context.ax
    segment = slice(ax.r * ax.C, (ax.r + 1) * ax.C)
    total = torch.zeros(ax.C, dtype=torch.float32, device=got.device)
    for rank in range(ax.W):
        total = total + context.tensor("rs_input_1d", rank)[segment]
    a = (total / ax.W).view(ax.rows, ax.h)
    inverse = torch.rsqrt(a.square().mean(-1, keepdim=True) + ax.real("eps"))
    exact = a * inverse * context.tensor("gamma").float()
    scale = DTYPE_SCALE[ax.dtype]
    bad_elements = outside(wide(got), exact, ELEMENT_ERROR * scale * exact.abs().clamp(min=1.0))
    bad_rows = far(wide(got), exact, ROW_ERROR * scale * torch.linalg.vector_norm(exact, dim=-1, keepdim=True), dim=-1)
    bad: torch.Tensor = bad_elements | (bad_rows & ~exact.isnan().any(-1, keepdim=True))
    return bad


def cost(ax: Axes) -> Cost:
    """Every foreign segment goes out once."""
    e = ax.itemsize
    return Cost(
        vector_flops=(ax.W - 1) * ax.C + 5 * ax.C,
        memory_bytes=e * (ax.length + ax.h + ax.C),
        # A switch that adds hands down the sum alone; a lower bound must allow for it.
        link_in_bytes=e * ax.C if ax.W > 1 else 0,
        link_out_bytes=e * (ax.W - 1) * ax.C,
    )


PROBLEM = Problem(
    name="ReduceScatterRMSNorm",
    upstream="45_reducescatter_fused_rmsnorm",
    category="sequence_parallel",
    origin="reduce-scatter and RMSNorm of sequence-parallel transformer blocks (Megatron-LM, vLLM, TensorRT-LLM)",
    summary="Average the ranks' partial activations, keep each rank's share of the rows, and normalise these rows.",
    weaknesses=(
        "The mean square is 4 to 5 orders above eps, so neither eps nor the division by W can be seen in the output.",
    ),
    tags=("reduce_scatter", "norm", "fusion"),
    dtypes=("bfloat16", "float16", "float32"),
    # Rows of a rank: rows_per_rank, or else total_rows over the ranks, at least fewest_shares of them.
    sizes={
        "tiny": {"h": 48, "rows_per_rank": 5, "total_rows": 20, "fewest_shares": 1, "eps": 1e-5},
        "published": {"h": 128, "rows_per_rank": None, "total_rows": 1024, "fewest_shares": 4, "eps": 1e-5},
        "large": {"h": 8192, "rows_per_rank": None, "total_rows": 8192, "fewest_shares": 1, "eps": 1e-5},
    },
    args=(
        Tensor("rs_input_1d", ("length",), about="partial activations; segment k of C elements holds rank k's rows"),
        Tensor("gamma", ("h",), about="weight, equal on all ranks"),
        Scalar("eps", "float", about="added to the mean square"),
    ),
    outputs=(
        Output(
            "out",
            ("rows", "h"),
            check=rule(
                mark,
                description="each row within 1e-2 of its norm, each element within 8e-2 max(1, |exact|) (bfloat16)",
            ),
            about="this rank's normalised rows",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The sum of each row depends on every rank's part, which goes out once. A switch may add, so that one share "
        "comes in.",
    ),
)
