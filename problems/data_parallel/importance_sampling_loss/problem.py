"""ImportanceSamplingLoss: a policy loss from hidden states and an output matrix, and its statistics over all ranks."""

from __future__ import annotations

from math import log
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
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import CheckContext, outside, rule

if TYPE_CHECKING:
    import torch

MIN_SPREAD, MAX_SPREAD = 0.5, 0.65
"""Range of the standard deviation of a token's logits, in units of sqrt(2 log V). The sum of V independent e^z with
normal z hangs on the few largest of them where that is near 1."""

MIN_IGNORED, MAX_IGNORED = 0.1, 0.3
"""Share of the labels."""

MAX_LABEL = 1.0
"""About the largest logit of a label; the logarithms of the sums are above 7."""

OUTLIER = 128.0
"""Size of the hidden states' outlier channel, the others being of size 1."""

PEAKS = 2
"""Products of each token with an id that have a large part of its logit in one channel."""

MIN_PEAK, MAX_PEAK = 0.4, 0.65
"""Range of their size, in units of 2 log V, which is the size that the largest logits have for a spread of 1."""

HIDDEN_PEAK = 5.0
"""About the size of a hidden state's factor in such a product, the others being of size `MIN_SPREAD` and more."""

LOGITS_TOGETHER = 1 << 28
"""Logits that exist at a time while inputs are made."""

FLOAT32_ERROR = 1e-4
TOKEN_ERROR = 4e-2
"""Relative error of one token's ratio in bfloat16, generously: logits, the logarithm of their sum and the result, of up
to 16 each, are rounded by up to 0.03, each of which is uniform."""

FAR = 40.0
"""Old log-probabilities moved by this much reach the clamp."""

ASIDE = 2.0
"""Those moved by this much have their ratios on one side of 1."""


