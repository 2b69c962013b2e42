"""GatedDeltaNetCP: gated delta-rule linear attention of a split sequence, whose heads are shared out for the scan."""

from __future__ import annotations

from math import log
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
    Tensor,
    Trials,
    close,
)
from pkb_gym.engine.problem.rules import all_of, norm_close
from pkb_gym.problems.context_parallel.zero_vectors import normal_or_zero

if TYPE_CHECKING:
    import torch


LASTING_SHARDS = 2
"""Lengths of a shard in which the state of a lasting head falls to 1/e, by its gates and by corrections each."""

MEAN_DECAY = 0.22
"""Mean of exp(gate + bias), the decay of a position where the gate's scale is 1."""


def head_numbers(ax: Axes) -> tuple[int, int]:
    """Query and value heads: where the size leaves them open, `heads` rounded up to a multiple of W."""
    default = -(-(ax.number_or_none("heads") or 0) // ax.W) * ax.W
    return ax.number_or_none("Hq") or default, ax.number_or_none("Hv") or default


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the numbers of heads and this rank's share of the value heads, and keeps the default group."""
    query_heads, value_heads = head_numbers(ax)
    ax = ax.replace(Hq=query_heads, Hv=value_heads)
    ax.divide("Hq", by="W")
    ax.divide("Hv", by="Hq")
    return {"Hq": query_heads, "Hv": value_heads, "group": None, "Hl": ax.divide("Hv", by="W")}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: value heads per query head as the size has them, then two, one and four; values keep their size.

    Where the heads of values cannot be made narrower, there are more of them.
    """
    if draw.timed or draw.trial % 4 == 0:
        return {}
    query_heads, _ = head_numbers(ax)
    share = (2, 1, 4)[draw.trial % 4 - 1]
    narrow = ax.D // share if ax.D % share == 0 else ax.D
    return {"Hq": query_heads, "Hv": share * query_heads, "D": narrow}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """There are as many value heads as query heads."""
    query_heads, _ = head_numbers(ax)
    return {"Hv": query_heads}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Gates N(-4, 2), under which heads decay slowly at many positions, so that the state crosses shards.

    Every second head, in an order of its own, keeps what several shards have written: over L positions gates let it
    decay, and corrections overwrite it, about to a half. So no number of positions stands for all that precede them.
    A few queries and keys are zero.
    """
    ax = make.ax
    lasting = make.shared.permutation(ax.Hv) % 2 == 0
    a_log, dt_bias = make.uniform("a_log", -1.0, 1.0), make.normal("dt_bias")
    own = lasting[ax.r * ax.Hl : (ax.r + 1) * ax.Hl]
    a_log[own] = 0.0
    dt_bias[own] -= log(LASTING_SHARDS * ax.L * MEAN_DECAY)
    beta = make.randn(ax.B, ax.L, ax.Hv) + lasting * min(0.0, log(ax.K / (LASTING_SHARDS * ax.L)))
    return (
        normal_or_zero(make, "q"),
        normal_or_zero(make, "k"),
        make.normal("v"),
        make.normal("gate", mean=-4.0, std=2.0),
        beta.sigmoid().to(make.dtype),
        a_log,
        dt_bias,
    )


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Standard normal from the published seed; gate scale and bias count evenly over all heads."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 75_000 + make.rank + 1_000_003 * make.trial)
    q, k, v, gate, beta = (stream.normal(name) for name in ("q", "k", "v", "gate", "beta"))
    mine = slice(ax.r * ax.Hl, (ax.r + 1) * ax.Hl)
    a_log = torch.linspace(0.0, 0.2, ax.Hv, device=make.device).to(make.dtype)[mine].clone()
    dt_bias = torch.linspace(-0.1, 0.1, ax.Hv, device=make.device).to(make.dtype)[mine].clone()
    return q, k, v, gate, beta.sigmoid(), a_log, dt_bias


def cost(ax: Axes) -> Cost:
    """The recurrence of the rank's own heads, whose products suit matrix units when done in chunks.

    The cheapest of three ways: positions for heads and back; the state handed to the next rank; or, as long as few
    positions went into it, the keys and corrections that it is the sum of.
    """
    positions = ax.B * ax.L
    moved = positions * (2 * ax.Hq * ax.K + 2 * ax.Hv * ax.D + 2 * ax.Hv)
    heads = (ax.W - 1) / ax.W * moved
    state = ax.B * ax.Hv * ax.K * ax.D
    factors = positions * (ax.Hq * ax.K + ax.Hv * ax.D + ax.Hv)  # of one rank's contribution
    return Cost(
        matrix_flops=7 * positions * ax.Hv * ax.K * ax.D,
        memory_bytes=(moved + 2 * ax.Hl) * ax.itemsize,
        link_in_bytes=min(heads, state, ax.r * factors) * ax.itemsize,
        link_out_bytes=(min(heads, state, (ax.r + 1) * factors) if ax.r < ax.W - 1 else 0) * ax.itemsize,
    )


PROBLEM = Problem(
    name="GatedDeltaNetCP",
    upstream="75_fla_gated_deltanet_cp",
    category="context_parallel",
    origin="flash-linear-attention: Gated DeltaNet layer with Ulysses-style context parallelism",
    summary="Gated delta-rule linear attention on a sequence-sharded input: an all-to-all turns positions into heads, "
    "each rank scans the whole sequence for its heads, and an all-to-all turns the result back.",
    weaknesses=(
        "Outputs are tiny against the absolute tolerance.",
        "The state forgets within a few tokens, and gate scale and bias never change.",
        "There are always as many value heads as query heads.",
    ),
    tags=("all_to_all", "linear_attention", "recurrence", "grouped_heads"),
    dtypes=("bfloat16", "float16", "float32"),
    # Hq and Hv None are `heads` rounded up to a multiple of W.
    sizes={
        "tiny": {"B": 2, "L": 8, "Hq": 8, "Hv": 16, "heads": None, "K": 8, "D": 4},
        "published": {"B": 1, "L": 64, "Hq": None, "Hv": None, "heads": 6, "K": 256, "D": 512},
        "large": {"B": 1, "L": 2048, "Hq": 16, "Hv": 32, "heads": None, "K": 128, "D": 128},
    },
    args=(
        Tensor("q", ("B", "L", "Hq", "K"), about="queries of positions r*L .. (r+1)*L-1, not normalised"),
        Tensor("k", ("B", "L", "Hq", "K"), about="keys, not normalised"),
        Tensor("v", ("B", "L", "Hv", "D"), about="values; value head h goes with query head h // (Hv / Hq)"),
        Tensor("gate", ("B", "L", "Hv"), about="gate of the decay"),
        Tensor("beta", ("B", "L", "Hv"), about="write strength, in (0, 1)"),
        Tensor("a_log", ("Hl",), about="log of the gate's scale, value heads r*Hl .. (r+1)*Hl-1"),
        Tensor("dt_bias", ("Hl",), about="gate bias of the same heads"),
        Group("group", about="None means all ranks"),
    ),
    # Two units of bfloat16 and 2 % of the rms.
    outputs=(
        Output("out", ("B", "L", "Hv", "D"), check=all_of((close(rtol=2**-6, atol_rms=2e-2), norm_close(rel=1e-2)))),
    ),
    derive=derive,
    robust=Trials(robust_inputs, robust_vary),
    published=Trials(published_inputs, published_vary),
    cost=cost,
    least_work=LeastWork(
        "Inputs are read and the result is written. The recurrence can be evaluated in several orders, and a state "
        "that has decayed need not cross the link.",
        of=("memory",),
    ),
)
