"""LoadBalancingLoss: how unevenly a router spreads its tokens over experts, averaged over the ranks."""

from __future__ import annotations

from dataclasses import replace
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
    TensorList,
    Trials,
    Value,
)
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, outside, rule, wide
from pkb_gym.engine.problem.sum_rules import DEVIATION

if TYPE_CHECKING:
    import torch

NEAR = 2.0**-6
"""A token is redrawn when the k-th and (k+1)-th probabilities are this near, relatively: two bfloat16 steps."""


FLOAT32_ERROR = 1e-4
"""Of float32 sums over half a million tokens, in whatever order."""

DEVIATIONS = 6.0
"""Largest error of the loss, in units of the standard deviation that follows from the roundings."""

MAX_POWER = 16
"""Largest power of two that a token weighs."""

SEGMENTS = 4
"""Runs of tokens that differ in the experts that they prefer."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the rows T of all layers, and the shapes of the logits: one tensor, or one per layer.

    Raises:
        SizeError: fewer experts than choices.
    """
    if not 1 <= ax.k <= ax.E:
        raise SizeError(f"axis k={ax.k} must be 1 .. E={ax.E}")
    rows = ax.batch * ax.seq
    shapes = ((ax.L * rows, ax.E),) if ax.flag("plain") else ((rows, ax.E),) * ax.L
    return {"T": ax.L * rows, "logit_shapes": shapes}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing, after the size's own form: one tensor or layers, with and without masks and weights, other k."""
    if draw.timed or draw.trial == 0:
        return {}
    layers, masked = max(2, ax.L), {"masked": True, "k": draw.randint(1, min(ax.E - 1, ax.k + 2) or 1)}
    forms: tuple[dict[str, AxisValue], ...] = (
        {"L": layers, "plain": False, **masked, "mask_dtype": "int64"},
        {"plain": True, "masked": False},
        {"L": layers, "plain": False, **masked, "mask_dtype": "float32"},
        {"plain": True, **masked, "mask_dtype": "bool"},
        {"L": layers + 1, "plain": False, "masked": False, "k": draw.randint(1, ax.E)},
    )
    return forms[draw.trial % len(forms)]


def robust_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Normal logits, a bias per expert of each rank and one per kind of token; padding prefers other experts.

    A bias is normal times U(0.5, 3).
    """
    import torch

    ax = make.ax
    biases = (0.5 + 2.5 * make.rand(2 * SEGMENTS, 1)) * make.randn(2 * SEGMENTS, ax.E)
    biases += (0.5 + 2.5 * make.rand(1)) * make.randn(ax.E)
    bias = biases[kinds_of_tokens(make)]
    mask = padding(make) if ax.flag("masked") else None
    if mask is not None:
        real = mask.reshape(-1, 1).repeat(ax.L, 1) > 0
        bias = torch.where(real, bias, bias.roll(1, dims=1))
    logits = clear_choices(make, bias).to(make.dtype)
    return split(make, logits), mask


def kinds_of_tokens(make: InputMaker) -> torch.Tensor:
    """A kind in 0 .. 2 SEGMENTS - 1 for each of the T tokens, so that no half of them is like the whole.

    The tokens are cut into segments of random lengths, and in each two kinds of tokens take turns, in runs of 2^n.
    """
    import torch

    tokens = make.ax.T
    place = torch.arange(tokens, device=make.device)
    cuts = make.randint(0, tokens, SEGMENTS - 1).sort().values
    segment = torch.searchsorted(cuts, place, right=True)
    # The lesser of two draws: short runs more often than long ones.
    run = make.randint(0, max(1, (tokens - 1).bit_length()), SEGMENTS, 2).amin(1)
    return 2 * segment + ((place >> run[segment]) & 1)


def published_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Standard normal logits, nearly balanced; no padding."""
    import torch

    stream = make.seeded(42 + 24_000 + make.rank + 1_000_003 * make.trial)
    logits = stream.randn(make.ax.T, make.ax.E).to(make.dtype)
    if not make.ax.flag("masked"):
        return split(make, logits), None
    shape, dtype = make.spec("attention_mask")
    return split(make, logits), torch.ones(shape, dtype=dtype, device=make.device)


def split(make: InputMaker, logits: torch.Tensor) -> list[torch.Tensor | None]:
    """The logits as the layers' own tensors."""
    if make.ax.flag("plain"):
        return [logits]
    return [layer.clone() for layer in logits.chunk(make.ax.L)]


def clear_choices(make: InputMaker, bias: torch.Tensor) -> torch.Tensor:
    """Logits around `bias` (T, E) whose k largest probabilities do not depend on rounding.

    Raises:
        SizeError: some stay doubtful however often they are drawn.
    """
    import torch

    ax = make.ax
    logits = make.randn(ax.T, ax.E) + bias
    if ax.k == ax.E:
        return logits
    doubtful = torch.arange(ax.T, device=logits.device)
    for _ in range(200):
        best = logits[doubtful].to(make.dtype).float().topk(ax.k + 1, dim=-1).values
        doubtful = doubtful[best[:, -2] - best[:, -1] <= NEAR]
        if not len(doubtful):
            return logits
        logits[doubtful] = make.randn(len(doubtful), ax.E) + bias[doubtful]
    raise SizeError(f"{make.problem.name}: {len(doubtful)} tokens keep near ties; choose fewer experts")


