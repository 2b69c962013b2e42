"""ContrastiveLoss: pairwise sigmoid loss of each rank's images against the texts of all ranks."""

from __future__ import annotations

from statistics import NormalDist
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

TOPICS = 16
"""Directions that all ranks share."""

MIN_RELATED, MAX_RELATED = 3, 9
"""Rows of a rank that lie near a topic, whatever its batch."""

CLOSE = 12
"""Unrelated pairs, of all that a rank scores, whose logits are expected above 0."""

MIN_SPREAD = 4.0
"""Standard deviation of unrelated pairs' logits, at least."""

LIFT = 8.0
"""Logit of a match, where rows have channels enough for it."""

PEAK_CHANNELS, PEAKS = 10, 6
"""Channels that few rows of a rank are large in, a quarter of them at most: pairs that are so in the same one have
most of their product there."""

OUTLIER = 256.0
"""Size of the outlier channels, the others being of size 1."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's share of the batch, and keeps the default group."""
    return {"b": batch(ax), "group": None}


def batch(ax: Axes) -> int:
    """A rank's images: b, or its share of M."""
    return ax.number_or_none("b") or max(1, (ax.number_or_none("M") or 0) // ax.W)


def unrelated(ax: Axes) -> tuple[float, float]:
    """Logits of unrelated pairs are normal: how many deviations 0 lies above their mean, and the deviation.

    `CLOSE` of all pairs are above 0, and with a deviation of one and a half times the first number these few, not the
    many below, make up the sum over unrelated pairs.
    """
    above = NormalDist().inv_cdf(1 - min(0.25, CLOSE / (batch(ax) ** 2 * ax.W)))
    return above, max(MIN_SPREAD, 1.5 * above)


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Scale and bias under which few pairs count, in timing too.

    With the published ones the loss is a constant. The scale makes up for what the outlier channels leave of a product.
    The bias is a whole number of quarters, which bfloat16 has: PyTorch rounds it on the CPU, and not on GPUs.
    """
    above, spread = unrelated(ax)
    spread *= draw.uniform(1, 1.1)
    bias = -round(4 * above * spread) / 4
    return {"logit_scale": spread * ax.D**0.5 * (1 + OUTLIER**2 / ax.D), "logit_bias": bias}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows of which few pairs make up the loss, and an outlier channel, as trained encoders have them.

    About half of it comes from pairs that are unrelated and happen to be similar, more than all others: nothing finds
    these few, or their sum, but the products of all rows over all channels. The other half comes from rows that
    lie near one of few topics that all ranks share, or near its opposite. How many do, and at which, differs by rank,
    so that each block counts and no two ranks have the same loss. Some pairs have most of their product in one channel:
    part of the channels does not find these. One channel of the images and one of the texts hold
    nearly all of the norm: one 8-bit scale for a row loses the others.
    """
    import torch

    ax, shared = make.ax, make.shared
    topics, permuted = shared.randn(TOPICS, ax.D), shared.permutation(ax.D)
    channels, peaked = permuted[:2], permuted[2 : 2 + PEAK_CHANNELS]
    popularity = torch.softmax(shared.randn(TOPICS) + 0.7 * make.randn(TOPICS), 0)
    topic = torch.searchsorted(popularity.cumsum(0), make.rand(ax.b)).clamp(max=TOPICS - 1)
    sign = 2.0 * make.randint(0, 2, ax.b, 1) - 1
    number = make.randint(MIN_RELATED, MAX_RELATED + 1, 1)
    is_related = make.permutation(ax.b)[:, None] < number
    meaning = torch.where(is_related, sign * topics[topic], make.randn(ax.b, ax.D))

    above, spread = unrelated(ax)
    cosine = min(0.9, (above * spread + LIFT) / (spread * ax.D**0.5))  # of matches, outlier channels apart

    def features(outlier: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        rows = cosine**0.5 * meaning + (1 - cosine) ** 0.5 * make.randn(ax.b, ax.D)
        if len(peaked):
            chosen = make.permutation(ax.b)[: min(PEAKS, ax.b // 4)]
            size = ((above + make.rand(len(chosen))) * ax.D**0.5) ** 0.5
            rows[chosen, peaked[make.randint(0, len(peaked), len(chosen))]] = size
        rows[:, other] *= 2.0**-10  # else one product would outweigh the rest
        rows[:, outlier] = OUTLIER * (1 + 0.1 * make.randn(ax.b))
        return torch.nn.functional.normalize(rows, dim=1).to(make.dtype)

    return features(channels[0], channels[1]), features(channels[1], channels[0])


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Unrelated unit rows."""
    import torch

    stream = make.seeded(42 + 58_000 + make.rank + 1_000_003 * make.trial)
    image, text = (stream.normal(name) for name in ("image_features", "text_features"))
    return torch.nn.functional.normalize(image, dim=1), torch.nn.functional.normalize(text, dim=1)


def loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks a loss that is off by more than (4 + W / 2) 2^-8, for bfloat16; less where the dtype is finer.

    The baseline rounds the sum of each block, and the loss after each block, by 2^-8 of what it is then at most;
    with the kernel's own rounding this is (2.5 + W / 2) 2^-8 where blocks are alike. Roundings of logits have a
    standard deviation of half of 2^-8 at most.
    """
    expected = wide(context.expected)
    tolerance = (4 + context.world_size / 2) * 2.0**-8 * DTYPE_SCALE[context.ax.dtype]
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
                description="relative error <= (4 + W / 2) 2^-8 for bfloat16, a quarter for float16, 1e-4 for float32",
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
