"""MoENarrow: the mixture-of-experts layer with fewer experts than ranks, in independent groups of ranks."""

from __future__ import annotations

from pkb_gym.engine.problem import Axes, AxisValue, Draw, Group, Problem, SizeError, Trials
from pkb_gym.problems.expert_parallel.moe_layer import (
    COARSE,
    COUNT_ARGS,
    DATA_ARGS,
    LEAST_WORK,
    MODES,
    NEARLY_ONE_HOT,
    ORIGIN,
    OUTPUT,
    PUBLISHED,
    SMALL_WEIGHTS,
    UNIFORM,
    cost,
    derive_layer,
    robust_inputs,
    vary,
)


def half_the_ranks(world_size: int) -> int:
    """The largest divisor of the world size in 2 .. world_size / 2, or 1."""
    return max((n for n in range(2, world_size // 2 + 1) if world_size % n == 0), default=1)


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds E where no number is given, the size G of a group, and this rank's number of tokens; K is at most E.

    Raises:
        SizeError: there are fewer experts than ranks, and their number does not divide that of the ranks.
    """
    experts = ax.number_or_none("num_experts") or half_the_ranks(ax.W)
    if ax["group"] is not None or experts >= ax.W:
        size = len(ax.group_ranks("group"))
    elif ax.W % experts == 0:
        size = experts
    else:
        raise SizeError(f"axis num_experts={experts} must divide W={ax.W} or be a multiple of it")
    return derive_layer(ax.replace(E=experts, K=min(ax.K, experts), G=size))


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Two experts or more, and in timing fewer choices than experts: a token's rank hangs on its router.

    Checks have the common modes besides, all choices too, and as many experts as ranks.
    """
    experts = ax.number_or_none("num_experts") or max(2, half_the_ranks(ax.W))
    if draw.timed:
        return {"num_experts": experts, "K": max(1, min(ax.K, experts - 1))}
    K = ax.K if draw.trial % 3 == 0 else 1
    return vary(ax, draw) | {"K": K, "num_experts": max(experts, ax.W) if draw.trial % 5 == 4 else experts}


PROBLEM = Problem(
    name="MoENarrow",
    upstream="51_moe_ep_narrow",
    category="expert_parallel",
    origin=ORIGIN,
    summary="The mixture-of-experts layer with fewer experts than ranks: the world is cut into subgroups of E "
    "consecutive ranks, and each subgroup is a complete, independent set of experts.",
    weaknesses=(
        "On 2 ranks there is one expert, and on 4 K = E = 2: every token goes to all ranks of its subgroup, and the "
        "choice of experts plays no part.",
        NEARLY_ONE_HOT.format(share="90 %"),
        UNIFORM,
        COARSE,
        SMALL_WEIGHTS,
    ),
    no_capture_because="How many rows go to each rank depends on the routing, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "subgroups", "moe", "gemm", "overlap"),
    dtypes=("bfloat16",),
    # num_experts None: half the ranks where that divides them.
    sizes={
        "tiny": {"T": 64, "H": 64, "I": 32, "num_experts": None, "K": 2, **MODES},
        "published": {"T": 1024, "H": 1024, "I": 128, "num_experts": None, "K": 2, **MODES},
        "large": {"T": 8192, "H": 4096, "I": 4096, "num_experts": None, "K": 1, **MODES},
    },
    args=(
        *DATA_ARGS,
        *COUNT_ARGS,
        Group("group", about="expert-parallel group; None means E consecutive ranks, or all if there are not more"),
    ),
    outputs=(OUTPUT,),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=PUBLISHED,
    cost=cost,
    least_work=LEAST_WORK,
)
