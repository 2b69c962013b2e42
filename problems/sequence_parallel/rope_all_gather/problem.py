"""RopeAllGather: rotary embedding on each rank's slice of the sequence, then all ranks gather the whole sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, SizeError, Stream, Tensor, Trials
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, wide, within

if TYPE_CHECKING:
    import torch

    Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def derive(ax: Axes) -> dict[str, int]:
    """Adds the length of one rank's slice."""
    if ax.D % 2:
        raise SizeError(f"axis D={ax.D} must be even: the two halves of a head are rotated into each other")
    return {"s": ax.divide("S", by="W")}


def normal_inputs(stream: Stream) -> Inputs:
    """All standard normal, factors too: they are no angle's cosine and sine, and their two halves differ."""
    return (
        stream.normal("q_local"),
        stream.normal("k_local"),
        stream.normal("cos_local"),
        stream.normal("sin_local"),
    )


def published_inputs(make: InputMaker) -> Inputs:
    """Inputs of `robust`, from the published seed."""
    return normal_inputs(make.seeded(42 + 17_000 + make.rank + 1_000_003 * make.trial))


def exact_rotation(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotated sequence, and 2 u (|x[d] c| + |x[partner] z|): two roundings, of the products and of their sum."""
    import torch

    ax = context.ax
    name = context.leaf.replace("global", "local")
    exact, sizes = [], []
    for rank in range(ax.W):
        x = wide(context.tensor(name, rank))
        cos, sin = (wide(context.tensor(factor, rank)).unsqueeze(2) for factor in ("cos_local", "sin_local"))
        first, second = x.chunk(2, dim=-1)
        straight, crossed = x * cos, torch.cat((-second, first), dim=-1) * sin
        exact.append(straight + crossed)
        sizes.append(straight.abs() + crossed.abs())
    kind = torch.finfo(context.expected.dtype)
    below_normal = 2 * kind.smallest_normal * kind.eps  # three roundings of half a subnormal step each
    # 1 + 2^-10: room for the rounding of `exact` and for second-order terms.
    return torch.cat(exact, 1), (2 + 2**-9) * UNIT_ROUNDOFF[ax.dtype] * torch.cat(sizes, 1) + below_normal


def cost(ax: Axes) -> Cost:
    """Each rank rotates its own slice, which crosses the link once for each of the others."""
    factors = ax.B * ax.s * ax.D
    slices = factors * (ax.Hq + ax.Hk)
    return Cost(
        vector_flops=3 * slices,
        memory_bytes=(slices + 2 * factors + ax.W * slices) * ax.itemsize,
        link_in_bytes=(ax.W - 1) * slices * ax.itemsize,
        # A switch that multicasts takes each slice once; a lower bound must allow for it.
        link_out_bytes=slices * ax.itemsize if ax.W > 1 else 0,
    )


CHECK = within(exact_rotation, description="|out - exact| <= 2^-7 (|x[d] cos| + |x[partner] sin|) (bfloat16)")

PROBLEM = Problem(
    name="RopeAllGather",
    upstream="17_rope_allgather",
    category="sequence_parallel",
    origin="rotary embedding of Llama / HuggingFace transformers in sequence-parallel training",
    summary="Each rank rotates the queries and keys of its slice of the sequence and all ranks gather the full "
    "sequence.",
    tags=("all_gather", "elementwise", "rope"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"B": 2, "S": 16, "Hq": 4, "Hk": 2, "D": 16},
        "published": {"B": 16, "S": 16, "Hq": 8, "Hk": 8, "D": 64},
        "large": {"B": 1, "S": 32768, "Hq": 32, "Hk": 8, "D": 128},
    },
    args=(
        Tensor("q_local", ("B", "s", "Hq", "D"), about="queries at positions r*s .. (r+1)*s-1"),
        Tensor("k_local", ("B", "s", "Hk", "D"), about="keys at the same positions"),
        Tensor("cos_local", ("B", "s", "D"), about="cosine factors, all D entries independent"),
        Tensor("sin_local", ("B", "s", "D"), about="sine factors, likewise"),
    ),
    outputs=(
        Output("q_global", ("B", "S", "Hq", "D"), check=CHECK, about="rotated queries of all positions"),
        Output("k_global", ("B", "S", "Hk", "D"), check=CHECK, about="rotated keys of all positions"),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(normal_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "A foreign slice is unknown to a rank until it has come in. The own one goes out once, as a switch may "
        "multicast it.",
    ),
)
