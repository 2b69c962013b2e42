"""RingAttentionBackwardDP: the backward pass of ring attention, averaged over data-parallel replicas."""

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
    Stream,
    Tensor,
    Trials,
    with_link,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, all_of, far, norm_close, rms, rule, wide

if TYPE_CHECKING:
    import torch

ROW_TOLERANCE = 2e-2


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the grid of ranks (rank = g * C + c), its groups, and one rank's positions."""
    replicas = ax.number_or_none("G") or min(2, ax.W)
    if ax.W % replicas:
        raise SizeError(f"axis G={replicas} must divide W={ax.W}")
    ring, world = ax.W // replicas, range(ax.W)
    return {
        "G": replicas,
        "C": ring,
        "g": ax.r // ring,
        "c": ax.r % ring,
        "S": ax.number_or_none("S") or max(1, ax.T // ring),
        "cp_group": tuple(tuple(world[first : first + ring]) for first in range(0, ax.W, ring)),
        "dp_group": tuple(tuple(world[c::ring]) for c in range(ring)) if ax.flag("averaged") else None,
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through mask, softmax scale and factoring of the world."""
    if draw.timed:
        return {}
    scale = draw.choice((0.6, 1.6)) * draw.uniform(0.9, 1.1) * ax.d**-0.5
    modes: tuple[dict[str, AxisValue], ...] = (
        {},
        {"causal": True, "softmax_scale": scale},
        {"causal": True, "softmax_scale": None, "G": 1, "averaged": False},
        {"causal": False, "softmax_scale": scale, "G": ax.W if draw.trial % 8 > 3 else None},
    )
    return modes[draw.trial % len(modes)]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, first: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (B, S, h, d), in the dtype of q, and float32 logsumexp (B, h, S) of queries over the given keys.

    Args:
        q: (B, S, h, d).
        k: (B, J, h, d).
        v: (B, J, h, d).
        scale: Scale of the scores.
        first: Position of the first query where later keys are masked; None without mask.
    """
    import torch

    out = torch.empty_like(q)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], device=q.device)
    for head in range(q.shape[2]):  # one at a time: scores of all heads would not fit at large sizes
        scores = q[:, :, head].float() @ k[:, :, head].float().transpose(1, 2) * scale
        if first is not None:
            position = torch.arange(k.shape[1], device=q.device)
            queries = torch.arange(first, first + q.shape[1], device=q.device)
            scores = scores.masked_fill(position > queries[:, None], -torch.inf)
        lse[:, head] = scores.logsumexp(-1)
        out[:, :, head] = (scores.softmax(-1) @ v[:, :, head].float()).to(q.dtype)
    return out, lse


