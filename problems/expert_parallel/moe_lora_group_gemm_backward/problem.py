"""MoELoRAGroupGemmBackward: three small gradients, shared by all experts, are summed in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InPlace,
    InputMaker,
    LeastWork,
    Problem,
    Stream,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, allclose, wide
from pkb_gym.engine.problem.sum_rules import RoundedSum, deviation_of_sum, of_many_sizes, rounded_sum
from pkb_gym.problems.expert_parallel.routing import interleaved

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the size G of the group."""
    return {"G": len(ax.group_ranks("group"))}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks draw odd sizes that differ from each other, empty tensors, and interleaved subgroups."""
    if draw.timed or draw.trial == 0:
        return {}
    trial = draw.trial
    F_in, F_out = (n // 2 - draw.randrange(n // 4 + 1) | 1 for n in (ax.F_in, ax.F_out))
    return {
        "rank": ax.rank // 2 | 1,
        "F_in": 0 if trial % 4 == 3 else F_in,
        "F_out": F_out + 2 * (F_in == F_out),
        "group": interleaved(ax.W, 2) if trial % 3 == 2 and ax.W > 1 else ax["group"],
    }


def gradients(stream: Stream) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Standard normal and different on every rank and trial, so that no stored answer passes."""
    return stream.normal("grad_fc1_1_lora_A"), stream.normal("grad_fc1_2_lora_A"), stream.normal("grad_fc2_lora_B")


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Different on every rank and trial, as `gradients` are, and of many sizes, which no code shortens."""
    first, second, third = GRADIENTS
    return of_many_sizes(make, first), of_many_sizes(make, second), of_many_sizes(make, third)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients from the published seed, see `gradients`."""
    return gradients(make.seeded(42 + 30_000 + make.rank + 1_000_003 * make.trial))


def exact_sum(context: CheckContext) -> RoundedSum:
    """The sum over the group, and 2^-8 G sum |g_s|: what the roundings can amount to in any order."""
    import torch

    group = context.ax.group_ranks("group")
    terms = torch.stack([wide(context.tensor(context.leaf, rank)) for rank in group])
    total, roundoff = terms.sum(0), UNIT_ROUNDOFF[context.ax.dtype] if len(group) > 1 else 0.0
    deviation = deviation_of_sum(total, terms.square().sum(0), len(group), roundoff)
    return RoundedSum(total, roundoff * len(group) * terms.abs().sum(0), deviation)


def cost(ax: Axes) -> Cost:
    """Endpoints do the adding: reduce-scatter, then all-gather; a switch that adds needs each tensor once each way."""
    nbytes = ax.rank * (2 * ax.F_in + ax.F_out) * ax.itemsize
    share = (ax.G - 1) / ax.G
    link = min(2 * share, 1.0) * nbytes
    return Cost(
        vector_flops=share * nbytes / ax.itemsize,
        memory_bytes=2 * nbytes,
        link_in_bytes=link,
        link_out_bytes=link,
    )


CHECK = rounded_sum(exact_sum, "|g - sum| <= 2^-8 G sum |g_s| (bfloat16)")
GRADIENTS = {
    "grad_fc1_1_lora_A": ("rank", "F_in"),
    "grad_fc1_2_lora_A": ("rank", "F_in"),
    "grad_fc2_lora_B": ("F_out", "rank"),
}

PROBLEM = Problem(
    name="MoELoRAGroupGemmBackward",
    upstream="30_moe_epgroupgemm_lora_backward",
    category="expert_parallel",
    origin="VeOmni-style expert-parallel group GEMM with LoRA, the end of its backward pass",
    summary="Three small LoRA weight gradients, shared by all experts and so by all ranks, are summed over the "
    "expert-parallel group in place.",
    weaknesses=("Sizes are equal powers of two: a kernel without a tail, or one that mixes sizes up, passes.",),
    tags=("all_reduce", "in_place", "latency", "moe"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"rank": 4, "F_in": 48, "F_out": 68, "group": None},
        "published": {"rank": 8, "F_in": 1024, "F_out": 1024, "group": None},
        "large": {"rank": 256, "F_in": 16384, "F_out": 12288, "group": None},
    },
    args=(
        *(
            Tensor(name, shape, mutable=True, about="partial gradient of this rank")
            for name, shape in GRADIENTS.items()
        ),
        Group("group", about="expert-parallel group of G ranks; None means all"),
    ),
    # The returned tensors are the arguments themselves.
    outputs=tuple(InPlace(name, check=CHECK, published=allclose()) for name in GRADIENTS),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Each sum depends on every rank's part, so that one of each comes in and one goes out; a switch that adds and "
        "multicasts needs no more.",
    ),
)
