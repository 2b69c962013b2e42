"""GemvDecode: the few current tokens times a vocabulary-sharded output layer; all ranks gather the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, all_of, norm_close, wide, within

if TYPE_CHECKING:
    import torch

    Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def derive(ax: Axes) -> dict[str, int]:
    """Adds the one of V and Vl that is None: the whole vocabulary, and one rank's part of it."""
    V, Vl = ax.number_or_none("V"), ax.number_or_none("Vl")
    if (V is None) == (Vl is None):
        raise SizeError(f"give exactly one of V={V} and Vl={Vl}; the other, None, follows from V = W*Vl")
    return {"V": ax.W * ax.Vl} if V is None else {"Vl": ax.divide("V", by="W")}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing, other numbers of tokens after the size's own."""
    if draw.timed or draw.trial == 0:
        return {}
    return {"T": draw.randint(2, max(8, ax.T))}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Always one token."""
    return {"T": 1}


def robust_inputs(make: InputMaker) -> Inputs:
    """Tokens common to the ranks; the weight scaled so that the bias counts as much as the product."""
    return (
        make.shared.normal("hidden_states"),
        make.normal("weight_shard", std=make.ax.h**-0.5),
        make.normal("bias_shard"),
    )


def published_inputs(make: InputMaker) -> Inputs:
    """All standard normal; ranks draw the whole weight and bias alike, and keep their own part."""
    stream = make.seeded(42 + 46_000 + 1_000_003 * make.trial)
    hidden_states = stream.normal("hidden_states")
    own: list[torch.Tensor] = []
    for name in ("weight_shard", "bias_shard"):
        for rank in range(make.world_size):
            part = stream.normal(name)
            if rank == make.rank:
                own.append(part)
    return hidden_states, own[0], own[1]


def row_scaled(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits, and 1e-2 |logit| + 2.5e-2 root mean square of its row for bfloat16.

    The baseline rounds the product before it adds the bias: where these nearly cancel, the sum is off by up to 2^-8 of
    either, and products reach six times their standard deviation in an evaluation.
    """
    expected = wide(context.expected)
    row_rms = expected.square().mean(dim=1, keepdim=True).sqrt()
    return expected, 1e-2 * DTYPE_SCALE[context.ax.dtype] * (expected.abs() + 2.5 * row_rms)


def cost(ax: Axes) -> Cost:
    """The own part of the weight is read once; every foreign block of logits comes in once."""
    block = ax.T * ax.Vl
    return Cost(
        matrix_flops=2 * block * ax.h,
        vector_flops=block,
        memory_bytes=(ax.T * ax.h + ax.Vl * ax.h + ax.Vl + ax.T * ax.V) * ax.itemsize,
        link_in_bytes=(ax.W - 1) * block * ax.itemsize,
        # A switch that multicasts takes each block once; a lower bound must allow for it.
        link_out_bytes=block * ax.itemsize if ax.W > 1 else 0,
    )


PROBLEM = Problem(
    name="GemvDecode",
    upstream="46_gemv_decode",
    category="tensor_parallel",
    origin="vocabulary-sharded LM head of decoding, in the manner of Megatron-LM and vLLM",
    summary="Each rank multiplies the few current tokens by its slice of the output-vocabulary matrix, adds its bias "
    "slice, and all ranks gather the full logits.",
    weaknesses=(
        "T is always 1, so a wrong interleave of the gathered blocks is not seen, and the bias is near the rounding "
        "noise of the logits.",
    ),
    tags=("all_gather", "gemv", "latency"),
    dtypes=("bfloat16", "float16", "float32"),
    # Either Vl or V is None and follows from the other.
    sizes={
        "tiny": {"T": 3, "h": 64, "Vl": 40, "V": None},
        "published": {"T": 1, "h": 1024, "Vl": 1024, "V": None},
        "large": {"T": 128, "h": 8192, "Vl": None, "V": 131072},
    },
    args=(
        Tensor("hidden_states", ("T", "h"), about="token activations, equal on all ranks"),
        Tensor("weight_shard", ("Vl", "h"), about="vocabulary rows r*Vl .. (r+1)*Vl-1 of the output weight"),
        Tensor("bias_shard", ("Vl",), about="bias of these rows"),
    ),
    outputs=(
        Output(
            "logits",
            ("T", "V"),
            check=all_of(
                (
                    within(
                        row_scaled,
                        description="|logit - expected| <= 1e-2 |expected| + 2.5e-2 rms of its row (bfloat16)",
                    ),
                    norm_close(rel=5e-3),
                )
            ),
            about="column k*Vl + j is row j of rank k's shard; the same on every rank",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Every foreign block of logits is unknown to a rank until it has come in; the own one goes out once, as a "
        "switch may multicast it. All weights are read.",
    ),
)
