"""FSDPTensorParallel: a gated feed-forward layer whose weights are split over two axes of ranks."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, TypeAlias

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
    SizeError,
    Tensor,
    Trials,
    product_numbers,
    with_link,
)
from pkb_gym.engine.problem.rules import CheckContext, all_of, norm_close, rms, wide, within

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]"


def divisors(n: int) -> list[int]:
    """In ascending order."""
    return [d for d in range(1, n + 1) if n % d == 0]


def default_tp(world_size: int) -> int:
    """The smallest divisor of at least 2 that leaves at least 2, or 1."""
    return next((d for d in divisors(world_size) if d >= 2 and world_size // d >= 2), 1)


def derive(ax: Axes) -> dict[str, int]:
    """Adds the degrees where none is given, this rank's indices i and j, and the shapes Bf, Dj, Ft.

    Raises:
        SizeError: a degree does not divide the ranks, or a size its degree.
    """
    n_tp = ax.number_or_none("n_tp") or default_tp(ax.W)
    if ax.W % n_tp:
        raise SizeError(f"axis n_tp={n_tp} must divide W={ax.W}")
    ax = ax.replace(n_tp=n_tp, n_fsdp=ax.W // n_tp)
    return {
        "n_tp": n_tp,
        "n_fsdp": ax.n_fsdp,
        "i": ax.r % n_tp,
        "j": ax.r // n_tp,
        "Bf": ax.divide("rows", by="n_fsdp"),
        "Dj": ax.divide("D", by="n_fsdp"),
        "Ft": ax.divide("F", by="n_tp"),
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks go through all ways to split the ranks."""
    if draw.timed or draw.trial == 0:
        return {}
    ways = divisors(ax.W)
    return {"n_tp": ways[-draw.trial % len(ways)]}


def robust_inputs(make: InputMaker) -> Inputs:
    """Normal, scaled so that x W1, x W2 and the result are near 1; x is common to a tensor-parallel group."""
    ax = make.ax
    return (
        make.stream("x", ax.j).normal("x_local"),
        make.normal("W1_shard", std=1 / sqrt(ax.D)),
        make.normal("W2_shard", std=1 / sqrt(ax.D)),
        make.normal("W3_shard", std=1 / sqrt(ax.F)),
    )


def published_inputs(make: InputMaker) -> Inputs:
    """Standard normal in full from one seed for all ranks, then cut."""
    ax = make.ax
    stream = make.seeded(42 + 48_000 + 1_000_003 * make.trial)
    x = stream.randn(ax.rows, ax.D)
    W1, W2, W3 = stream.randn(ax.D, ax.F), stream.randn(ax.D, ax.F), stream.randn(ax.F, ax.D)
    rows = slice(ax.j * ax.Dj, (ax.j + 1) * ax.Dj)
    columns = slice(ax.i * ax.Ft, (ax.i + 1) * ax.Ft)
    parts = x[ax.j * ax.Bf : (ax.j + 1) * ax.Bf], W1[rows, columns], W2[rows, columns], W3[columns, rows]
    x_local, *shards = (part.contiguous().to(make.dtype) for part in parts)
    return x_local, shards[0], shards[1], shards[2]


def tolerance(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The baseline's output, and 5.5e-2 sqrt(n_tp / 2) rms + 1e-2 |out|: its sum rounds once per rank of the group."""
    expected = wide(context.expected)
    steps = sqrt(max(1.0, context.ax.n_tp / 2))
    return expected, 5.5e-2 * steps * rms(expected) + 1e-2 * expected.abs()


def cost(ax: Axes) -> Cost:
    """Each rank does its share of the products and brings in the weights of its FSDP group, once.

    Where a rank has fewer rows than rows of weights, it is cheaper to move activations than weights. Sums over the
    tensor-parallel group are added by endpoints (reduce-scatter, all-gather) or, at half the traffic, by a switch.
    """
    pieces = 3 * min(ax.Dj, ax.Bf) * ax.Ft
    sums = min(2 * (ax.n_tp - 1) / ax.n_tp, 1.0) * ax.Bf * ax.D
    return Cost(
        matrix_flops=6 * ax.Bf * ax.D * ax.Ft,
        vector_flops=5 * ax.Bf * ax.Ft + ax.Bf * ax.D * (ax.n_tp - 1) / ax.n_tp,
        memory_bytes=(2 * ax.Bf * ax.D + 3 * ax.Dj * ax.Ft) * ax.itemsize,
        link_in_bytes=((ax.n_fsdp - 1) * pieces + sums) * ax.itemsize,
        # A switch that multicasts takes each piece once.
        link_out_bytes=((pieces if ax.n_fsdp > 1 else 0) + sums) * ax.itemsize,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link what foreign weights add to the result, or the weights."""
    others = ax.n_tp - 1
    results = product_numbers(ax.Bf, ax.D, others * ax.Ft) if others else ax.Bf * ax.D
    weights = 3 * (ax.W - 1) * ax.Dj * ax.Ft
    return with_link(cost(ax), min(results, weights) * ax.itemsize, 0)


PROBLEM = Problem(
    name="FSDPTensorParallel",
    upstream="48_fsdp_and_tp",
    category="fsdp_zero",
    origin="FSDP x tensor parallelism of a SwiGLU feed-forward block, in the style of Llama and torchtitan",
    summary="A gated feed-forward layer whose weights are split over two axes: ranks of one FSDP group gather the "
    "weight pieces, ranks of one tensor-parallel group add up their partial outputs.",
    weaknesses=(
        "Results near 5800 are compared with 0.01 absolute and relative: 20 % of an exact result are refused.",
        "On 2 ranks the tensor-parallel sum never takes place.",
    ),
    tags=("all_gather", "all_reduce", "subgroups", "gemm", "overlap"),
    dtypes=("bfloat16",),
    # n_tp None: the smallest divisor of W that leaves at least two FSDP ranks.
    sizes={
        "tiny": {"D": 32, "F": 64, "rows": 32, "n_tp": None},
        "published": {"D": 256, "F": 1024, "rows": 2048, "n_tp": None},
        "large": {"D": 4096, "F": 14336, "rows": 16384, "n_tp": None},
    },
    args=(
        Tensor("x_local", ("Bf", "D"), about="rows j*Bf .. of the batch, j = r // n_tp; equal for equal j"),
        Tensor("W1_shard", ("Dj", "Ft"), about="rows j*Dj .., columns i*Ft .. of W1 (D, F), i = r mod n_tp"),
        Tensor("W2_shard", ("Dj", "Ft"), about="the same part of W2 (D, F)"),
        Tensor("W3_shard", ("Ft", "Dj"), about="rows i*Ft .., columns j*Dj .. of W3 (F, D)"),
        Scalar("n_tp", "int", about="size of a tensor-parallel group: consecutive ranks"),
        Scalar("n_fsdp", "int", about="size of an FSDP group: ranks n_tp apart"),
    ),
    outputs=(
        Output(
            "out",
            ("Bf", "D"),
            check=all_of(
                (
                    norm_close(1e-2),
                    within(tolerance, description="|out - y| <= 5.5e-2 sqrt(n_tp / 2) rms(y) + 1e-2 |y|"),
                )
            ),
            about="the layer's output, equal for equal j",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The result depends on foreign weights: the numbers that determine that part of it come in. Where the "
        "products are made is open.",
        work=least_work,
    ),
)
