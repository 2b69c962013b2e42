"""FusedMoELoRA: a mixture-of-experts layer with a LoRA branch at each of its three expert layers."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, AxisValue, Cost, InputMaker, Problem, Tensor, Trials
from pkb_gym.engine.problem.row_rules import summed_rows_close
from pkb_gym.engine.problem.rules import all_of, norm_close
from pkb_gym.problems.expert_parallel import moe_layer

if TYPE_CHECKING:
    from pkb_gym.engine.problem import Value

LORA_SHAPES = {
    "lora_gate_A": ("rank", "H"),
    "lora_gate_B": ("I", "rank"),
    "lora_up_A": ("rank", "H"),
    "lora_up_B": ("I", "rank"),
    "lora_down_A": ("rank", "I"),
    "lora_down_B": ("H", "rank"),
}
BRANCH = 0.3
"""Standard deviation of what a branch adds, as drawn; leaving one out moves a row by about 40 %."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the size G of the group, the experts L of one rank, and this rank's number of tokens."""
    return moe_layer.derive_layer(ax.replace(G=len(ax.group_ranks("group"))))


def robust_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Inputs of the plain layer, with branches as large as the base layers."""
    factors = []
    for name, shape in LORA_SHAPES.items():
        std = 1 / sqrt(make.ax.number(shape[1])) if name.endswith("A") else BRANCH / sqrt(make.ax.rank)
        factors.append(make.normal(name, std=std))
    return *moe_layer.robust_inputs(make), *factors


def published_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Standard normal factors, which leave the base layers next to nothing."""
    stream = moe_layer.published_stream(make)
    return *moe_layer.published_from(stream, make), *(stream.normal(name) for name in LORA_SHAPES)


def factor_elements(ax: Axes) -> int:
    """Of the three branches' factors A and B."""
    return 3 * ax.rank * (ax.H + ax.I)


def parameters(ax: Axes) -> int:
    """Of one rank's MLP with its branches."""
    return moe_layer.layer_parameters(ax) + factor_elements(ax)


def cost(ax: Axes) -> Cost:
    """The plain layer's, and either both products of each branch or W + B A once, whichever is cheaper."""
    factors = factor_elements(ax)
    base = moe_layer.layer_cost(ax, parameters(ax))
    times = moe_layer.evaluations(ax)
    merged = 3 * ax.H * ax.I
    return replace(
        base,
        matrix_flops=base.matrix_flops + min(2 * times * factors, 2 * merged * ax.rank),
        vector_flops=base.vector_flops + min(times * (2 * ax.I + ax.H), merged),
    )


PROBLEM = Problem(
    name="FusedMoELoRA",
    upstream="32_fused_moe_fwd_lora",
    category="expert_parallel",
    origin=moe_layer.ORIGIN + "; LoRA variant",
    summary="The expert-parallel mixture-of-experts layer with a LoRA branch added to each of its three expert layers.",
    weaknesses=(
        "Unscaled branches leave the base layers 2 % of a row, and 27 % of an exact result's elements are refused.",
        moe_layer.NEARLY_ONE_HOT.format(share="58 %"),
        moe_layer.UNIFORM,
        moe_layer.SMALL_WEIGHTS,
    ),
    no_capture_because="How many rows go to each rank depends on the routing, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "moe", "lora", "gemm", "overlap"),
    dtypes=("bfloat16",),
    sizes={
        "tiny": {"T": 64, "H": 64, "I": 32, "E": 8, "K": 2, "rank": 4, **moe_layer.MODES},
        "published": {"T": 1024, "H": 1024, "I": 128, "E": 8, "K": 2, "rank": 8, **moe_layer.MODES},
        "large": {"T": 8192, "H": 4096, "I": 4096, "E": 8, "K": 2, "rank": 32, **moe_layer.MODES},
    },
    args=(
        *moe_layer.DATA_ARGS,
        *(
            Tensor(name, shape, about=f"LoRA of the {name.split('_')[1]} layer, {place} factor")
            for (name, shape), place in zip(LORA_SHAPES.items(), ("first", "second") * 3, strict=True)
        ),
        *moe_layer.COUNT_ARGS,
        moe_layer.GROUP_ARG,
    ),
    # Wider than for the plain layer: merging W + B A into one bfloat16 weight moves a row by up to 1.2 %, logits that
    # round otherwise by up to 2.5 %; few rows of a whole output meet with that.
    outputs=(replace(moe_layer.OUTPUT, check=all_of((summed_rows_close(4e-2), norm_close(1.65e-2)))),),
    derive=derive,
    robust=Trials(robust_inputs, vary=moe_layer.vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=moe_layer.least_work_of(parameters),
)
