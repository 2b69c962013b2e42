"""FusedMoE: a mixture-of-experts layer, its experts spread over the ranks."""

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
    """Adds the size G of the group, the experts L of one rank, and this rank's number of tokens."""
    return derive_layer(ax.replace(G=len(ax.group_ranks("group"))))


PROBLEM = Problem(
    name="FusedMoE",
    upstream="31_fused_moe_fwd",
    category="expert_parallel",
    origin=ORIGIN,
    summary="Send each token to its top-k experts on other ranks, run their gated MLP, bring back and add the results.",
    weaknesses=(NEARLY_ONE_HOT.format(share="87 %"), UNIFORM, COARSE, SMALL_WEIGHTS),
    no_capture_because="How many rows go to each rank depends on the routing, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "moe", "gemm", "overlap"),
    dtypes=("bfloat16",),
    sizes={
        "tiny": {"T": 64, "H": 64, "I": 32, "E": 8, "K": 2, **MODES},
        "published": {"T": 1024, "H": 1024, "I": 128, "E": 8, "K": 2, **MODES},
        "large": {"T": 8192, "H": 4096, "I": 4096, "E": 8, "K": 2, **MODES},
    },
    args=(*DATA_ARGS, *COUNT_ARGS, GROUP_ARG),
    outputs=(OUTPUT,),
    derive=derive,
    robust=ROBUST,
    published=PUBLISHED,
    cost=cost,
    least_work=LEAST_WORK,
)
