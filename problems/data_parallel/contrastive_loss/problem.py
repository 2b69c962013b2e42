"""ContrastiveLoss: pairwise sigmoid loss of each rank's images against the texts of all ranks."""

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
    Scalar,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, outside, rule, wide

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem.inputs import Stream

TOPICS = 16
"""Directions that all ranks share."""

LEAST_RELATED, MOST_RELATED = 6, 20
"""Rows of a rank that lie near a topic, whatever its batch: the loss hangs on few pairs, and none can be left out."""

MATCH = 0.9
"""Cosine of a match, and of two rows at the same direction, outlier channels apart."""

DENSITY, FAINT = 1 / 8, 0.2
"""Share of the channels that a direction lies in, and how much smaller it is in the others."""

OUTLIER = 256.0
"""Size of the outlier channels, the root mean square of the others being 1."""

CHANNEL_SPREAD = 0.4
"""Standard deviation of the logarithm of a channel's size."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's share of the batch, and keeps the default group."""
    return {"b": batch(ax), "group": None}


def batch(ax: Axes) -> int:
    """A rank's images: b, or its share of M."""
    return ax.number_or_none("b") or max(1, (ax.number_or_none("M") or 0) // ax.W)


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Scale and bias under which related pairs count and the many others do not, in timing too.

    With the published ones the loss is a constant. The others come to about exp(bias) each, together to 1 / 3 to 1 of b
    losses. The scale makes up for what the outlier channels leave of a product. The bias is a whole number of eighths,
    which bfloat16 has: PyTorch rounds it on the CPU, and not on GPUs.
    """
    bias = -round(8 * (log(max(2, batch(ax) ** 2 * ax.W)) + draw.uniform(0, 1))) / 8
    return {"logit_scale": (draw.uniform(5, 6) - bias) / MATCH * (1 + OUTLIER**2 / ax.D), "logit_bias": bias}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows of which few pairs make up the loss, and an outlier channel, as trained encoders have them.

    Matches are similar. Besides, some rows of each rank lie near one of few topics that all ranks share, or near its
    opposite: nothing of this shows in the mean of the rows. How many do, and at which, differs by rank, so that each
    block counts and no two ranks have the same loss. All directions, of topics and of single rows, lie in channels of
    their own for the most part: rows near a topic do not stand out, and no part of the channels tells what the others
    hold. Channels differ in size, and one channel of the images and one of the texts hold nearly all of the norm: one
    8-bit scale for a row loses the others.
    """
    import torch

    ax, shared = make.ax, make.shared
    topics, channels = directions(shared, TOPICS, ax.D), shared.permutation(ax.D)[:2]
    size = torch.exp(CHANNEL_SPREAD * shared.randn(ax.D))
    size /= size.square().mean().sqrt()

    own = directions(make, ax.b, ax.D)
    popularity = torch.softmax(shared.randn(TOPICS) + 0.7 * make.randn(TOPICS), 0)
    topic = torch.searchsorted(popularity.cumsum(0), make.rand(ax.b)).clamp(max=TOPICS - 1)
    nearness = 0.8 + 0.2 * make.rand(ax.b, 1)  # the squared cosine to the topic
    sign = 2.0 * make.randint(0, 2, ax.b, 1) - 1
    related = sign * (nearness.sqrt() * topics[topic] + (1 - nearness).sqrt() * own)
    number = make.randint(LEAST_RELATED, MOST_RELATED + 1, 1)
    meaning = torch.where(make.permutation(ax.b)[:, None] < number, related, own)

    def features(outlier: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        rows = size * (MATCH**0.5 * meaning + (1 - MATCH) ** 0.5 * make.randn(ax.b, ax.D))
        rows /= rows.square().mean(1, keepdim=True).sqrt()  # a topic of large channels gives no larger rows
        rows[:, other] *= 2.0**-10  # else one product would outweigh the rest
        rows[:, outlier] = OUTLIER * (1 + 0.1 * make.randn(ax.b))
        return torch.nn.functional.normalize(rows, dim=1).to(make.dtype)

    return features(channels[0], channels[1]), features(channels[1], channels[0])


def directions(stream: Stream, number: int, channels: int) -> torch.Tensor:
    """(number, channels), float32: rows of mean square 1, each for the most part in a few channels drawn for it."""
    import torch

    rows = stream.randn(number, channels)
    rows *= torch.where(stream.rand(number, channels) < DENSITY, 1.0, FAINT)
    return rows / rows.square().mean(1, keepdim=True).sqrt()


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Unrelated unit rows."""
    import torch

    stream = make.seeded(42 + 58_000 + make.rank + 1_000_003 * make.trial)
    image, text = (stream.normal(name) for name in ("image_features", "text_features"))
    return torch.nn.functional.normalize(image, dim=1), torch.nn.functional.normalize(text, dim=1)


def loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks a loss that is off by more than (4.5 + 1.25 sqrt(W)) 2^-8, for bfloat16; less where the dtype is finer.

    The baseline rounds the sum of each block, and the loss after each block: errors of both signs, of which the later
    ones are the larger. The standard deviation of all errors is about 0.7 2^-8 on 2 ranks, 0.9 2^-8 on 8.
    """
    expected = wide(context.expected)
    tolerance = (4.5 + 1.25 * context.world_size**0.5) * 2.0**-8 * DTYPE_SCALE[context.ax.dtype]
    return outside(wide(got), expected, max(tolerance, 1e-4) * expected.abs())


def cost(ax: Axes) -> Cost:
    """Every rank needs the texts of all others."""
    link = (ax.W - 1) * ax.b * ax.D * ax.itemsize
    return Cost(
        matrix_flops=2 * ax.b**2 * ax.D * ax.W,
        vector_flops=6 * ax.b**2 * ax.W + ax.b * ax.D,
        memory_bytes=(2 * ax.b * ax.D + 1) * ax.itemsize,
        link_in_bytes=link,
        link_out_bytes=link,
    )


PROBLEM = Problem(
    name="ContrastiveLoss",
    upstream="58_openclip_contrastive_loss",
    category="data_parallel",
    origin="OpenCLIP's distributed SigLIP loss, after Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023)",
    summary="Every rank scores its own images against the texts of all ranks with a pairwise sigmoid loss, passing the "
    "text features around a ring.",
    weaknesses=(
        "With a bias of -10 and unrelated features every remote block is rounded away: a rank's own block, or the "
        "constant 10, is the answer.",
    ),
    tags=("ring", "send_recv", "gemm", "loss"),
    dtypes=("bfloat16", "float16", "float32"),
    # b None is M / W, M being the global batch.
    sizes={
        "tiny": {"b": 8, "M": None, "D": 32, "logit_scale": 10.0, "logit_bias": -10.0},
        "published": {"b": None, "M": 1024, "D": 1024, "logit_scale": 10.0, "logit_bias": -10.0},
        "large": {"b": 8192, "M": None, "D": 1024, "logit_scale": 10.0, "logit_bias": -10.0},
    },
    args=(
        Tensor("image_features", ("b", "D"), about="rows of unit length"),
        Tensor("text_features", ("b", "D"), about="rows of unit length; row i matches image i of the same rank"),
        Scalar("logit_scale", "float", about="factor on the similarities"),
        Scalar("logit_bias", "float", about="added to every logit"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "loss",
            (),
            check=rule(
                loss_mark,
                description="relative error <= (4.5 + 1.25 sqrt(W)) 2^-8 for bfloat16, a quarter for float16, 1e-4 "
                "for float32",
            ),
            about="this rank's own",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every pair of the global batch needs its product, by whichever rank. What crosses the link is open, since "
        "the result is one number.",
        of=("matrix", "memory"),
    ),
)
