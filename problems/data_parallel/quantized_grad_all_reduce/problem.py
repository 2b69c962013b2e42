"""QuantizedGradAllReduce: the mean over ranks of gradients that were rounded to blockwise 8-bit whole numbers."""

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
    with_link,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, within

if TYPE_CHECKING:
    import torch

SMALLEST = 1e-8
TINY = 2.0**-31
"""Normal values times this are below `SMALLEST`."""
DOUBT = 2.0**-13
"""Distance of x / scale (up to 127) from half a step within which a legal division may round the other way."""


def derive(ax: Axes) -> dict[str, int]:
    """Adds the number of blocks.

    Raises:
        SizeError: a block of no element.
    """
    if ax.B < 1:
        raise SizeError(f"axis B={ax.B} must be at least 1")
    return {"blocks": -(-ax.N // ax.B)}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: another block size on odd trials, and a last block that is cut short."""
    if draw.timed:
        return {}
    block = draw.choice((16, 32, 64, 128)) if draw.trial % 2 else ax.B
    return {"B": block, "N": max(1, ax.N - draw.randint(1, max(1, block - 1)))}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Normal values times 2^-8 .. 2^4 of their block and rank.

    Of sixteen blocks one is zero on all ranks (on odd trials so small that the least scale counts), one on this rank,
    and one has an entry 100 times as large as the rest.
    """
    import torch

    ax = make.ax
    values = make.randn(ax.blocks, ax.B) * torch.exp2(make.randint(-8, 5, ax.blocks, 1).float())
    some = -(-ax.blocks // 16) if ax.blocks > 2 else 0
    own, common = make.permutation(ax.blocks), make.shared.permutation(ax.blocks)
    values[own[:some]] = 0.0
    outlier = own[some : 2 * some]
    values[outlier, make.randint(0, ax.B, len(outlier))] *= 100
    values[common[:some]] = TINY * make.randn(some, ax.B) if make.trial % 2 else 0.0
    return (values.view(-1)[: ax.N].to(make.dtype),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, so that all blocks have nearly the same small scale."""
    return (make.seeded(42 + 44_000 + make.rank + 1_000_003 * make.trial).normal("flat_grad"),)


def mean_of_codes(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of the dequantised gradients, and its bound.

    That is a twentieth of the mean scale and half a bfloat16 step, and one step of a rank's codes where its quotient
    lies halfway between two, so that a division that rounds otherwise gives the other code.
    """
    import torch

    ax = context.ax
    total = torch.zeros(ax.blocks * ax.B, dtype=torch.float32, device=context.expected.device)
    steps = total.clone()
    for rank in range(ax.W):
        x = context.tensor("flat_grad", rank).float()
        blocks = torch.nn.functional.pad(x, (0, len(total) - ax.N)).view(-1, ax.B)
        scales = blocks.abs().amax(1, keepdim=True).clamp(min=SMALLEST) / 127
        quotients = blocks / scales
        total = total + (quotients.round() * scales).view(-1)
        halfway = (quotients - quotients.floor() - 0.5).abs() < DOUBT
        steps = steps + (scales * (halfway + 0.05)).view(-1)
    mean = total[: ax.N] / ax.W
    return mean, steps[: ax.N] / ax.W + 4e-3 * DTYPE_SCALE[ax.dtype] * mean.abs()


def cost(ax: Axes) -> Cost:
    """Codes and block maxima to the rank that sums them, and its share of the result to all; or codes to all.

    A switch may multicast, and it may add dequantised values in float32.
    """
    share, e = (ax.W - 1) / ax.W, ax.itemsize
    codes = ax.N + e * ax.blocks
    result = e * ax.N
    summed = 4 * ax.N / ax.W if ax.W > 1 else 0.0
    return Cost(
        vector_flops=7 * ax.N + 2 * ax.N * share + ax.N / ax.W,
        memory_bytes=2 * e * ax.N,
        link_in_bytes=min(min(share * codes, summed) + share * result, (ax.W - 1) * codes),
        link_out_bytes=min(share * codes + result / ax.W, codes) if ax.W > 1 else 0.0,
    )


def least_work(ax: Axes) -> Cost:
    """One number an element over the link each way."""
    numbers = ax.itemsize * ax.N if ax.W > 1 else 0
    return with_link(cost(ax), numbers, numbers)


PROBLEM = Problem(
    name="QuantizedGradAllReduce",
    upstream="44_quantized_grad_allreduce",
    category="data_parallel",
    origin="block-quantised gradient communication, as in DeepSpeed ZeRO++ (qgZ)",
    summary="Every rank rounds its gradient to blockwise 8-bit whole numbers, and the rounded gradients are averaged.",
    weaknesses=(
        "One step of the codes is 0.022, so that leaving quantisation out passes; no block is zero, short or large.",
    ),
    tags=("all_reduce", "int8", "quantisation"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"N": 4104, "B": 16},
        "published": {"N": 1_048_576, "B": 128},
        "large": {"N": 67_108_864, "B": 128},
    },
    args=(
        Tensor("flat_grad", ("N",), about="this rank's gradient"),
        Scalar("block_size", "int", axis="B", about="elements that share a scale; the last block may be shorter"),
    ),
    outputs=(
        Output(
            "out",
            ("N",),
            check=within(
                mean_of_codes,
                description="0.05 mean scale + 4e-3 |mean| (bfloat16), and one step of a code that may round "
                "either way",
            ),
            about="mean over ranks of code * scale",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "A rank's sum depends on every element of the others, and theirs on every one of its own: one number an "
        "element in, one out.",
        work=least_work,
    ),
)
