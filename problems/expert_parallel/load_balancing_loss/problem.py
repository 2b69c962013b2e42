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
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, outside, rule, wide

if TYPE_CHECKING:
    import torch

NEAR = 2.0**-6
"""A token is redrawn when the k-th and (k+1)-th probabilities are this near, relatively: two bfloat16 steps."""


FLOAT32_ERROR = 1e-4
"""Of float32 sums over half a million tokens, in whatever order."""

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
    """1 for the first tokens of each sequence and 0 for its end; as float32, tokens weigh 0.5, 1 or 2."""
    import torch

    (batch, seq), dtype = make.spec("attention_mask")
    lengths = make.randint(1, seq + 1, batch, 1)
    mask = (torch.arange(seq, device=make.device) < lengths).to(dtype)
    if dtype == torch.float32:
        mask *= torch.exp2(make.randint(-1, 2, batch, seq).float())
    return mask


def loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks a loss that is off by more than 5e-3, or with a mask by more than 1.5e-4 + 9e-3 / sqrt(tokens).

    Without a mask the baseline rounds the mean probability of each expert to 16 bits, by 2^-8 at most; a kernel need
    not. With a mask it rounds those of single tokens alone, whose errors average out: n tokens of all ranks leave
    1.3e-3 / sqrt(n) (standard deviation). A random half of many tokens, which gives the mean within 1 / sqrt(n), must
    not pass for all of them.
    """
    import torch

    ax, expected = context.ax, wide(context.expected)
    tolerance = torch.full_like(expected, 5e-3)
    if ax.flag("masked"):
        weights = [context.tensor("attention_mask", rank).to(expected.dtype) for rank in range(ax.W)]
        # Of tokens with unequal weights, as many as average out alike.
        tokens = ax.L * sum(weight.sum() ** 2 / weight.square().sum() for weight in weights)
        tolerance = 1.5e-4 + 9e-3 * tokens**-0.5
    tolerance = (tolerance * DTYPE_SCALE[ax.dtype]).clamp(min=FLOAT32_ERROR)
    return outside(wide(got), expected, tolerance * expected.abs())


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
                description="rtol=5e-3, with a mask 1.5e-4 + 9e-3 / sqrt(tokens of all ranks), for bfloat16; at "
                "least 1e-4",
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
