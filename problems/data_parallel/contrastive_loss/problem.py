"""ContrastiveLoss: pairwise sigmoid loss of each rank's images against the texts of all ranks."""

from __future__ import annotations

from math import ceil
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

CLUSTERS = 4
"""Directions that all ranks share."""

MATCH = 0.85
"""Cosine of a match, and of two rows at the same direction, outlier channels apart."""

OUTLIER = 256.0
"""Size of the outlier channels, the root mean square of the others being 1."""

CHANNEL_SPREAD = 0.75
"""Standard deviation of the logarithm of a channel's size."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's share of the batch, and keeps the default group."""
    share = max(1, (ax.number_or_none("M") or 0) // ax.W)
    return {"b": ax.number_or_none("b") or share, "group": None}


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Scale and bias under which similar pairs count and others do not, in timing too.

    With the published ones the loss is a constant. The scale makes up for what the outlier channels leave of a product.
    """
    rest = ax.D / (ax.D + OUTLIER**2)
    return {"logit_scale": draw.uniform(19, 23) / rest, "logit_bias": draw.uniform(-10, -9)}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows with clusters, so that the loss hangs on pairs, and an outlier channel, as trained encoders have them.

    Matches are similar. Besides, b^0.5 to b of a rank's pairs lie near one of few directions that all ranks share, or
    near its opposite: nothing of this shows in the mean of the rows. How many do, and at which directions, differs by
    rank, so that each block counts and no two ranks have the same loss. Channels differ in size, and one channel of the
    images and one of the texts hold nearly all of the norm: one 8-bit scale for a row loses the others.
    """
    import torch

    ax, shared = make.ax, make.shared
    centres, channels = shared.randn(CLUSTERS, ax.D), shared.permutation(ax.D)[:2]
    size = torch.exp(CHANNEL_SPREAD * shared.randn(ax.D))
    size /= size.square().mean().sqrt()

    own = make.randn(ax.b, ax.D)
    popularity = torch.softmax(make.randn(CLUSTERS), 0)
    cluster = torch.searchsorted(popularity.cumsum(0), make.rand(ax.b)).clamp(max=CLUSTERS - 1)
    nearness = 0.6 + 0.4 * make.rand(ax.b, 1)  # the squared cosine to the direction
    sign = 2.0 * make.randint(0, 2, ax.b, 1) - 1
    clustered = sign * (nearness.sqrt() * centres[cluster] + (1 - nearness).sqrt() * own)
    number = ceil(ax.b ** (0.5 + 0.5 * make.rand(1).item()))
    meaning = torch.where(make.permutation(ax.b)[:, None] < number, clustered, own)

    def features(outlier: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        rows = size * (MATCH**0.5 * meaning + (1 - MATCH) ** 0.5 * make.randn(ax.b, ax.D))
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
    """Marks a loss that is off by more than (3 + W) 2^-8, for bfloat16; less where the dtype is finer.

    The baseline rounds the sum of each block, and the loss after each block. In 1000 trials these errors and the
    rounding of the result came to at most two thirds of this.
    """
    expected = wide(context.expected)
    tolerance = (3 + context.world_size) * 2.0**-8 * DTYPE_SCALE[context.ax.dtype]
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
                description="relative error <= (3 + W) 2^-8 for bfloat16, a quarter for float16, 1e-4 for float32",
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
