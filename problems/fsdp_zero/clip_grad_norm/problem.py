"""ClipGradNorm: scale sharded gradients down, in place, where their norm over all ranks is too large."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InPlace,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    TensorList,
    Trials,
    close,
)
from pkb_gym.engine.problem.rules import CheckContext, rule
from pkb_gym.problems.fsdp_zero.heavy_tailed import (
    NO_POISON,
    NORM_RULE,
    exact_norm,
    expected_powers,
    heavy_tailed,
    norm_mark,
    poison,
)

if TYPE_CHECKING:
    import torch

Shapes: TypeAlias = "tuple[tuple[int, ...] | None, ...]"
Partition: TypeAlias = "tuple[tuple[int, ...], ...]"


def groups_of(ax: Axes) -> Partition | None:
    """The groups: all ranks in one, every second rank in one of two, or none at all.

    Raises:
        SizeError: `ranks` is something else.
    """
    ranks = ax.one_of("ranks", ("all", "interleaved", "alone"))
    if ranks == "alone":
        return None
    parts = 2 if ranks == "interleaved" and ax.W > 1 else 1
    return tuple(tuple(range(first, ax.W, parts)) for first in range(parts))


def shapes_on(ax: Axes, rank: int) -> Shapes:
    """The shapes of a rank's gradients."""
    shapes = ax.shapes("shapes")
    if ax.get("bare_rank") == rank:
        return (None,) * len(shapes)
    if not ax.get("uneven"):
        return shapes
    # Later ranks hold a few rows less, and the last tensor not at all.
    cut = tuple(None if s is None else (max(0, s[0] - rank), *s[1:]) for s in shapes)
    return cut[:-1] if rank % 2 else cut


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the groups, their size G, and this rank's shapes."""
    groups = groups_of(ax)
    return {
        "fsdp_group": groups,
        "G": 1 if groups is None else len(groups[0]),
        "local_shapes": shapes_on(ax, ax.r),
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Draws a scale for every tensor of every rank, and max_norm well below or well above the norms to be expected.

    Checks cycle through clipping or not, norms, groups, uneven shards, a rank without gradients, a NaN, an infinity.
    """
    changes: dict[str, AxisValue] = {}
    if not draw.timed:
        changes = {"shapes": (*ax.shapes("shapes"), None, (draw.randint(20, 99),), (draw.randint(9, 30), 7))}
        modes: tuple[dict[str, AxisValue], ...] = (
            {"clips": True, "uneven": True},
            {"clips": False, "bare_rank": draw.randrange(ax.W) if ax.W > 1 else None},
            {"clips": True, "norm_type": 1.0, "ranks": "interleaved", "uneven": True},
            {"clips": True, "norm_type": 3.0, "bare_rank": draw.randrange(ax.W) if ax.W > 1 else None},
            {"clips": False, "norm_type": 3.0, "ranks": "interleaved"},
            {"clips": True, "ranks": "alone"},
            {"clips": True, "poison": "nan", "poisoned_rank": draw.randrange(ax.W)},
            {"clips": False, "poison": "inf", "poisoned_rank": draw.randrange(ax.W)},
        )
        changes |= modes[draw.trial % len(modes)]
        ax = ax.replace(**changes)
    count = len(ax.shapes("shapes"))
    changes["scales"] = tuple(tuple(10 ** draw.uniform(-3, 1) for _ in range(count)) for _ in range(ax.W))
    # A norm differs from its estimate by some percent; these factors keep it away from max_norm.
    norms = expected_norms(ax.replace(**changes))
    clipped = draw.uniform(0.1, 0.5) * min(norms)
    return changes | {"max_norm": clipped if ax.flag("clips") else draw.uniform(2.0, 4.0) * max(norms)}


def expected_norms(ax: Axes) -> list[float]:
    """The norm of every group's gradients, as they are drawn."""
    p = ax.real("norm_type")
    totals = []
    for rank, scales in enumerate(ax.real_lists("scales")):
        pairs = zip(shapes_on(ax, rank), scales, strict=False)
        totals.append(sum(expected_powers(shape, scale, p) for shape, scale in pairs if shape is not None))
    groups = groups_of(ax) or tuple((rank,) for rank in range(ax.W))
    return [float(sum(totals[rank] for rank in ranks) ** (1 / p)) for ranks in groups]


def robust_inputs(make: InputMaker) -> tuple[list[torch.Tensor | None]]:
    """Normal values and few outliers, on which the norm hangs; every tensor of every rank has its own scale."""
    scales = make.ax.real_lists("scales")[make.rank]
    shapes = make.ax.shapes("local_shapes")
    drawn = [
        None if shape is None else heavy_tailed(make, shape, scale)
        for shape, scale in zip(shapes, scales, strict=False)
    ]
    poison(make, drawn)
    return (drawn,)


def published_inputs(make: InputMaker) -> tuple[list[torch.Tensor | None]]:
    """Standard normal."""
    stream = make.seeded(42 + 21_000 + make.rank + 1_000_003 * make.trial)
    shapes = make.ax.shapes("local_shapes")
    return ([None if shape is None else stream.randn(*shape).to(make.dtype) for shape in shapes],)


def group_norm(context: CheckContext) -> list[torch.Tensor]:
    """The exact norm of the gradients of this rank's group, in a list of one."""
    groups = groups_of(context.ax) or ((context.rank,),)
    ranks = next(group for group in groups if context.rank in group)
    gradients = (g for rank in ranks for g in context.tensors("grad_tensors", rank))
    return [exact_norm(gradients, context.ax.real("norm_type"))]


def cost(ax: Axes) -> Cost:
    """Gradients are read once and written once where they change; one all-reduce of a float32 scalar."""
    elements = sum(prod(shape) for shape in ax.shapes("local_shapes") if shape is not None)
    written = elements if ax.flag("clips") else 0
    exchange = 8 * (ax.G - 1) / ax.G
    return Cost(
        vector_flops=2 * elements + written,
        memory_bytes=(elements + written) * ax.itemsize,
        link_in_bytes=exchange,
        link_out_bytes=exchange,
    )


MODES: dict[str, AxisValue] = {"max_norm": 1.0, "norm_type": 2.0, "ranks": "all", "clips": True, **NO_POISON}

PROBLEM = Problem(
    name="ClipGradNorm",
    upstream="21_clip_grad_norm_no_ep",
    category="fsdp_zero",
    origin="FSDP2 gradient clipping of VeOmni, without expert parallelism",
    summary="Compute the norm of all ranks' gradient shards, and scale these down in place if it is too large.",
    weaknesses=(
        "The norm is the square root of the number of elements to within 0.02 % in every trial, so a constant passes.",
        "Only the returned norm is compared: neither the scaling nor the clipping is, and no trial leaves them alone.",
        "Repeated timing calls act on tensors that earlier calls have already clipped.",
    ),
    tags=("all_reduce", "in_place", "norm", "latency"),
    dtypes=("bfloat16", "float16", "float32"),
    # ranks gives the members of a group; clips, whether max_norm lies below the norm.
    sizes={
        "tiny": {"shapes": ((32, 32), (64,), None, (16, 48)), **MODES},
        "published": {"shapes": ((1024, 1024),) * 3, **MODES},
        "large": {"shapes": ((4096, 4096), (1024, 4096), (14336, 1024), (4096,)) * 8, **MODES},
    },
    args=(
        TensorList(
            "grad_tensors", "local_shapes", may_hold_none=True, mutable=True, about="this rank's shards of gradients"
        ),
        Scalar("max_norm", "float", about="threshold"),
        Scalar("norm_type", "float", about="p of the norm, 0 < p < inf"),
        Group("fsdp_group", about="ranks to sum over; None skips the sum"),
    ),
    outputs=(
        Output(
            "total_norm",
            (),
            dtype="float32",
            check=rule(partial(norm_mark, exact=group_norm), description=NORM_RULE, batched=False),
            about="norm before clipping",
        ),
        # A coefficient rounded to bfloat16 and the rounding of the product stay within this.
        InPlace("grad_tensors", check=close(rtol=1e-2, atol_rms=1e-3)),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Gradients are read, and written where they are clipped. One number crosses the link.",
        of=("memory",),
    ),
)
