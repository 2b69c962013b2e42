"""RingAttentionTP: an attention layer with heads split over one group of ranks and the sequence over another."""

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
    close,
    product_numbers,
    with_link,
)
from pkb_gym.engine.problem.rules import all_of, norm_close

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the grid of ranks (rank = c * Tn + t), its groups, and one rank's heads, rows, columns and positions."""
    tp = ax.number_or_none("Tn") or min(2, ax.W)
    if ax.W % tp:
        raise SizeError(f"axis Tn={tp} must divide W={ax.W}")
    ring, world = ax.W // tp, range(ax.W)
    hl = ax.replace(Tn=tp).divide("h", by="Tn")
    return {
        "Tn": tp,
        "C": ring,
        "t": ax.r % tp,
        "c": ax.r // tp,
        "S": ax.number_or_none("S") or max(1, ax.T // ring),
        "hl": hl,
        "width": hl * ax.d,
        "rows": 3 * hl * ax.d,
        "tp_group": tuple(tuple(world[first : first + tp]) for first in range(0, ax.W, tp)),
        "cp_group": tuple(tuple(world[t::tp]) for t in range(tp)),
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through mask, softmax scale, factoring of the world, and widths that differ."""
    if draw.timed:
        return {}
    scale = draw.uniform(0.6, 1.4) * ax.d**-0.5
    wider = ax.D + 16 * draw.randint(1, 4)
    modes: tuple[dict[str, AxisValue], ...] = (
        {"causal": True},
        {"causal": False, "softmax_scale": scale, "D": wider},
        {"causal": True, "softmax_scale": scale, "Tn": 1, "D_out": wider},
        {"causal": False, "Tn": ax.W},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights of std fan_in^(-1/2): scores of std about 1, so that no average of the values passes for attention."""
    ax = make.ax
    weights = make.stream("weights", ax.t)
    return (
        make.stream("hidden_states", ax.c).normal("hidden_states"),
        weights.normal("w_qkv", std=ax.D**-0.5),
        weights.normal("w_o", std=(ax.h * ax.d) ** -0.5),
    )


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights of std 0.02, from the published seeds (which are those of the next problem's number)."""
    seed = 42 + 56_000 + 1_000_003 * make.trial
    weights = make.seeded(seed + 10_000 + make.ax.t)
    return (
        make.seeded(seed + make.ax.c).normal("hidden_states"),
        weights.normal("w_qkv") * 0.02,
        weights.normal("w_o") * 0.02,
    )


def cost(ax: Axes) -> Cost:
    """Mean over the cp ranks, since a kernel may balance the causal mask's work among them.

    The sequence is exchanged by the cheapest of three ways: keys and values sent to those who need them, hidden states
    likewise, or heads for positions and back.
    """
    tokens = ax.B * ax.S
    length = ax.C * ax.S
    pairs = ax.S * (length + 1) / 2 if ax.flag("causal") else ax.S * length
    senders = (ax.C - 1) / (2 if ax.flag("causal") else 1)  # foreign blocks that a rank needs
    heads = 4 * (ax.C - 1) / ax.C * tokens * ax.width
    sequence = min(senders * tokens * 2 * ax.width, senders * tokens * ax.D, heads)
    share = (ax.Tn - 1) / ax.Tn
    link = (sequence + 2 * share * tokens * ax.D_out) * ax.itemsize
    return Cost(
        matrix_flops=2 * tokens * ax.width * (3 * ax.D + ax.D_out) + 4 * ax.B * ax.width * pairs,
        vector_flops=5 * ax.B * ax.hl * pairs + share * tokens * ax.D_out,
        memory_bytes=(tokens * (ax.D + ax.D_out) + ax.rows * ax.D + ax.width * ax.D_out) * ax.itemsize,
        link_in_bytes=link,
        link_out_bytes=link,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link what foreign heads add to the result, or their weights; where heads are here, foreign positions."""
    tokens, others = ax.B * ax.S, ax.Tn - 1
    if others:
        weights = others * (ax.rows * ax.D + ax.width * ax.D_out)
        inward = min(product_numbers(tokens, ax.D_out, others * ax.width), weights)
    else:
        inward = tokens * min(ax.D, ax.D_out) if ax.C > 1 else 0
    return with_link(cost(ax), inward * ax.itemsize, 0)


PROBLEM = Problem(
    name="RingAttentionTP",
    upstream="55_ring_attention_tp",
    category="context_parallel",
    origin="Megatron-LM style tensor x context parallel attention with ring attention",
    summary="One attention layer with heads split over the tensor-parallel group and the sequence over the "
    "context-parallel group: ring attention, then a sum of the output projection.",
    weaknesses=(
        "Weights of std 0.02 make softmax nearly uniform, so that a causal mean of the values comes within 11-20 % "
        "of the result, inside an absolute tolerance.",
    ),
    tags=("ring", "all_reduce", "attention", "subgroups", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    # S None is T / C, T being the global length; Tn None is min(2, W).
    sizes={
        "tiny": {
            "B": 2,
            "S": 4,
            "T": None,
            "D": 48,
            "D_out": 48,
            "h": 8,
            "d": 8,
            "Tn": None,
            "causal": True,
            "softmax_scale": None,
        },
        "published": {
            "B": 16,
            "S": None,
            "T": 16,
            "D": 512,
            "D_out": 512,
            "h": 8,
            "d": 64,
            "Tn": None,
            "causal": True,
            "softmax_scale": None,
        },
        "large": {
            "B": 1,
            "S": 4096,
            "T": None,
            "D": 8192,
            "D_out": 8192,
            "h": 64,
            "d": 128,
            "Tn": None,
            "causal": True,
            "softmax_scale": None,
        },
    },
    args=(
        Tensor("hidden_states", ("B", "S", "D"), about="positions c*S .. (c+1)*S-1; equal on the ranks of a tp_group"),
        Tensor("w_qkv", ("rows", "D"), about="rows Q, K, V of this tp rank's heads; equal on the ranks of a cp_group"),
        Tensor("w_o", ("D_out", "width"), about="columns of this tp rank's heads; equal on the ranks of a cp_group"),
        Scalar("num_heads", "int", axis="h", about="heads over all tp ranks"),
        Scalar("softmax_scale", "float", optional=True, about="None means d^(-1/2)"),
        Scalar("causal", "bool", about="mask future positions"),
        Group("tp_group", about="ranks that share positions, consecutive"),
        Group("cp_group", about="ranks that share heads, Tn apart"),
    ),
    # Correct bfloat16 variants differ by 0.003 in norm; the norm counts, since late positions have small outputs.
    outputs=(Output("out", ("B", "S", "D_out"), check=all_of((norm_close(rel=1e-2), close(rtol=2e-2, atol=0.1)))),),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The result is a sum over heads on other ranks, or depends on foreign positions: the numbers that determine "
        "that part of it come in.",
        work=least_work,
    ),
)