def padding(make: InputMaker) -> torch.Tensor:
    """1 for the first tokens of each sequence and 0 for its end; unless it is a bool, 2^j with a share of 2^-j.

    So each power of two has about as much of the weight as any other, and the heaviest are so few that no part of the
    tokens, not even a random half, has the mean of the whole. A bool has this in half of the calls, in which all
    sequences of all ranks are short.
    """
    import torch

    (batch, seq), dtype = make.spec("attention_mask")
    part, log_part = make.shared.rand(2).tolist()
    longest = seq if part < 0.5 else round(seq**log_part)
    lengths = make.randint(1, longest + 1, batch, 1)
    mask = (torch.arange(seq, device=make.device) < lengths).to(dtype)
    if dtype != torch.bool:
        power = -make.rand(batch, seq).clamp(min=2.0**-MAX_POWER).log2()
        mask *= torch.exp2(power.floor()).to(dtype)
    return mask


def loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks a loss that is off by more than six deviations of its roundings, or than all of them together can be.

    The logits' dtype rounds each probability once and, unless the mask is float32, each expert's sum of probabilities
    and its quotient: E / W sum c P over ranks and experts has for each term two roundings, and for each rank one that
    n tokens share, which leaves 1 / sqrt(n) of it. No more than three roundings reach a term.
    """
    import torch

    ax = context.ax
    unit = UNIT_ROUNDOFF[ax.dtype]
    sums_are_rounded = not ax.flag("masked") or ax.text("mask_dtype") != "float32"
    losses, variances = [], []
    for rank in range(ax.W):
        terms, tokens = loss_terms(context, rank)
        losses.append(terms.sum())
        variances.append(terms.sum() ** 2 / tokens + (2 * terms.square().sum() if sums_are_rounded else 0))
    loss, deviation = torch.stack(losses).sum(), DEVIATION * torch.stack(variances).sum().sqrt()
    bound = torch.minimum(DEVIATIONS * deviation, 3 * loss) * (unit * ax.E / ax.W)
    return outside(wide(got), wide(context.expected), bound + FLOAT32_ERROR * wide(context.expected).abs())


def loss_terms(context: CheckContext, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's c P of each expert, (E,), and the number of equal tokens whose errors average out as its tokens' do."""
    import torch

    ax = context.ax
    logits = torch.cat([layer for layer in context.tensors("gate_logits", rank) if layer is not None])
    probabilities = logits.float().softmax(dim=-1)
    chosen = (probabilities >= probabilities.topk(ax.k, dim=-1).values[:, -1:]).float()
    if ax.flag("masked"):
        weight = context.tensor("attention_mask", rank).flatten().float().repeat(ax.L)
    else:
        weight = logits.new_ones(len(logits), dtype=torch.float32)
    weight = weight / weight.sum()
    return (weight @ chosen) * (weight @ probabilities), 1 / weight.square().sum()


def cost(ax: Axes) -> Cost:
    """Softmax, selection and column sums of one pass over the logits; one all-reduce of a float32 scalar."""
    elements = ax.T * ax.E
    mask = ax.batch * ax.seq * ITEMSIZE[ax.text("mask_dtype")] if ax.flag("masked") else 0
    exchange = 8 * (ax.W - 1) / ax.W
    return Cost(
        vector_flops=(6 + ax.k) * elements + 2 * ax.k * ax.E,
        memory_bytes=ax.itemsize * elements + mask + 4,
        link_in_bytes=exchange,
        link_out_bytes=exchange,
    )


def least_work(ax: Axes) -> Cost:
    """The mask, and of masked sequences their first token."""
    tokens = ax.L * ax.batch if ax.flag("masked") else ax.T
    base = cost(ax)
    return replace(base, memory_bytes=base.memory_bytes - ax.itemsize * (ax.T - tokens) * ax.E)


PROBLEM = Problem(
    name="LoadBalancingLoss",
    upstream="24_load_balancing_loss_fn",
    category="expert_parallel",
    origin="auxiliary loss of Mixtral and Qwen-MoE in HuggingFace Transformers (Switch Transformer, equations 4-6)",
    summary="Measure how unevenly a router spreads its tokens over experts on each rank, and average over the ranks.",
    weaknesses=(
        "Logits are nearly balanced: the answer is 2.000 +- 0.003 whatever the trial, and no mask or layer is run.",
    ),
    tags=("all_reduce", "moe", "top_k", "latency"),
    dtypes=("bfloat16", "float16", "float32"),
    # plain: one tensor rather than a list of L; its rows are L * batch * seq all the same.
    sizes={
        "tiny": {
            "L": 2,
            "batch": 4,
            "seq": 8,
            "E": 8,
            "k": 2,
            "plain": False,
            "masked": True,
            "mask_dtype": "int64",
        },
        "published": {
            "L": 1,
            "batch": 1,
            "seq": 1024,
            "E": 8,
            "k": 2,
            "plain": True,
            "masked": False,
            "mask_dtype": "int64",
        },
        "large": {
            "L": 32,
            "batch": 2,
            "seq": 4096,
            "E": 128,
            "k": 8,
            "plain": False,
            "masked": True,
            "mask_dtype": "int64",
        },
    },
    args=(
        TensorList(
            "gate_logits", "logit_shapes", bare="plain", about="router logits of each layer, or one tensor of all rows"
        ),
        Scalar("num_experts", "int", axis="E", about="E"),
        Scalar("top_k", "int", axis="k", about="k, experts of a token"),
        Tensor(
            "attention_mask",
            ("batch", "seq"),
            dtype="mask_dtype",
            optional="masked",
            about="weight of each token, 0 for padding; int64, bool or float32",
        ),
    ),
    outputs=(
        Output(
            "loss",
            (),
            dtype="float32",
            check=rule(
                loss_mark,
                description="rtol=1e-4 and 6 deviations of the roundings of probabilities, of their sums and quotients",
            ),
            about="equal on all ranks",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every logit is read, but with a mask those of padding: as little as one token of each sequence counts.",
        of=("memory",),
        work=least_work,
    ),
)
