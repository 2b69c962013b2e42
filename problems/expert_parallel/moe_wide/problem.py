"""MoEWide: the mixture-of-experts layer with several experts per rank."""

from __future__ import annotations

from pkb_gym.engine.problem import Axes, AxisValue, Problem
from pkb_gym.problems.expert_parallel.moe_layer import (
    COARSE,
    COUNT_ARGS,
    DATA_ARGS,
    GROUP_ARG,
    LEAST_WORK,
    MODES,
    NEARLY_ONE_HOT,
    ORIGIN,
    OUTPUT,
    PUBLISHED,
    ROBUST,
    SMALL_WEIGHTS,
    UNIFORM,
    cost,
    derive_layer,
)


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the group, the experts (`experts_per_rank` for each rank of a group) and this rank's number of tokens.

    K is at most E, which matters where a group has one rank.
    """
    size = len(ax.group_ranks("group"))
    experts = ax.experts_per_rank * size
    return derive_layer(ax.replace(G=size, E=experts, K=min(ax.K, experts)))


PROBLEM = Problem(
    name="MoEWide",
    upstream="50_moe_ep_wide",
    category="expert_parallel",
    origin=ORIGIN,
    summary="The expert-parallel mixture-of-experts layer with several experts per rank, which splits the token "
    "exchange into more, smaller pieces.",
    weaknesses=(
        NEARLY_ONE_HOT.format(share="87 %"),
        UNIFORM,
        COARSE,
        SMALL_WEIGHTS,
        "The function is that of FusedMoE, and on 4 ranks the shapes are too.",
    ),
    no_capture_because="How many rows go to each rank depends on the routing, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "moe", "gemm", "overlap"),
    dtypes=("bfloat16",),
    sizes={
        "tiny": {"T": 64, "H": 64, "I": 32, "experts_per_rank": 2, "K": 2, **MODES},
        "published": {"T": 1024, "H": 1024, "I": 128, "experts_per_rank": 2, "K": 2, **MODES},
        "large": {"T": 4096, "H": 4096, "I": 4096, "experts_per_rank": 8, "K": 4, **MODES},
    },
    args=(*DATA_ARGS, *COUNT_ARGS, GROUP_ARG),
    outputs=(OUTPUT,),
    derive=derive,
    robust=ROBUST,
    published=PUBLISHED,
    cost=cost,
    least_work=LEAST_WORK,
)
