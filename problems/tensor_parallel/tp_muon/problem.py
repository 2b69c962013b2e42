"""TPMuon: Newton-Schulz orthogonalisation of a matrix that is split over the ranks, by all-reduced Gram matrices."""

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
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import CheckContext, outside, rms, rule, wide

if TYPE_CHECKING:
    import torch

TABLE_LENGTH = {"simple": 1, "quintic": 5, "polar_express": 8, "aol": 4}
SPREAD = 8
NOISE = {"falling": 2.0**-6, "leaning": 1.0}
"""By spectrum: the singular values are 1, 1/2, 1/4 ... over `SPREAD` directions, and so much noise."""

LOOSENESS = {"bfloat16": 1.0, "float16": 2.0**-2, "float32": 2.0**-2}
"""Factor on the tolerance. The iteration is made in float32 whatever the dtype, and magnifies small singular values:
iterating on the Gram matrix alone, which is legal, deviates by 0.003 of the output's root mean square."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's columns (of n rounded up to a multiple of W) and the shape of its shard.

    Raises:
        SizeError: steps and table do not fit, or partition_dim is neither 0 nor 1.
    """
    table = ax.one_of("coefficient_type", TABLE_LENGTH)
    if ax.steps < 0 or ax.steps % TABLE_LENGTH[table]:
        raise SizeError(f"axis steps={ax.steps} must be a multiple of {TABLE_LENGTH[table]} with {table!r}")
    if ax.partition_dim not in (0, 1):
        raise SizeError(f"axis partition_dim={ax.partition_dim} must be 0 or 1")
    n_r = -(-ax.n // ax.W) if ax["n_r"] is None else ax.n_r
    ranks = ax.group_ranks("group")
    return {
        "n_r": n_r,
        "group_size": len(ranks),
        "first": ranks[0],
        "shard": (ax.m, n_r) if ax.partition_dim == 1 else (n_r, ax.m),
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: all four tables, both partitioned dimensions, subgroups, few columns, falling singular values.

    Of noise alone, the first iterations of the longer tables would give much the same with other coefficients.
    In timing they fall, too: those of noise alone are all so small beside the norm that the first iteration is next to
    a multiplication by its first coefficient.
    The longest table has more columns than rows: with fewer, the last iterations keep a shard whose columns are
    orthogonal already as it is, whatever the other ranks hold.
    More steps than these, or less noise in eight of them, would make an iteration on the Gram matrix alone, which is
    legal, lose small singular values.
    """
    scale: dict[str, AxisValue] = {"scale": 10 ** draw.uniform(-2, 1)}
    if draw.timed:
        return scale | {"spectrum": "falling"}
    if draw.trial == 0:
        return scale
    world = tuple(range(ax.W))
    half = (len(world) + 1) // 2
    halves = tuple(part for part in (world[:half], world[half:]) if part)
    modes: tuple[dict[str, AxisValue], ...] = (
        {"coefficient_type": "simple", "steps": draw.randint(2, 5), "partition_dim": 0, "spectrum": "falling"},
        {
            "coefficient_type": "polar_express",
            "steps": 8,
            "partition_dim": 1,
            "n_r": ax.m,
            "group": halves if ax.W > 2 else None,
            "spectrum": "leaning",
        },
        {
            "coefficient_type": "aol",
            "steps": 4,
            "partition_dim": 0,
            "n_r": max(1, ax.m // (2 * ax.W)),
            "spectrum": "falling",
        },
        {"coefficient_type": "quintic", "steps": 5, "partition_dim": 1, "spectrum": "falling", "group": (world,)},
    )
    return scale | modes[(draw.trial - 1) % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Noise, or falling singular values and noise as a gradient has them, at any scale."""
    import torch

    ax = make.ax
    values = make.randn(ax.m, ax.n_r)
    noise = NOISE.get(ax.text("spectrum"))
    if noise is not None:
        directions = make.stream("directions", ax.first).randn(ax.m, SPREAD) * torch.exp2(
            -torch.arange(SPREAD, device=make.device, dtype=torch.float32)
        )
        values = noise * values + directions @ make.randn(SPREAD, ax.n_r)
    x = (values * ax.real("scale")).to(make.dtype)
    return (x if ax.partition_dim == 1 else x.T.contiguous(),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal plus a hundredth of the rank, added in the dtype."""
    x = make.seeded(42 + 86_000 + make.rank + 1_000_003 * make.trial).normal("x")
    return (x + 0.01 * make.rank,)


def near(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks |got - expected| > 2^-7 |expected| + 0.02 rms(expected), scaled by dtype."""
    expected = wide(context.expected)
    bound = LOOSENESS[context.ax.dtype] * (2.0**-7 * expected.abs() + 0.02 * rms(expected))
    return outside(wide(got), expected, bound)


def cost(ax: Axes) -> Cost:
    """One Gram matrix, a polynomial of it and one product with the shard do, since all iterates commute.

    The Gram matrix is symmetric, on the smaller side, and like its polynomial shared by the ranks: a polynomial takes a
    product per iteration, or at least four for a diagonalisation. Either the Gram matrix is all-reduced, as float32 and
    by half, or all inputs are gathered.
    """
    n, others = ax.n_r * ax.group_size, ax.group_size - 1
    side = min(ax.m, n)
    shard = ax.itemsize * ax.m * ax.n_r
    gram = 2 * others / ax.group_size * 4 * side * (side + 1) / 2
    products = 3 * ax.m * side * ax.n_r + min(ax.steps, 4) * side**3 / ax.group_size
    iterated = ax.steps > 0
    return Cost(
        matrix_flops=iterated * products,
        vector_flops=3 * ax.m * ax.n_r,
        memory_bytes=2 * shard,
        link_in_bytes=min(gram, others * shard) if iterated else 8 * others / ax.group_size,
        # A switch that multicasts takes each shard once; a lower bound must allow for it.
        link_out_bytes=min(gram, shard if others else 0) if iterated else 8 * others / ax.group_size,
    )


MODES: dict[str, AxisValue] = {
    "steps": 5,
    "coefficient_type": "quintic",
    "partition_dim": 1,
    "group": None,
    "spectrum": "flat",
    "scale": 1.0,
}

PROBLEM = Problem(
    name="TPMuon",
    upstream="86_tp_muon_orthogonalization",
    category="tensor_parallel",
    origin="Muon optimizer with tensor-parallel Newton-Schulz iteration (Megatron-LM / NVIDIA Emerging-Optimizers)",
    summary="Approximately orthogonalise a momentum matrix whose columns (or rows) are split over ranks, by a fixed "
    "number of polynomial iterations that all-reduce a Gram matrix.",
    weaknesses=(
        "Only one table, one number of steps and one partitioned dimension are used.",
        "The tolerance is 23 % of the output's root mean square, and noise is well conditioned: sloppy numbers pass.",
    ),
    tags=("all_reduce", "gemm", "float32", "optimizer", "subgroups"),
    dtypes=("bfloat16", "float16", "float32"),
    # n_r None: columns of the whole matrix, rounded up to a multiple of W, are shared out.
    sizes={
        "tiny": {"m": 32, "n": None, "n_r": 16} | MODES,
        "published": {"m": 512, "n": 512, "n_r": None} | MODES,
        "large": {"m": 4096, "n": 14_336, "n_r": None} | MODES,
    },
    args=(
        Tensor("x", "shard", about="(m, n_r) with partition_dim 1, (n_r, m) with 0: this rank's shard"),
        Scalar("steps", "int", about="iterations, a multiple of the length of the coefficients' table"),
        Scalar("coefficient_type", "str", about="table: simple, quintic, polar_express or aol"),
        Scalar("partition_dim", "int", about="the dimension split over the ranks, 0 or 1"),
        Group("group", about="tensor-parallel group; None is all ranks"),
    ),
    outputs=(
        Output(
            "y",
            "shard",
            check=rule(near, "|error| <= 2^-7 |y| + 0.02 rms(y), for bfloat16"),
            about="this rank's shard of the orthogonalised matrix",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The shard is read and the result is written. How many products a polynomial of the Gram matrix takes, and "
        "what must cross the link for them, is not known.",
        of=("memory",),
    ),
)
