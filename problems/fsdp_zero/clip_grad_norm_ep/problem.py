"""ClipGradNormEP: clip by the global norm, where expert gradients have process groups of their own."""

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


def ep_layout(world_size: int, ep_size: int) -> dict[str, AxisValue]:
    """The three partitions; rank = f * ep_size + e."""
    world = tuple(range(world_size))
    if ep_size <= 1 or world_size % ep_size:
        return {"fsdp_group": (world,), "ep_fsdp_group": (world,), "ep_group": None}
    return {
        "fsdp_group": (world,),
        "ep_fsdp_group": tuple(world[e::ep_size] for e in range(ep_size)),
        "ep_group": tuple(world[first : first + ep_size] for first in range(0, world_size, ep_size)),
    }


def ep_size_of(ax: Axes) -> int:
    """The expert-parallel size, half the world where not given."""
    return ax.number_or_none("ep_size") or max(1, ax.W // 2)


def expert_shapes(ax: Axes, rank: int) -> Shapes:
    """The shapes of a rank's expert gradients, all None on the bare rank."""
    shapes = ax.shapes("expert")
    return (None,) * len(shapes) if ax.get("bare_rank") == rank else shapes


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the expert-parallel size, the groups, and this rank's shapes."""
    ep_size = ep_size_of(ax)
    return ep_layout(ax.W, ep_size) | {"ep_size": ep_size, "expert": expert_shapes(ax, ax.r)}


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Draws a scale for every tensor of every rank, and max_norm well below or well above the norm to be expected.

    Checks cycle through clipping or not, norms, expert-parallel sizes (one that does not divide the world too) and a
    rank without expert gradients, a NaN, an infinity; the lists get more tensors and None entries.
    """
    changes: dict[str, AxisValue] = {}
    if not draw.timed:
        changes = {
            "dense": (*ax.shapes("dense"), None, (draw.randint(1, 99),)),
            "expert": (None, *ax.shapes("expert"), (draw.randint(1, 9), 7)),
        }
        modes: tuple[dict[str, AxisValue], ...] = (
            {"clips": True},
            {"clips": False, "bare_rank": draw.randrange(ax.W)},
            {"clips": True, "norm_type": 1.0, "ep_size": ax.W},
            {"clips": False, "norm_type": 3.0, "ep_size": 3},
            {"clips": True, "poison": "nan", "poisoned_rank": draw.randrange(ax.W)},
            {"clips": False, "poison": "inf", "poisoned_rank": draw.randrange(ax.W)},
        )
        changes |= modes[draw.trial % len(modes)]
        ax = ax.replace(**changes)
    count = len(ax.shapes("dense")) + len(ax.shapes("expert"))
    changes["scales"] = tuple(tuple(10 ** draw.uniform(-3, 1) for _ in range(count)) for _ in range(ax.W))
    # The norm differs from its estimate by some percent; these factors keep it away from max_norm.
    factor = draw.uniform(0.1, 0.5) if ax.flag("clips") else draw.uniform(2.0, 4.0)
    return changes | {"max_norm": factor * expected_norm(ax.replace(**changes))}


def expected_norm(ax: Axes) -> float:
    """The norm of all ranks' gradients, as they are drawn."""
    p, dense, ep_size = ax.real("norm_type"), ax.shapes("dense"), ep_size_of(ax)
    total = 0.0
    for rank, scales in enumerate(ax.real_lists("scales")):
        expert = expert_shapes(ax, rank)
        factors = [1.0] * len(dense) + [1.0 / ep_size] * len(expert)
        for shape, factor, scale in zip((*dense, *expert), factors, scales, strict=True):
            total += 0.0 if shape is None else expected_powers(shape, factor * scale, p)
    return float(total ** (1 / p))


Lists: TypeAlias = "tuple[list[torch.Tensor | None], list[torch.Tensor | None]]"


def robust_inputs(make: InputMaker) -> Lists:
    """Normal values and few outliers, on which the norm hangs; every tensor has its own scale in 10^(-3 .. 1)."""
    dense, expert = make.ax.shapes("dense"), make.ax.shapes("expert")
    scales = make.ax.real_lists("scales")[make.rank]
    drawn = [
        None if shape is None else heavy_tailed(make, shape, scale)
        for shape, scale in zip((*dense, *expert), scales, strict=True)
    ]
    poison(make, drawn[: len(dense)])
    return drawn[: len(dense)], drawn[len(dense) :]


def published_inputs(make: InputMaker) -> Lists:
    """Standard normal, from the published seed, dense gradients first."""
    stream = make.seeded(42 + 22_000 + make.rank + 1_000_003 * make.trial)
    dense, expert = make.ax.shapes("dense"), make.ax.shapes("expert")
    drawn = [None if shape is None else stream.randn(*shape).to(make.dtype) for shape in (*dense, *expert)]
    return drawn[: len(dense)], drawn[len(dense) :]


def global_norms(context: CheckContext) -> list[torch.Tensor]:
    """The exact norm of all ranks' gradients, with quotients of the expert ones rounded, and with them as they are.

    The baseline rounds them, which matters where the expert-parallel size is no power of two; a kernel may do both
    steps at once.
    """
    ranks, ep_size, p = range(context.world_size), ep_size_of(context.ax), context.ax.real("norm_type")
    dense = [g for rank in ranks for g in context.tensors("non_ep_grad_tensors", rank)]
    expert = [g for rank in ranks for g in context.tensors("ep_grad_tensors", rank)]
    rounded = (None if g is None else g * (1 / ep_size) for g in expert)
    fused = (None if g is None else g.double() / ep_size for g in expert)
    return [exact_norm((*dense, *rounded), p), exact_norm((*dense, *fused), p)]


def elements(ax: Axes, name: str) -> int:
    """Elements of one of this rank's lists."""
    return sum(prod(shape) for shape in ax.shapes(name) if shape is not None)


def cost(ax: Axes) -> Cost:
    """Gradients are read once and written once where they change; one all-reduce of a float32 scalar."""
    dense, expert = elements(ax, "dense"), elements(ax, "expert")
    scaled = expert if ax.ep_size > 1 else 0
    every = dense + expert
    written = every if ax.flag("clips") else scaled
    exchange = 8 * (ax.W - 1) / ax.W
    return Cost(
        vector_flops=scaled + 2 * every + (every if ax.flag("clips") else 0),
        memory_bytes=(every + written) * ax.itemsize,
        link_in_bytes=exchange,
        link_out_bytes=exchange,
    )


# A coefficient rounded to bfloat16 and the rounding of the product stay within this.
CLIPPED = close(rtol=1e-2, atol_rms=1e-3)

PROBLEM = Problem(
    name="ClipGradNormEP",
    upstream="22_clip_grad_norm_ep",
    category="fsdp_zero",
    origin="FSDP2 + expert-parallel gradient clipping of VeOmni",
    summary="Clip all gradients by their global norm, where expert gradients are first divided by the expert-parallel "
    "size and summed over two process groups of their own.",
    weaknesses=(
        "The norm is sqrt(W 2^20 (1 + 1/ep_size^2)) to within 0.05 % in every trial, so a constant passes.",
        "Only the norm is compared: neither the scaling nor the clipping is, and no trial leaves gradients unclipped.",
        "Repeated timing calls act on tensors that earlier calls have already scaled and clipped.",
    ),
    tags=("all_reduce", "subgroups", "in_place", "norm"),
    dtypes=("bfloat16", "float16", "float32"),
    # ep_size None is half the world, at least 1; clips gives whether max_norm lies below the norm.
    sizes={
        "tiny": {
            "dense": ((32, 32), (48,)),
            "expert": ((2, 16, 24), None),
            "max_norm": 1.0,
            "norm_type": 2.0,
            "ep_size": None,
            "clips": True,
            **NO_POISON,
        },
        "published": {
            "dense": ((1024, 1024),),
            "expert": ((1024, 1024),),
            "max_norm": 1.0,
            "norm_type": 2.0,
            "ep_size": None,
            "clips": True,
            **NO_POISON,
        },
        "large": {
            "dense": ((4096, 4096),) * 8,
            "expert": ((8, 2048, 1536),) * 8,
            "max_norm": 1.0,
            "norm_type": 2.0,
            "ep_size": None,
            "clips": True,
            **NO_POISON,
        },
    },
    args=(
        TensorList(
            "non_ep_grad_tensors",
            "dense",
            may_hold_none=True,
            mutable=True,
            about="dense gradients, sharded over fsdp_group",
        ),
        TensorList(
            "ep_grad_tensors",
            "expert",
            may_hold_none=True,
            mutable=True,
            about="expert gradients, sharded over ep_fsdp_group and ep_group",
        ),
        Scalar("max_norm", "float", about="threshold"),
        Scalar("norm_type", "float", about="p of the norm, 0 < p < inf"),
        Scalar("ep_size", "int", about="expert-parallel size"),
        Group("fsdp_group", about="sums the dense part"),
        Group("ep_fsdp_group", about="sums the expert part first; ranks ep_size apart"),
        Group("ep_group", about="sums the expert part next; consecutive ranks"),
    ),
    outputs=(
        Output(
            "total_norm",
            (),
            dtype="float32",
            check=rule(partial(norm_mark, exact=global_norms), description=NORM_RULE, batched=False),
            about="norm before clipping",
        ),
        InPlace("non_ep_grad_tensors", check=CLIPPED),
        InPlace("ep_grad_tensors", check=CLIPPED),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Gradients are read, and written where they are scaled or clipped. One number crosses the link.",
        of=("memory",),
    ),
)
