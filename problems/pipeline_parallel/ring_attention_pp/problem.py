"""RingAttentionPP: a stack of attention layers, one per pipeline stage, each over a ring of ranks."""

from __future__ import annotations

from dataclasses import replace
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
)
from pkb_gym.engine.problem.rules import all_of, norm_close, rows_close

if TYPE_CHECKING:
    import torch

MAX_STAGES = 4
"""In drawn trials: rounding errors grow from stage to stage."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the grid of ranks (rank = p * C + c), its groups, and this rank's rows and positions."""
    stages = ax.number_or_none("stages") or min(2, ax.W)
    if ax.W % stages:
        raise SizeError(f"axis stages={stages} must divide W={ax.W}")
    if stages > 1 and ax.D_out != ax.D:
        raise SizeError(f"axis D_out={ax.D_out} must equal D={ax.D} where there are {stages} stages")
    ring, world = ax.W // stages, range(ax.W)
    return {
        "stages": stages,
        "C": ring,
        "p": ax.r // ring,
        "c": ax.r % ring,
        "S": ax.number_or_none("S") or max(1, ax.T // ring),
        "width": ax.h * ax.d,
        "rows": 3 * ax.h * ax.d,
        "cp_group": tuple(tuple(world[first : first + ring]) for first in range(0, ax.W, ring)),
        # Without stages both spellings of "no pipeline" come up: None, and groups of one rank in published axes.
        "pp_group": tuple(tuple(world[c::ring]) for c in range(ring)) if ax.flag("pipeline") else None,
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through mask, softmax scale, number of stages, and widths that differ."""
    if draw.timed:
        return {}
    scale = draw.choice((0.6, 1.6)) * draw.uniform(0.9, 1.1) * ax.d**-0.5
    wider = ax.D + 16 * draw.randint(1, 4)
    modes: tuple[dict[str, AxisValue], ...] = (
        {},
        {"causal": False, "softmax_scale": scale, "D": wider, "D_out": wider},
        {"causal": True, "softmax_scale": scale, "stages": 1, "pipeline": False, "D_out": wider},
        {"causal": False, "softmax_scale": None, "stages": min(MAX_STAGES, ax.W)},
    )
    return modes[draw.trial % len(modes)]


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights of std fan_in^(-1/2), a quarter more after stage 0, so that no average of the values passes there.

    Later stages must not use their hidden states: they are unrelated numbers, and NaN on odd trials.
    """
    import torch

    ax = make.ax
    weights = make.stream("weights", ax.p)
    gain = 1.25 if ax.p else 1.0
    hidden = make.normal("hidden_states")
    if ax.p and make.trial % 2:
        hidden = torch.full_like(hidden, torch.nan)
    return (
        hidden,
        weights.normal("w_qkv", std=gain * ax.D**-0.5),
        weights.normal("w_o", std=gain * ax.width**-0.5),
    )


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights of std 0.02, from the published seeds (which are those of the next problem's number)."""
    seed = 42 + 57_000 + 1_000_003 * make.trial
    weights = make.seeded(seed + 20_000 + make.ax.p)
    return (
        make.seeded(seed + make.ax.c).normal("hidden_states"),
        weights.normal("w_qkv") * 0.02,
        weights.normal("w_o") * 0.02,
    )


def cost(ax: Axes) -> Cost:
    """Mean over a stage's ranks, since a kernel may balance the causal mask's work among them.

    Stages follow one another, so that a kernel in which every rank works on its own stage alone takes `stages` times
    as long; but ranks may help out at other stages. The sequence is exchanged by the cheapest of three ways: keys and
    values sent to those who need them, hidden states likewise, or heads for positions and back.
    """
    tokens = ax.B * ax.S
    length = ax.C * ax.S
    pairs = ax.S * (length + 1) / 2 if ax.flag("causal") else ax.S * length
    senders = (ax.C - 1) / (2 if ax.flag("causal") else 1)  # foreign blocks that a rank needs
    heads = 4 * (ax.C - 1) / ax.C * tokens * ax.width
    sequence = min(senders * tokens * 2 * ax.width, senders * tokens * ax.D, heads)
    hand_over = tokens * ax.D
    return Cost(
        matrix_flops=2 * tokens * ax.width * (3 * ax.D + ax.D_out) + 4 * ax.B * ax.width * pairs,
        vector_flops=5 * ax.B * ax.h * pairs,
        memory_bytes=(tokens * (ax.D + ax.D_out) + ax.rows * ax.D + ax.width * ax.D_out) * ax.itemsize,
        link_in_bytes=(sequence + (hand_over if ax.p > 0 else 0)) * ax.itemsize,
        link_out_bytes=(sequence + (hand_over if ax.p < ax.stages - 1 else 0)) * ax.itemsize,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link hidden states, or results; hidden states of later stages are not read."""
    base, tokens = cost(ax), ax.B * ax.S
    is_fed = ax.p > 0 or (ax.C > 1 and (ax.c > 0 or not ax.flag("causal")))
    return replace(
        base,
        memory_bytes=base.memory_bytes - (tokens * ax.D * ax.itemsize if ax.p else 0),
        link_in_bytes=tokens * min(ax.D, ax.D_out) * ax.itemsize if is_fed else 0,
        link_out_bytes=0,
    )


# S None is T / C, T being the global length; stages None is min(2, W); without pipeline pp_group is None.
DEFAULTS: dict[str, AxisValue] = {"stages": None, "pipeline": True, "causal": True, "softmax_scale": None}

PROBLEM = Problem(
    name="RingAttentionPP",
    upstream="56_ring_attention_pp",
    category="pipeline_parallel",
    origin="Megatron-LM style pipeline x context parallel layout with ring attention",
    summary="A stack of attention layers, one per pipeline stage; inside a stage the sequence is split over a ring, "
    "and each rank passes its output to the same place of the next stage.",
    weaknesses=(
        "Weights of std 0.02 shrink the signal from stage to stage and make the second softmax uniform, so that a "
        "causal mean of its values passes.",
        "Hidden states of later stages equal those of stage 0; stages, mask and scale never change.",
    ),
    tags=("ring", "send_recv", "pipeline", "attention", "subgroups", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"B": 2, "S": 4, "T": None, "D": 48, "D_out": 48, "h": 4, "d": 8, **DEFAULTS},
        "published": {"B": 16, "S": None, "T": 16, "D": 512, "D_out": 512, "h": 8, "d": 64, **DEFAULTS},
        "large": {"B": 1, "S": 4096, "T": None, "D": 4096, "D_out": 4096, "h": 32, "d": 128, **DEFAULTS},
    },
    args=(
        Tensor("hidden_states", ("B", "S", "D"), about="positions c*S .. (c+1)*S-1; only stage 0 reads the values"),
        Tensor("w_qkv", ("rows", "D"), about="rows Q, K, V of this stage; equal on the ranks of a cp_group"),
        Tensor("w_o", ("D_out", "width"), about="of this stage; equal on the ranks of a cp_group"),
        Scalar("num_heads", "int", axis="h", about="heads"),
        Scalar("softmax_scale", "float", optional=True, about="None means d^(-1/2)"),
        Scalar("causal", "bool", about="mask future positions"),
        Group("cp_group", about="ranks of one stage, consecutive"),
        Group("pp_group", about="ranks at one place of every stage, C apart; None means a single stage"),
    ),
    # The norm counts, since averages of values shrink with the number of positions and stages.
    outputs=(Output("out", ("B", "S", "D_out"), check=all_of((norm_close(rel=1e-2), rows_close(rel=2e-2)))),),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "A later stage depends on the one before, and a position on foreign ones: as many numbers come in as hidden "
        "states or results have. Ranks may share the products of all stages.",
        work=least_work,
    ),
)