def local_attention(make: InputMaker, stream: Stream) -> tuple[torch.Tensor, ...]:
    """The inputs of upstream: output and logsumexp of attention without mask among this rank's own positions."""
    ax = make.ax
    q, k, v, dout = (stream.normal(name) for name in ("q", "k", "v", "dout"))
    return dout, q, k, v, *attention(q, k, v, ax.real_or_none("softmax_scale") or ax.d**-0.5, None)


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Output and logsumexp of the replica's whole attention, each replica with its own data.

    On one trial in four they are those of the rank's own positions alone: they must be used as given.
    """
    import torch

    ax = make.ax
    if make.trial % 4 == 3:
        return local_attention(make, make)
    blocks = []
    for c in range(ax.C):
        stream = make.stream("block", ax.g, c)
        blocks.append(tuple(stream.normal(name) for name in ("q", "k", "v")))
    q = blocks[ax.c][0]
    k, v = (torch.cat([block[i] for block in blocks], dim=1) for i in (1, 2))
    scale = ax.real_or_none("softmax_scale") or ax.d**-0.5
    out, lse = attention(q, k, v, scale, ax.c * ax.S if ax.flag("causal") else None)
    return make.normal("dout"), q, blocks[ax.c][1], blocks[ax.c][2], out, lse


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """From the published seed (which is that of the next problem's number)."""
    seed = 42 + 58_000 + 100 * make.ax.g + make.ax.c + 1_000_003 * make.trial
    return local_attention(make, make.seeded(seed))


def mark_rows(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks rows with ||got - expected|| > 2e-2 max(||expected||, half the rms norm of all rows).

    The floor serves rows that vanish: with a mask the first position's dq is a rounding error.
    """
    import torch

    expected = wide(context.expected)
    norm = torch.linalg.vector_norm(expected, dim=-1, keepdim=True)
    floor = 0.5 * rms(expected) * expected.shape[-1] ** 0.5
    bound = ROW_TOLERANCE * DTYPE_SCALE[context.ax.dtype] * norm.maximum(floor)
    return far(wide(got), expected, bound, dim=-1).expand(got.shape)


def cost(ax: Axes) -> Cost:
    """Mean over the cp ranks, since a kernel may balance the causal mask's work among them.

    Within a replica the cheaper of: heads for positions and back; or keys and values sent to those who need them, and
    float32 gradients sent back. Over the replicas an all-reduce of three gradients.
    """
    elements = ax.B * ax.S * ax.h * ax.d
    length = ax.C * ax.S
    pairs = ax.S * (length + 1) / 2 if ax.flag("causal") else ax.S * length
    heads = (ax.C - 1) / ax.C * (7 * elements * ax.itemsize + 8 * ax.B * ax.h * ax.S)
    senders = (ax.C - 1) / (2 if ax.flag("causal") else 1)  # foreign blocks that a rank needs
    blocks = senders * 2 * elements * (ax.itemsize + 4)
    link = min(heads, blocks) + 6 * (ax.G - 1) / ax.G * elements * ax.itemsize
    return Cost(
        matrix_flops=10 * ax.B * ax.h * ax.d * pairs,
        vector_flops=5 * ax.B * ax.h * pairs + 2 * elements,
        memory_bytes=8 * elements * ax.itemsize + 4 * ax.B * ax.h * ax.S,
        link_in_bytes=link,
        link_out_bytes=link,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link three gradients; two where the first of two ranks has none but its own keys before it."""
    if ax.W == 1:
        return with_link(cost(ax), 0, 0)
    gradients = 2 if ax.G == 1 and ax.C == 2 and ax.flag("causal") else 3
    link = gradients * ax.B * ax.S * ax.h * ax.d * ax.itemsize
    return with_link(cost(ax), link, link if ax.G > 1 else 0)


# S None is T / C, T being the length of a replica; G None is min(2, W); without averaging dp_group is None.
DEFAULTS: dict[str, AxisValue] = {"G": None, "averaged": True, "causal": False, "softmax_scale": None}
GRADIENT = all_of(
    (
        norm_close(rel=6.5e-3),
        rule(mark_rows, description="rows: ||error|| <= 2e-2 max(||row||, rms of all / 2), for bfloat16"),
    )
)
BLOCK = ("B", "S", "h", "d")

PROBLEM = Problem(
    name="RingAttentionBackwardDP",
    upstream="57_ring_attention_backward_dp",
    category="context_parallel",
    origin="backward pass in the style of ring-flash-attention, on Megatron-LM's context x data parallel layout",
    summary="The backward pass of ring attention: keys, values and their gradients travel around the context-parallel "
    "ring; then dq, dk and dv are averaged over the data-parallel group.",
    weaknesses=(
        "softmax_lse and out are those of each rank's own positions and causal is never true, so that the local "
        "logsumexp may be recomputed and the mask ignored.",
    ),
    tags=("ring", "all_reduce", "attention", "backward", "subgroups", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"B": 2, "S": 4, "T": None, "h": 8, "d": 16, **DEFAULTS},
        "published": {"B": 16, "S": None, "T": 16, "h": 8, "d": 64, **DEFAULTS},
        "large": {"B": 1, "S": 4096, "T": None, "h": 32, "d": 128, **DEFAULTS},
    },
    args=(
        Tensor("dout", BLOCK, about="gradient of the output, positions c*S .. (c+1)*S-1"),
        Tensor("q", BLOCK, about="queries of the same positions"),
        Tensor("k", BLOCK, about="keys"),
        Tensor("v", BLOCK, about="values"),
        Tensor("out", BLOCK, about="forward output"),
        Tensor("softmax_lse", ("B", "h", "S"), dtype="float32", about="logsumexp of each query's scores, as given"),
        Scalar("softmax_scale", "float", optional=True, about="None means d^(-1/2)"),
        Scalar("causal", "bool", about="mask future positions"),
        Group("cp_group", about="ranks of one replica, consecutive"),
        Group("dp_group", about="ranks at one place of every replica, C apart; None means no averaging"),
    ),
    # Correct variants with bfloat16 p and ds differ by 0.003 to 0.0045 in norm, with 8 bits on the link of a ring by
    # 0.009 and more; gradients shrink with the number of keys.
    outputs=tuple(Output(name, BLOCK, check=GRADIENT) for name in ("dq", "dk", "dv")),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Gradients that are averaged depend on those of every other replica, and without replicas on the other ranks' "
        "positions: as many numbers come in as the gradients have.",
        work=least_work,
    ),
)
