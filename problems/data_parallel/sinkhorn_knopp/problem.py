"""SinkhornKnopp: balance scores so that every prototype gets equal mass over all ranks' samples."""

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
)
from pkb_gym.engine.problem.rules import CheckContext, outside, rule, wide

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-3
ROW_SUM_ERROR = 1e-4


def derive(ax: Axes) -> dict[str, int]:
    """Adds the size G of the group and this rank's samples."""
    samples = ax.ints_or_none("samples")
    return {"G": len(ax.group_ranks("group")), "b": ax.b if samples is None else samples[ax.r]}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: ragged samples with an empty rank, no rounds at all, interleaved groups, other temperatures."""
    if draw.timed or draw.trial == 0:
        return {}
    samples = [draw.randint(max(1, ax.b // 4), ax.b) for _ in range(ax.W)]
    if draw.trial % 2 and ax.W > 2:
        samples[draw.randrange(ax.W)] = 0
    parts = 2 if draw.trial % 4 == 3 and ax.W > 2 else 1  # in a group of one rank nothing is exchanged
    return {
        "samples": tuple(samples),
        "I": (draw.randint(2, 6), 1, 0, draw.randint(3, 5))[draw.trial % 4],
        "tau": round(draw.uniform(0.05, 0.1), 3),
        "group": tuple(tuple(range(i, ax.W, parts)) for i in range(parts)) if parts > 1 else None,
    }


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """0.3 N(0, 1) plus as much per prototype, differently on each rank, so that column sums differ between ranks."""
    scores = 0.3 * (make.randn(make.ax.b, make.ax.K) + make.randn(make.ax.K))
    return scores.to(make.dtype), own_count(make)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """0.01 N(0, 1): nearly flat."""
    stream = make.seeded(42 + 80_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("teacher_output", std=0.01), own_count(make)


def own_count(make: InputMaker) -> torch.Tensor:
    """B."""
    import torch

    return torch.tensor([make.ax.b], device=make.device)


def mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Elements off by more than 1e-3 (|expected| + 1 / K), and rows that do not sum to 1, where any round is made."""
    expected, ax = wide(context.expected), context.ax
    bad = outside(wide(got), expected, TOLERANCE * (expected.abs() + 1 / ax.K))
    if ax.I > 0:
        error = (wide(got).sum(-1, keepdim=True) - 1).abs()
        bad |= ~(error <= ROW_SUM_ERROR) & ~expected.isnan().any(-1, keepdim=True)
    return bad


def cost(ax: Axes) -> Cost:
    """Scaling vectors instead of the matrix: an exponential and a quotient, two passes a round, and the result."""
    elements = ax.b * ax.K
    exchange = ax.I * 2 * (ax.G - 1) / ax.G * 4 * ax.K
    return Cost(
        vector_flops=elements * (4 + 4 * ax.I),
        memory_bytes=(ax.itemsize + 4) * elements,
        link_in_bytes=exchange,
        link_out_bytes=exchange,
    )


MODES = {"tau": 0.07, "I": 3, "samples": None, "group": None}

PROBLEM = Problem(
    name="SinkhornKnopp",
    upstream="80_dinov2_distributed_sinkhorn_knopp",
    category="data_parallel",
    origin="DINOv2, Sinkhorn-Knopp centring of the teacher in the iBOT patch loss",
    summary="Balance the teacher's scores so that every prototype gets equal mass over the global batch.",
    weaknesses=(
        "Scores are almost flat and every output is about 1 / K: constants, and no communication at all, pass.",
        "All ranks have the same number of samples.",
    ),
    tags=("all_reduce", "iterative"),
    dtypes=("float32", "bfloat16", "float16"),
    sizes={
        "tiny": {"b": 16, "K": 64, **MODES},
        "published": {"b": 1024, "K": 16384, **MODES},
        "large": {"b": 4096, "K": 131072, **MODES},
    },
    args=(
        Tensor("teacher_output", ("b", "K"), about="scores of this rank's samples; b may differ by rank"),
        Scalar("teacher_temp", "float", axis="tau", about="temperature"),
        Tensor("n_masked_patches_tensor", (1,), dtype="int64", about="number of samples of this rank"),
        Scalar("n_iterations", "int", axis="I", about="rounds"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "assignments",
            ("b", "K"),
            dtype="float32",
            check=rule(mark, description="rtol=1e-3, atol=1e-3 / K; each row sums to 1 within 1e-4 (after any round)"),
            about="this rank's rows; each sums to 1",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Scores are read and assignments are written. What crosses the link, sums over samples, is too little to "
        "count.",
        of=("memory",),
    ),
)