def derive(ax: Axes) -> dict[str, int]:
    """Adds the second result, which is None always."""
    return {"never": False}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: own or common weights, tokens below the clamp or (alone) above it, another ignore_index.

    Where some are below the clamp all ratios are below 1, which is that of an ignored token; and likewise above.
    Now and then a rank has no valid token, or none has; what belongs to ignored tokens is not a number on odd trials.
    """
    if draw.timed:
        return {}
    return {
        "common_weight": draw.trial % 2 == 1,
        "clamped": ("none", "low", "high")[draw.trial % 3],
        "undefined": draw.trial % 2 == 1,
        "silent": (draw.randrange(ax.W),) if draw.trial % 8 == 4 else tuple(range(ax.W)) if draw.trial % 8 == 7 else (),
        "ignore_index": -100 if draw.trial % 2 == 0 else -draw.randint(1, 99),
    }


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Ratios around 1 and 10 to 30 % of the labels ignored; means of everything differ between ranks.

    Logits spread so far that the few largest of thousands make up a token's normaliser: it follows neither from moments
    of the logits nor from part of the vocabulary. Some of the largest hang on one channel each, so that part of the
    channels does not tell which they are. The hidden states have an outlier channel, as trained models do: one 8-bit
    scale for a row loses the others.

    Old log-probabilities are the true ones, plus noise.
    """
    import torch

    ax = make.ax
    of_rank, shift = make.rand(1), 0.2 * make.randn(1)
    spread = MIN_SPREAD + (MAX_SPREAD - MIN_SPREAD) * (0.5 * of_rank + 0.5 * make.rand(ax.T, 1))
    hidden = spread * make.randn(ax.T, ax.H)
    weights = make.shared if ax.flag("common_weight") else make
    weight = weights.normal("weight", std=(2 * log(max(2, ax.V)) / ax.H) ** 0.5)
    channel = make.shared.permutation(ax.H)[0]
    weight[:, channel] *= 2.0**-10
    hidden[:, channel] = 0
    labels = make.randint(0, ax.V, ax.T)

    largest = 2 * log(max(2, ax.V))
    channels = (channel + 1 + weights.randint(0, max(1, ax.H - 1), ax.T, PEAKS)) % ax.H
    factor = (MIN_PEAK + MAX_PEAK) / 2 * largest / HIDDEN_PEAK
    peaks = factor * (1 + 0.1 * weights.randn(ax.T, PEAKS)).to(make.dtype)
    weight[weights.randint(0, ax.V, ax.T, PEAKS), channels] = peaks
    hidden.scatter_(1, channels, largest * (MIN_PEAK + (MAX_PEAK - MIN_PEAK) * make.rand(ax.T, PEAKS)) / peaks.float())

    # No likely label: a small log-probability would be held to less than the rounding of its logit.
    label = weight[labels].float()
    excess = ((hidden * label).sum(1) - MAX_LABEL).clamp(min=0)
    hidden -= (excess / label.square().sum(1))[:, None] * label
    hidden[:, channel] = OUTLIER * (1 + 0.1 * make.randn(ax.T))
    hidden = hidden.to(make.dtype)
    chosen = (hidden.float() * label).sum(1)
    rows = max(1, LOGITS_TOGETHER // ax.V)
    normaliser = torch.cat([(part @ weight.T).float().logsumexp(1) for part in torch.split(hidden, rows)])
    old = chosen - normaliser + shift + 0.3 * make.randn(ax.T)

    order = make.permutation(ax.T)
    ignored = int(ax.T * (MIN_IGNORED + (MAX_IGNORED - MIN_IGNORED) * float(make.rand(1))))
    far = order[ignored : ignored + max(1, ax.T // 64)]
    side = {"none": 0.0, "low": 1.0, "high": -1.0}[ax.text("clamped")]
    old += side * ASIDE
    old[far] += side * FAR
    if make.rank in ax.ints("silent"):
        ignored = ax.T
    labels[order[:ignored]] = ax.ignore_index

    # Not around 0: the mean of ratio * advantage must not cancel.
    sign = torch.where(make.shared.rand(1) < 0.5, -1.0, 1.0)
    advantages = make.randn(ax.T) + sign * (0.5 + make.shared.rand(1)) + 0.3 * make.randn(1)
    if ax.flag("undefined"):
        old[order[:ignored]] = advantages[order[:ignored]] = torch.nan
    return hidden, weight, labels, old.to(make.dtype), advantages.to(make.dtype)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Everything standard normal, weights too; labels uniform, none ignored."""
    stream = make.seeded(42 + 25_000 + make.rank + 1_000_003 * make.trial)
    hidden, weight = stream.normal("hidden_states"), stream.normal("weight")
    labels = stream.randint(0, make.ax.V, make.ax.T)
    return hidden, weight, labels, stream.normal("old_logprobs"), stream.normal("advantages")


def tolerance(context: CheckContext, bfloat16: float) -> float:
    """The tolerance for bfloat16, or that for float32."""
    return bfloat16 if context.ax.dtype == "bfloat16" else FLOAT32_ERROR


def sum_tolerance(context: CheckContext) -> float:
    """For sums over ranks: 2e-2, or W + 1 roundings to bfloat16 where these are more.

    Each rank's sum is rounded, and so are the W - 1 additions; errors of single tokens average out.
    """
    return tolerance(context, max(2e-2, (context.world_size + 1) * 2.0**-8))


def logprobs_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Off by more than 2e-2 of the value; 0 where the label is ignored.

    The baseline rounds logits of up to 16 to bfloat16, so that a normaliser which one of them dominates is off by 0.03,
    and rounds the result, of at least 4, by 0.016: together up to 1.2e-2.
    """
    expected = context.expected.double()
    return outside(got.double(), expected, tolerance(context, 2e-2) * expected.abs())


def token_loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Off by more than 15e-2 of the value and 2e-2 of the largest one; not 0 where the label is ignored."""
    expected = context.expected.double()
    largest = expected.abs().amax() if expected.numel() else expected.new_zeros(())
    bound = tolerance(context, 15e-2) * expected.abs() + tolerance(context, 2e-2) * largest
    ignored = context.tensor("labels") == context.ax.ignore_index
    return outside(got.double(), expected, bound.masked_fill(ignored, 0.0))


def loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Off by more than `sum_tolerance` and a spread times the mean |ratio * advantage| over all ranks' valid tokens.

    That mean is taken as the mean ratio times the mean |advantage|, or as the loss itself where that is larger. The
    spread is what errors of single tokens leave, as they do not average out over few:

        spread = TOKEN_ERROR * sqrt(sum of advantage^2) / sum of |advantage|
    """
    import torch

    size = torch.zeros((), dtype=torch.float64, device=got.device)
    squares, count = size.clone(), size.clone()
    for rank in range(context.world_size):
        valid = context.tensor("labels", rank) != context.ax.ignore_index
        advantages = context.tensor("advantages", rank).double().masked_fill(~valid, 0)
        size, squares = size + advantages.abs().sum(), squares + advantages.square().sum()
        count = count + valid.sum()
    ratio_mean = context.outputs["metrics"][0].double()
    expected = context.expected.double()
    magnitude = torch.maximum(expected.abs(), ratio_mean * size / count.clamp(min=1))
    spread = tolerance(context, TOKEN_ERROR) * squares.sqrt() / size.clamp(min=torch.finfo(torch.float64).tiny)
    return outside(got.double(), expected, (sum_tolerance(context) + spread) * magnitude)


def metrics_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Each statistic has its own tolerance; infinities must be equal."""
    relative = [*(tolerance(context, bound) for bound in (4e-2, 15e-2, 15e-2, 15e-2)), sum_tolerance(context)]
    absolute = [0.0, 0.0, 0.0, tolerance(context, 1e-2), 0.0]
    expected = context.expected.double()
    bound = expected.new_tensor(relative) * expected.abs() + expected.new_tensor(absolute)
    return outside(got.double(), expected, bound)


def cost(ax: Axes) -> Cost:
    """Logits are not stored; seven scalars are exchanged at once."""
    e = ax.itemsize
    exchange = 56 * (ax.W - 1) / ax.W
    return Cost(
        matrix_flops=2 * ax.T * ax.H * ax.V,
        vector_flops=4 * ax.T * ax.V + 20 * ax.T,
        memory_bytes=e * (ax.T + ax.V) * ax.H + 8 * ax.T + 2 * e * ax.T + 2 * e * ax.T + 24,
        link_in_bytes=exchange,
        link_out_bytes=exchange,
    )


def least_work(ax: Axes) -> Cost:
    """Of the tokens that count, as few as inputs leave."""
    e, counting = ax.itemsize, (1 - MAX_IGNORED) * ax.T
    return Cost(
        matrix_flops=2 * counting * ax.H * ax.V,
        memory_bytes=e * (counting + ax.V) * ax.H + 8 * ax.T + 2 * e * counting + 2 * e * ax.T + 24,
    )


MODES: dict[str, AxisValue] = {
    "ignore_index": -100,
    "common_weight": False,
    "clamped": "none",
    "undefined": False,
    "silent": (),
}

PROBLEM = Problem(
    name="ImportanceSamplingLoss",
    upstream="25_importance_sampling_loss",
    category="data_parallel",
    origin="importance-sampling policy-gradient loss of xorl",
    summary="Compute token log-probabilities from hidden states and an output matrix, ratios against old ones, and a "
    "policy loss and five statistics over all ranks.",
    weaknesses=(
        "Logits are so large that nearly all ratios are 0 and all outputs but per_token_logprobs are constant; "
        "no label is ever ignored.",
    ),
    tags=("all_reduce", "gemm", "loss", "reinforcement_learning"),
    dtypes=("bfloat16", "float32"),
    sizes={
        "tiny": {"T": 32, "H": 64, "V": 512, **MODES},
        "published": {"T": 1024, "H": 1024, "V": 32_000, **MODES},
        "large": {"T": 4096, "H": 4096, "V": 128_256, **MODES},
    },
    args=(
        Tensor("hidden_states", ("T", "H"), about="this rank's tokens"),
        Tensor("weight", ("V", "H"), about="output matrix; may differ by rank"),
        Tensor("labels", ("T",), dtype="int64", about="ids in [0, V), or ignore_index"),
        Tensor("old_logprobs", ("T",), about="log-probabilities under the sampling policy"),
        Tensor("advantages", ("T",), about="advantages"),
        Scalar("ignore_index", "int", about="label of tokens that do not count"),
    ),
    returns="tuple",
    outputs=(
        Output(
            "loss",
            (),
            dtype="float32",
            check=rule(loss_mark, description="2e-2 mean |ratio advantage|, more for few tokens (bfloat16)"),
        ),
        Output("nothing", (), when="never", about="None always"),
        Output(
            "per_token_logprobs",
            ("T",),
            check=rule(logprobs_mark, description="rtol=2e-2 (bfloat16)"),
            is_local=True,
        ),
        Output(
            "per_token_loss",
            ("T",),
            check=rule(
                token_loss_mark, description="rtol=15e-2 and 2e-2 of the largest (bfloat16); 0 for ignored tokens"
            ),
            is_local=True,
        ),
        Output(
            "metrics",
            (5,),
            dtype="float32",
            check=rule(metrics_mark, description="rtol=4e-2, 15e-2, 15e-2, 15e-2 + 1e-2, 2e-2 (bfloat16)"),
            about="mean, smallest, largest ratio; mean of ratio - delta - 1; mean of -per_token_logprobs",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every logit of every token that counts enters its normaliser. At most 30 % of the tokens are ignored, whose "
        "hidden states need not be read.",
        of=("matrix", "memory"),
        work=least_work,
    ),
)
