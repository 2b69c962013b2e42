"""ContrastiveLoss: pairwise sigmoid loss of each rank's images against the texts of all ranks."""

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
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, outside, rule, wide

if TYPE_CHECKING:
    import torch

TOLERANCE = 1.2e-2


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's share of the batch, and keeps the default group."""
    share = max(1, (ax.number_or_none("M") or 0) // ax.W)
    return {"b": ax.number_or_none("b") or share, "group": None}


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Scale and bias under which every block counts, in timing too: with the published ones the loss is a constant."""
    return {"logit_scale": draw.uniform(5, 15), "logit_bias": draw.uniform(-1, 1)}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows that lean towards one direction shared by all ranks, by an amount of the rank's own.

    So the mean logit of a block depends strongly on both of its ranks. Images of different ranks lean by different
    amounts in [-0.5, 1.5] and texts all to the same side, so that no two ranks have the same loss by chance, and there
    is a rank on which each block shows.
    """
    import torch

    ax = make.ax
    direction = torch.nn.functional.normalize(make.shared.randn(ax.D), dim=0)
    place = make.shared.permutation(ax.W)[ax.r]

    def features(lean: torch.Tensor) -> torch.Tensor:
        rows = make.randn(ax.b, ax.D) * ax.D**-0.5 + lean * direction
        return torch.nn.functional.normalize(rows, dim=1).to(make.dtype)

    image = -0.5 + 2 * (place + 0.25 + 0.5 * make.rand(1)) / ax.W
    text = 0.3 + 1.2 * make.rand(1)
    return features(image), features(text)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Unrelated unit rows."""
    import torch

    stream = make.seeded(42 + 58_000 + make.rank + 1_000_003 * make.trial)
    image, text = (stream.normal(name) for name in ("image_features", "text_features"))
    return torch.nn.functional.normalize(image, dim=1), torch.nn.functional.normalize(text, dim=1)


def loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks a loss that is off by more than 1.2 %, for bfloat16, or 1e-4 where the dtype is finer.

    Rounding the sums over blocks to bfloat16 moves the baseline by less than 1 % from a loss that is never rounded.
    """
    expected = wide(context.expected)
    tolerance = max(TOLERANCE * DTYPE_SCALE[context.ax.dtype], 1e-4)
    return outside(wide(got), expected, tolerance * expected.abs())


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
            check=rule(loss_mark, says="relative error <= 1.2e-2 for bfloat16, 3e-3 for float16, 1e-4 for float32"),
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
