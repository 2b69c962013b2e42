"""BlockedFP8Quantize: round to 8-bit floats with one scale per block of a row, and gather codes and scales."""

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
    Scalar,
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import CheckContext, allclose, as_integers, rule

if TYPE_CHECKING:
    import torch

DOUBT = 2e-6
"""Relative distance of a quotient from a rounding boundary within which a legal division may take the other side."""

NAN_CODE = 0x7F


def derive(ax: Axes) -> dict[str, int]:
    """Adds the blocks of a row and the rows of the gathered tensor."""
    if ax.block_size < 1 or ax.block_size & (ax.block_size - 1):
        raise SizeError(f"axis block_size={ax.block_size} must be a power of two")
    return {"blocks": ax.divide("N", by="block_size"), "rows": ax.W * ax.M}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing, odd trials have another block size."""
    if draw.timed or draw.trial % 2 == 0:
        return {}
    legal = [b for b in (16, 32, 64, 128, 256, 512) if ax.N % b == 0 and b != ax.block_size]
    return {"block_size": draw.choice(legal or [ax.block_size])}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Normal values times 2^U(-10, 10) of their block; one block in eight is zero, one has an outlier.

    An outlier is 2^U(6, 16) times as large as the rest of its block, whose codes get subnormal or zero.
    """
    import torch

    ax = make.ax
    count = ax.M * ax.blocks
    values = make.randn(count, ax.block_size) * torch.exp2(20 * make.rand(count, 1) - 10)
    some = max(1, count // 8) if count > 1 else 0
    order = make.permutation(count)
    zero, outlier = order[:some], order[some : 2 * some]
    values[zero] = 0.0
    place = make.randint(0, ax.block_size, len(outlier))
    largest = values[outlier].abs().amax(dim=1)
    values[outlier] *= torch.exp2(-6 - 10 * make.rand(len(outlier), 1))
    values[outlier, place] = largest
    return (values.view(ax.M, ax.N).to(make.dtype),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal."""
    return (make.seeded(42 + 19_000 + make.rank + 1_000_003 * make.trial).normal("local_tensor"),)


def ladder(codes: torch.Tensor) -> torch.Tensor:
    """E4M3 codes as whole numbers in ascending order of value; both zeros are 0."""
    import torch

    bits = as_integers(codes).to(torch.int16)
    magnitude = bits & 0x7F
    return torch.where(bits >= 0x80, -magnitude, magnitude)


def codes_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Equal codes, +0 and -0 alike, or the other side of a rounding boundary where the quotient lies next to it."""
    import torch

    ax = context.ax
    steps, expected = ladder(got), ladder(context.expected)
    wrong = steps != expected
    rows, columns = wrong.nonzero(as_tuple=True)
    if not len(rows):
        return wrong
    x = torch.empty(len(rows), dtype=torch.float32, device=got.device)
    for rank in range(ax.W):
        mine = rows // ax.M == rank
        x[mine] = context.tensor("local_tensor", rank)[rows[mine] % ax.M, columns[mine]].float()
    s = context.outputs["s_global"][rows, columns // ax.block_size]
    quotient = x / torch.where(s == 0, 1.0, s)
    ends = [ladder((quotient * (1 + d)).clamp(-448, 448).to(torch.float8_e4m3fn)) for d in (-DOUBT, DOUBT)]
    lowest, highest = torch.minimum(*ends), torch.maximum(*ends)
    found = steps[rows, columns]
    wrong[rows, columns] = (found < lowest) | (found > highest) | (found.abs() == NAN_CODE)
    return wrong


def cost(ax: Axes) -> Cost:
    """Every foreign code and scale comes in once."""
    elements = ax.M * ax.N
    share = elements + 4 * ax.M * ax.blocks
    return Cost(
        vector_flops=4 * elements,
        memory_bytes=ax.itemsize * elements + ax.W * share,
        link_in_bytes=(ax.W - 1) * share,
        # A switch that multicasts takes each share once; a lower bound must allow for it.
        link_out_bytes=share if ax.W > 1 else 0,
    )


PROBLEM = Problem(
    name="BlockedFP8Quantize",
    upstream="19_blocked_fp8_quantize",
    category="tensor_parallel",
    origin="DeepSeek-V3-style 1x128 block quantisation of activations, before an all-gather",
    summary="Each rank turns its tensor into 8-bit floats with one scale per block of a row; all ranks gather both.",
    weaknesses=(
        "Every scale is about 0.0065, below the absolute tolerance of 0.01: scales of zero pass, and no block is zero.",
    ),
    tags=("all_gather", "fp8", "quantisation"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"M": 4, "N": 256, "block_size": 128},
        "published": {"M": 1024, "N": 1024, "block_size": 128},
        "large": {"M": 8192, "N": 8192, "block_size": 128},
    },
    args=(
        Tensor("local_tensor", ("M", "N"), about="rows r*M .. (r+1)*M-1 of the gathered tensor"),
        Scalar("block_size", "int", about="elements per scale, a power of two that divides N"),
    ),
    returns="tuple",
    outputs=(
        Output(
            "y_global",
            ("rows", "N"),
            dtype="float8_e4m3fn",
            check=rule(
                codes_mark,
                description="the same codes; within 2e-6 of a rounding boundary either neighbour",
                batched=False,
            ),
            about="codes of all ranks",
        ),
        Output(
            "s_global",
            ("rows", "blocks"),
            dtype="float32",
            check=allclose(rtol=1e-5, atol=0.0),
            about="scales: largest magnitude of the block / 448",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every foreign code is unknown to a rank until it has come in. The own ones go out once, as a switch may "
        "multicast them.",
    ),
)
