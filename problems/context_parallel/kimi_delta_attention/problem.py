"""KimiDeltaAttention: delta-rule linear attention of a split sequence, with one decay per key channel."""

from __future__ import annotations

from math import exp, log
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
    SizeError,
    Tensor,
    Trials,
    with_link,
)
from pkb_gym.engine.problem.row_rules import close_by_rows
from pkb_gym.engine.problem.rules import all_of, norm_close
from pkb_gym.problems.context_parallel.zero_vectors import normal_or_zero

if TYPE_CHECKING:
    import torch


LASTING_SHARDS = 2
"""Lengths of a shard in which the state of a lasting head falls to 1/e, by its gates and by corrections each."""

LASTING_SCALE = -1.0
"""Log of a lasting head's gate scale: under a large one, a few positions would make it forget."""

MEAN_DECAY = 1.61
"""Mean of 5 exp(s (g + bias)), the decay of a position under the gate's scale s of a lasting head."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the grid of ranks (rank = c * P + p) and its groups; those that are the default stay None."""
    summed = ax.number_or_none("P") or (2 if ax.W >= 4 and ax.W % 2 == 0 else 1)
    if ax.W % summed:
        raise SizeError(f"axis P={summed} must divide W={ax.W}")
    world = range(ax.W)
    return {
        "P": summed,
        "C": ax.W // summed,
        "p": ax.r % summed,
        "c": ax.r // summed,
        "HK": ax.H * ax.K,
        "tp_group": tuple(tuple(world[i : i + summed]) for i in range(0, ax.W, summed)) if summed > 1 else None,
        "cp_group": tuple(tuple(world[p::summed]) for p in range(summed)) if summed > 1 else None,
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing, the factoring of the world: as the size names it, context alone, and one or two in turn."""
    if draw.timed:
        return {}
    factors = (ax["P"], 1, ax["P"], min(2, ax.W) if draw.trial % 8 > 3 else ax.W)
    return {"P": factors[draw.trial % len(factors)]}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Gates N(-4, 2), under which many channels decay slowly, so that the state crosses the borders of shards.

    Every second head, in an order of its own, keeps what several shards have written: over L positions gates let it
    decay, and corrections overwrite it, about to a half. So no number of positions stands for all that precede them.
    A few queries and keys are zero.
    Gate scale and bias are equal on the ranks of a cp_group alone.
    """
    ax, gates = make.ax, make.stream("gates", make.ax.p)
    lasting = gates.permutation(ax.H) % 2 == 0
    a_log, dt_bias = gates.uniform("a_log", -1.0, 1.0), gates.normal("dt_bias")
    a_log[lasting] = LASTING_SCALE
    dt_bias.view(ax.H, ax.K)[lasting] -= log(LASTING_SHARDS * ax.L * MEAN_DECAY) / exp(LASTING_SCALE)
    beta = make.randn(ax.B, ax.L, ax.H) + lasting * min(0.0, log(ax.K / (LASTING_SHARDS * ax.L)))
    return (
        normal_or_zero(make, "q"),
        normal_or_zero(make, "k"),
        make.normal("v"),
        make.normal("g", mean=-4.0, std=2.0),
        beta.to(make.dtype),
        a_log,
        dt_bias,
    )


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Standard normal from the published seed; gate scale and bias count evenly from -0.1 to 0.1."""
    import torch

    stream = make.seeded(42 + 74_000 + make.rank + 1_000_003 * make.trial)
    even = (torch.linspace(-0.1, 0.1, n, device=make.device).to(make.dtype) for n in (make.ax.H, make.ax.HK))
    return (*(stream.normal(name) for name in ("q", "k", "v", "g", "beta")), *even)


def cost(ax: Axes) -> Cost:
    """The recurrence of the rank's own positions, whose products suit matrix units when done in chunks.

    Over a cp_group the cheapest of three ways: positions for heads and back; the state handed to the next rank; or, as
    long as few positions went into it, the keys and corrections that it is the sum of.
    """
    n = ax.B * ax.L * ax.H
    inputs = n * (3 * ax.K + ax.D + 1)
    heads = (ax.C - 1) / ax.C * (inputs + n * ax.D)
    state = ax.B * ax.H * ax.K * ax.D
    factors = n * (ax.K + ax.D)  # of one rank's contribution
    total = 2 * (ax.P - 1) / ax.P * n * ax.D
    return Cost(
        matrix_flops=7 * ax.K * ax.D * n,
        vector_flops=10 * ax.K * n,
        memory_bytes=(inputs + n * ax.D + ax.H * (ax.K + 1)) * ax.itemsize,
        link_in_bytes=(min(heads, state, ax.c * factors) + total) * ax.itemsize,
        link_out_bytes=((min(heads, state, (ax.c + 1) * factors) if ax.c < ax.C - 1 else 0) + total) * ax.itemsize,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link the sum alone."""
    total = ax.B * ax.L * ax.H * ax.D * ax.itemsize if ax.P > 1 else 0
    return with_link(cost(ax), total, total)


PROBLEM = Problem(
    name="KimiDeltaAttention",
    upstream="74_fla_kimi_delta_attention_cp_tp",
    category="context_parallel",
    origin="flash-linear-attention: Kimi Delta Attention of Kimi Linear, with context and tensor parallel groups",
    summary="Gated delta-rule linear attention with one decay per key channel; the sequence is split over the context "
    "group and the results are summed over the tensor group.",
    weaknesses=(
        "Outputs are tiny against the absolute tolerance.",
        "The state forgets within a few tokens, so that what earlier ranks hold hardly matters.",
        "Gate scale and bias never change.",
    ),
    tags=("all_gather", "all_reduce", "linear_attention", "recurrence", "subgroups"),
    dtypes=("bfloat16", "float16", "float32"),
    # P None is 2 for even world sizes from 4 on, else 1.
    sizes={
        "tiny": {"B": 2, "L": 8, "H": 2, "K": 16, "D": 8, "P": None},
        "published": {"B": 1, "L": 64, "H": 16, "K": 128, "D": 128, "P": None},
        "large": {"B": 1, "L": 4096, "H": 32, "K": 128, "D": 128, "P": None},
    },
    args=(
        Tensor("q", ("B", "L", "H", "K"), about="queries of positions c*L .. (c+1)*L-1, not normalised"),
        Tensor("k", ("B", "L", "H", "K"), about="keys, not normalised"),
        Tensor("v", ("B", "L", "H", "D"), about="values"),
        Tensor("g", ("B", "L", "H", "K"), about="gate of the decay, per key channel"),
        Tensor("beta", ("B", "L", "H"), about="write strength before the sigmoid"),
        Tensor("a_log", ("H",), about="log of the gate's scale, equal on the ranks of a cp_group"),
        Tensor("dt_bias", ("HK",), about="gate bias (H, K), equal on the ranks of a cp_group"),
        Group("cp_group", about="ranks that share the sequence, P apart; None means all"),
        Group("tp_group", about="ranks whose outputs are summed, consecutive; None means no sum"),
    ),
    # Two units of bfloat16; and 20 % of the rms, for elements whose parts of two tensor-parallel ranks cancel.
    outputs=(
        Output(
            "out", ("B", "L", "H", "D"), check=all_of((close_by_rows(rtol=2**-6, atol_rms=0.2), norm_close(rel=1e-2)))
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The result is a sum over the ranks of a tp_group, so that as many numbers come in as it has. The recurrence "
        "has several orders, and a state may have decayed.",
        of=("memory", "link"),
        work=least_work,
    ),
)
