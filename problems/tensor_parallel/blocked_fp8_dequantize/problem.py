"""BlockedFP8Dequantize: scale block-quantised chunks back to float32 and exchange them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    ITEMSIZE,
    Axes,
    AxisValue,
    Cost,
    Draw,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    SizeError,
    Tensor,
    Trials,
    exact,
)

if TYPE_CHECKING:
    import torch

PAIRS = (
    ("float8_e4m3fn", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
    ("float32", "float32"),
    ("float8_e4m3fn", "bfloat16"),
)
"""Dtypes of values and scales."""

E4M3_MAX = 448.0


def derive(ax: Axes) -> dict[str, int]:
    """Adds the blocks of one chunk."""
    if ax.block_size < 1 or ax.block_size & (ax.block_size - 1):
        raise SizeError(f"axis block_size={ax.block_size} must be a power of two")
    chunk = ax.M * ax.N
    if chunk % ax.block_size:
        raise SizeError(f"M*N = {ax.M}*{ax.N} = {chunk} must be a multiple of block_size={ax.block_size}")
    return {"blocks": chunk // ax.block_size}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: the size's pair of dtypes, then the others in turn; odd trials have another block size."""
    if draw.timed or draw.trial == 0:
        return {}
    others = [pair for pair in PAIRS if pair != (ax.text("y_dtype"), ax.text("s_dtype"))]
    y_dtype, s_dtype = others[(draw.trial - 1) % len(others)]
    legal = [b for b in (16, 32, 64, 128, 256) if ax.M * ax.N % b == 0]
    block_size = draw.choice(legal or [ax.block_size]) if draw.trial % 2 else ax.block_size
    return {"y_dtype": y_dtype, "s_dtype": s_dtype, "block_size": block_size}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Values 100 N(0, 1), rounded to what their dtype has, and positive scales 2^U(-10, 4)."""
    import torch

    shape, y_dtype = make.spec("local_y")
    y = (100 * make.randn(*shape)).clamp(-E4M3_MAX, E4M3_MAX).to(y_dtype)
    shape, s_dtype = make.spec("local_s")
    return y, torch.exp2(14 * make.rand(*shape) - 10).to(s_dtype)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Both standard normal, so that scales have either sign."""
    stream = make.seeded(42 + 20_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("local_y"), stream.normal("local_s")


def cost(ax: Axes) -> Cost:
    """Values and scales cross the link as they are and are multiplied by the receiver."""
    chunk = ax.M * ax.N
    quantised = chunk * ITEMSIZE[ax.text("y_dtype")] + ax.blocks * ITEMSIZE[ax.text("s_dtype")]
    return Cost(
        vector_flops=ax.W * chunk,
        memory_bytes=ax.W * (quantised + 4 * chunk),
        link_in_bytes=(ax.W - 1) * quantised,
        link_out_bytes=(ax.W - 1) * quantised,
    )


PROBLEM = Problem(
    name="BlockedFP8Dequantize",
    upstream="20_blocked_fp8_dequantize",
    category="tensor_parallel",
    origin="DeepSeek-V3-style block dequantisation before an all-to-all, as in a mixture-of-experts combine",
    summary="Each rank scales W chunks of block-quantised numbers back to float32 and sends chunk j to rank j.",
    tags=("all_to_all", "fp8", "quantisation"),
    dtypes=("float32",),  # of the result; those of values and scales are axes
    sizes={
        "tiny": {"M": 4, "N": 192, "block_size": 128, "y_dtype": "float8_e4m3fn", "s_dtype": "float32"},
        "published": {"M": 1024, "N": 1024, "block_size": 128, "y_dtype": "bfloat16", "s_dtype": "bfloat16"},
        "large": {"M": 4096, "N": 8192, "block_size": 128, "y_dtype": "float8_e4m3fn", "s_dtype": "float32"},
    },
    args=(
        Tensor("local_y", ("W", "M", "N"), dtype="y_dtype", about="quantised values, slice j for rank j; any float"),
        Tensor("local_s", ("W", "blocks"), dtype="s_dtype", about="one scale per block; float32 or bfloat16"),
        Scalar("block_size", "int", about="elements per scale, a power of two that divides M*N"),
    ),
    # One float32 product per element: there is nothing to round differently.
    outputs=(Output("out", ("W", "M", "N"), check=exact(), about="slice j: the chunk that rank j had for this rank"),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every value for another rank goes out once, and every foreign one comes in once, before or after it is "
        "scaled.",
    ),
)
