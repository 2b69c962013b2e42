"""KalmanFilterOptimizer: one extended-Kalman-filter step on covariance blocks that are split over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    InputMaker,
    LeastWork,
    Output,
    OutputList,
    Problem,
    Scalar,
    Tensor,
    TensorList,
    Trials,
)
from pkb_gym.engine.problem.rules import CheckContext, rms, within

if TYPE_CHECKING:
    import torch

Blocks: TypeAlias = "list[torch.Tensor | None]"
Inputs: TypeAlias = "tuple[Blocks, torch.Tensor, Blocks, Blocks]"


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the shapes of this rank's blocks, and of all ranks' weights."""
    by_rank = ax.int_lists("blocks_by_rank") if ax["blocks_by_rank"] else (ax.ints("blocks"),) * ax.W
    return {
        "blocks": by_rank[ax.r],
        "vectors": tuple((n, 1) for n in by_rank[ax.r]),
        "matrices": tuple((n, n) for n in by_rank[ax.r]),
        "all_vectors": tuple((n, 1) for mine in by_rank for n in mine),
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """P need not be symmetric. In checks ranks hold blocks of different number and size, of equal total.

    About half of the ranks keep the size's blocks, and on one trial in four all else is as in timing: so no rank can
    infer the others' blocks from its own.
    """
    as_timed: dict[str, AxisValue] = {"skew": 0.1}  # else half of P would be enough
    if draw.timed:
        return as_timed
    blocks = ax.ints("blocks")
    changed = draw.sample(range(ax.W), (ax.W + 1) // 2)
    by_rank = tuple(rearranged(blocks, draw) if rank in changed else blocks for rank in range(ax.W))
    if draw.trial % 4 == 0:
        return as_timed | {"blocks_by_rank": by_rank}
    return {
        "blocks_by_rank": by_rank,
        "skew": 0.1 * (draw.trial % 2),
        "kalman_lambda": draw.uniform(0.9, 0.99),
        "kalman_nue": draw.uniform(0.98, 0.999),
    }


def rearranged(blocks: tuple[int, ...], draw: Draw) -> tuple[int, ...]:
    """The blocks in another order, one of them cut in two."""
    order = draw.sample(blocks, len(blocks))
    cut = draw.randrange(1, max(2, order[0]))
    return tuple(n for n in (*order[1:], cut, order[0] - cut) if n)


def robust_inputs(make: InputMaker) -> Inputs:
    """Dense covariances, gradients of norm 1 to 3 and errors of size 0.5 to 2: the step moves every digit checked."""
    import torch

    skew = make.ax.real("skew")
    gradients: Blocks = []
    weights: Blocks = []
    covariances: Blocks = []
    for n in make.ax.ints("blocks"):
        direction = make.randn(n, 1).double()
        gradients.append(direction * ((1 + 2 * make.rand(1).double()) / torch.linalg.vector_norm(direction)))
        weights.append(make.randn(n, 1).double())
        factor = make.randn(n, n).double()
        covariance = 0.5 * torch.eye(n, dtype=torch.float64, device=make.device) + factor @ factor.T / n
        if skew:
            covariance += skew * make.randn(n, n).double() / n**0.5
        covariances.append(covariance)
    error = (0.5 + 1.5 * make.rand().double()) * (2 * make.randint(0, 2) - 1)
    return gradients, error, weights, covariances


def published_inputs(make: InputMaker) -> Inputs:
    """Gradients of std 0.01 and identity covariances, from the published seed."""
    import torch

    generator = make.seeded(42 + 63_000 + make.rank + 1_000_003 * make.trial).generator

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, device=make.device, generator=generator)

    gradients: Blocks = []
    weights: Blocks = []
    covariances: Blocks = []
    for n in make.ax.ints("blocks"):
        gradients.append(0.01 * normal(n, 1))
        weights.append(normal(n, 1))
        covariances.append(torch.eye(n, dtype=torch.float64, device=make.device))
    return gradients, normal(), weights, covariances


def nearly(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The baseline's output, and 1e-11 of each element and of their root mean square; increments are 1e-5 and more.

    Other orders of sums differ by 1e-15, and weights that cross the link as numbers of 32 bits by 1e-9.
    """
    expected = context.expected
    return expected, 1e-11 * (expected.abs() + rms(expected))


def cost(ax: Axes) -> Cost:
    """P is read once and written once; the weights of all ranks are gathered, and one scalar is reduced."""
    blocks = ax.ints("blocks")
    total = sum(blocks)
    everywhere = sum(n for n, _ in ax.int_lists("all_vectors"))
    squares = sum(n * n for n in blocks)
    scalar = 16 * (ax.W - 1) / ax.W
    return Cost(
        vector_flops=6 * squares,
        memory_bytes=8 * (2 * squares + 2 * total + everywhere),
        link_in_bytes=8 * (everywhere - total) + scalar,
        # A switch that multicasts takes each rank's weights once.
        link_out_bytes=(8 * total if ax.W > 1 else 0) + scalar,
    )


CHECK = within(nearly, description="|out - expected| <= 1e-11 (|expected| + rms(expected))")

PROBLEM = Problem(
    name="KalmanFilterOptimizer",
    upstream="63_deepmd_kalman_filter_optimizer",
    category="data_parallel",
    origin="DeePMD-kit's layer-wise Kalman filter optimizer (LKF / RLEKF)",
    summary="One extended-Kalman-filter step on block-diagonal covariances split over ranks: a global scalar gain, a "
    "rank-1 update of every block, and a gather of all updated weights.",
    weaknesses=(
        "Weights move by at most 1e-3 and P by 1e-4, so gathering unchanged weights and returning P / lambda passes.",
    ),
    no_capture_because="The numbers and sizes of other ranks' blocks are unknown to the host until they are exchanged.",
    tags=("all_reduce", "all_gather", "float64", "optimizer"),
    dtypes=("float64",),
    # blocks_by_rank None: every rank has `blocks`. skew: how far P is from symmetric.
    sizes={
        "tiny": {
            "blocks": (16, 12, 8),
            "blocks_by_rank": None,
            "kalman_lambda": 0.98,
            "kalman_nue": 0.9987,
            "skew": 0.0,
        },
        "published": {
            "blocks": (1024,) * 8,
            "blocks_by_rank": None,
            "kalman_lambda": 0.98,
            "kalman_nue": 0.9987,
            "skew": 0.0,
        },
        "large": {
            "blocks": (5120,) * 8,
            "blocks_by_rank": None,
            "kalman_lambda": 0.98,
            "kalman_nue": 0.9987,
            "skew": 0.0,
        },
    },
    args=(
        TensorList("H", "vectors", about="gradient of the prediction by the weights, per block"),
        Tensor("error", (), about="this rank's prediction error"),
        TensorList("weights", "vectors", mutable=True, about="parameters, per block; the list may be modified"),
        TensorList("P", "matrices", mutable=True, about="covariance, per block, symmetric or not; may be modified"),
        Scalar("kalman_lambda", "float", about="memory factor"),
        Scalar("kalman_nue", "float", about="its decay"),
    ),
    outputs=(
        OutputList("all_weights", "all_vectors", check=CHECK, about="all ranks' updated weights, in rank order"),
        OutputList("P_out", "matrices", check=CHECK, about="this rank's updated covariances"),
        Output("lambda_next", (), check=CHECK, about="kalman_nue * kalman_lambda + 1 - kalman_nue"),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "P is read and written whole, as it need not be symmetric. A rank's updated weights are unknown elsewhere "
        "until they have come in.",
    ),
)
