"""UlyssesAttention: an attention layer on a sequence-sharded activation, heads attending within each token."""

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
    close,
)
from pkb_gym.engine.problem.rules import all_of, norm_close

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds heads per rank, positions per rank, widths of the weights, and the default group.

    Raises:
        SizeError: on one rank, heads times head size differ from the width of the activation.
    """
    width = ax.h * ax.d
    if ax.W == 1 and width != ax.H:
        raise SizeError(f"axis H={ax.H} must be h*d={width} on one rank")
    local = ax.number_or_none("S") or max(1, ax.T // ax.W)
    return {"m": ax.divide("h", by="W"), "S": local, "width": width, "rows": 3 * width, "group": None}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through the mask, several heads per rank at every world size, and widths that differ."""
    if draw.timed:
        return {}
    heads = 2 * ax.W
    head = max(1, ax.h * ax.d // heads)
    wider = heads * head + (16 if ax.W > 1 else 0)
    modes: tuple[dict[str, AxisValue], ...] = (
        {},
        {"causal": not ax.flag("causal"), "D_out": ax.H + 8},
        {"causal": False, "h": heads, "d": head, "H": wider},
        {"causal": True, "h": heads, "d": head, "H": heads * head},
    )
    return modes[draw.trial % len(modes)]


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Never masked."""
    return {"causal": False}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights of std fan_in^(-1/2): scores of std about 1, so that every head counts. All differ by rank."""
    ax = make.ax
    return (
        make.normal("hidden_states"),
        make.normal("w_qkv", std=ax.H**-0.5),
        make.normal("w_o", std=ax.width**-0.5),
    )


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All standard normal, from one stream with the published seed."""
    stream = make.seeded(42 + 39_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("hidden_states"), stream.normal("w_qkv"), stream.normal("w_o")


def cost(ax: Axes) -> Cost:
    """Of the own tokens only, since tokens do not mix: nothing has to cross the link.

    A head that can attend only to itself needs neither its query nor its scores: every head if a rank has one, the
    first of each rank if masked.
    """
    tokens = ax.B * ax.S
    alone = ax.h if ax.m == 1 else ax.W if ax.flag("causal") else 0
    projected = 2 * ax.h + (ax.h if ax.m > 1 else 0) - alone  # heads of V, K and Q; K is needed with Q
    pairs = ax.h * ((ax.m + 1) / 2 if ax.flag("causal") else ax.m) - alone  # of a query head and a key head, per token
    weights = ax.H * projected * ax.d + ax.width * ax.D_out
    return Cost(
        matrix_flops=2 * tokens * weights + 4 * tokens * ax.d * pairs,
        vector_flops=5 * tokens * pairs,
        memory_bytes=(tokens * (ax.H + ax.D_out) + weights) * ax.itemsize,
    )


def least_work(ax: Axes) -> Cost:
    """With one head a rank, the cheaper order of tokens, value weights and output weights."""
    base, tokens = cost(ax), ax.B * ax.S
    if ax.m > 1:
        return base
    weights_first = 2 * ax.H * ax.D_out * (ax.width + tokens)
    return replace(base, matrix_flops=min(base.matrix_flops, weights_first))


PROBLEM = Problem(
    name="UlyssesAttention",
    upstream="39_ulysses_attention_e2e",
    category="context_parallel",
    origin="DeepSpeed-Ulysses attention layer, with VeOmni exchange primitives",
    summary="A whole attention layer on a sequence-sharded activation: fused QKV projection, sequence-to-heads "
    "exchange, attention among each rank's heads, heads-to-sequence exchange, output projection.",
    weaknesses=(
        "Tokens never mix, so that all exchanges can be left out, and at one head per rank also Q, K and the softmax.",
        "Weights of std 1 make the softmax nearly one-hot, so that a more exact result is refused and no rule on "
        "single elements is meaningful.",
        "The mask is never used: ignoring it passes.",
    ),
    tags=("all_to_all", "ulysses", "attention", "gemm"),
    dtypes=("bfloat16", "float16", "float32"),
    # S None is max(1, T / W), T being the global length.
    sizes={
        "tiny": {"B": 2, "S": 4, "T": None, "H": 64, "h": 8, "d": 8, "D_out": 64, "causal": False},
        "published": {"B": 16, "S": None, "T": 16, "H": 512, "h": 8, "d": 64, "D_out": 512, "causal": False},
        "large": {"B": 1, "S": 8192, "T": None, "H": 8192, "h": 64, "d": 128, "D_out": 8192, "causal": False},
    },
    args=(
        Tensor("hidden_states", ("B", "S", "H"), about="positions r*S .. (r+1)*S-1"),
        Tensor("w_qkv", ("rows", "H"), about="rows Q, K, V of h*d each, head-major; differs by rank"),
        Tensor("w_o", ("D_out", "width"), about="output projection, differs by rank"),
        Group("group", about="None means all ranks"),
        Scalar("num_heads", "int", axis="h", about="heads, a multiple of W"),
        Scalar("causal", "bool", about="whether a head ignores the later heads of its rank"),
    ),
    # Correct bfloat16 variants differ by 0.004 in norm.
    outputs=(Output("out", ("B", "S", "D_out"), check=all_of((norm_close(rel=1e-2), close(rtol=2e-2, atol=4e-2)))),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Tokens do not mix, so that nothing crosses the link. A head that attends to itself alone is one product of "
        "two weights, which may be multiplied first.",
        of=("matrix", "memory"),
        work=least_work,
    ),
)
