"""GradAccLoss: per-rank mean losses become one token-weighted loss, and its gradient by the local loss is taken."""

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
    Tensor,
    Trials,
    Value,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, within

if TYPE_CHECKING:
    import torch

HALF_STEP = 2.0**-8
"""Largest relative error of one rounding to bfloat16."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's number of valid tokens as published; a tuple goes round the ranks."""
    counts = (ax.counts,) if isinstance(ax["counts"], int) else ax.ints("counts")
    return {"published_counts": tuple(counts[rank % len(counts)] for rank in range(ax.W))}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: now and then no gradient of the sum, a rank without tokens whose loss is not a number, larger G.

    On every eighth trial a rank with tokens has a loss that is not a number, and so have all then.
    G is larger than the ranks' tokens where the other micro-batches of a step count too.
    """
    if draw.timed:
        return {}
    idle = draw.trial % 2 and ax.W > 1
    return {
        "has_grad_sum": draw.trial % 3 != 2,
        "idle_rank": draw.randrange(ax.W) if idle else None,
        "idle_loss": ("nan", "inf", "-inf")[draw.trial // 2 % 3],
        "nan_rank": draw.randrange(ax.W) if draw.trial % 8 == 6 else None,
        "micro_batches": draw.randint(2, 8) if draw.trial % 4 >= 2 else 1,
    }


def robust_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Losses in 0.5 .. 12, counts in 1 .. most; incoming gradients of one sign, the second of size 1 / G."""
    import torch

    ax = make.ax
    counts = make.shared.randint(1, ax.most + 1, ax.W)
    loss = 0.5 + 11.5 * make.rand()
    if ax["idle_rank"] is not None:
        counts[ax.idle_rank] = 0
        if make.rank == ax.idle_rank:
            loss = torch.full_like(loss, float(ax.text("idle_loss")))
    if ax["nan_rank"] == make.rank:
        loss = torch.full_like(loss, float("nan"))
    total = counts.sum() * ax.micro_batches
    g1, size = make.shared.randn(2).unbind()
    # Both terms of the gradient matter, and do not cancel.
    g2 = torch.copysign(size, g1) / total if ax.flag("has_grad_sum") else None
    return (
        loss.to(make.dtype),
        counts[make.rank].clone(),
        total,
        g1.to(make.dtype),
        None if g2 is None else g2.to(make.dtype),
    )


def published_inputs(make: InputMaker) -> tuple[Value, ...]:
    """A standard normal loss; constant counts and gradients, 1 and 0."""
    import torch

    counts = torch.tensor(make.ax["published_counts"], device=make.device)
    one = torch.ones((), dtype=make.dtype, device=make.device)
    loss = make.seeded(42 + 23_000 + make.rank + 1_000_003 * make.trial).normal("loss")
    return loss, counts[make.rank].clone(), counts.sum(), one, torch.zeros_like(one)


def weighted_sum(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of loss * tokens over ranks, and what roundings of counts, products and sum may amount to: (W + 1) u."""
    import torch

    total = torch.zeros((), dtype=torch.float64, device=context.expected.device)
    size = total.clone()
    for rank in range(context.world_size):
        loss, n = context.tensor("loss", rank).double(), context.tensor("local_valid_tokens", rank)
        weighted = torch.where(n > 0, loss * n, 0.0)  # whatever the loss of no tokens is
        total = total + weighted
        size = size + weighted.abs()
    return total, (context.world_size + 1) * HALF_STEP * DTYPE_SCALE[context.ax.dtype] * size


def normalized(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """`weighted_sum` over G, which is itself rounded, and the rounding of the quotient."""
    total, bound = weighted_sum(context)
    bound = bound + 2 * HALF_STEP * DTYPE_SCALE[context.ax.dtype] * total.abs()
    return total / context.tensor("global_valid_tokens"), bound / context.tensor("global_valid_tokens")


def gradient(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient by this rank's loss, and five roundings: of n and G, product, quotient and sum."""
    n = context.tensor("local_valid_tokens").double()
    first = context.tensor("grad_normalized_loss").double() * n / context.tensor("global_valid_tokens")
    second = context.own["grad_loss_sum"]
    added = n * 0 if second is None else context.tensor("grad_loss_sum").double() * n
    return first + added, 5 * HALF_STEP * DTYPE_SCALE[context.ax.dtype] * (first.abs() + added.abs())


def cost(ax: Axes) -> Cost:
    """Eight scalars of memory; one all-reduce of a scalar."""
    exchange = 2 * ax.itemsize * (ax.W - 1) / ax.W
    floats = 6 if ax.flag("has_grad_sum") else 5
    return Cost(
        vector_flops=6 + ax.W - 1,
        memory_bytes=floats * ax.itemsize + 16,
        link_in_bytes=exchange,
        link_out_bytes=exchange,
    )


MODES = {"has_grad_sum": True, "idle_rank": None, "idle_loss": "nan", "nan_rank": None, "micro_batches": 1}
STEPS = "(W + 1) 2^-8 (bfloat16)"

PROBLEM = Problem(
    name="GradAccLoss",
    upstream="23_grad_acc_loss",
    category="data_parallel",
    origin="token-weighted loss of gradient accumulation in xorl, related to VeOmni's loss reduction",
    summary="Turn per-rank mean losses into one token-weighted global loss, and take its gradient by the local loss.",
    weaknesses=(
        "Counts and both gradients are constant: grad_loss is 1 / W always, and no rank is ever without tokens.",
    ),
    tags=("all_reduce", "latency", "backward"),
    dtypes=("bfloat16", "float32"),
    # counts: tokens of the ranks as published; most: largest number otherwise. The large size is meant for float32.
    sizes={
        "tiny": {"counts": (5, 0, 17, 3), "most": 17, **MODES},
        "published": {"counts": 1_048_576, "most": 65_536, **MODES},
        "large": {"counts": 2**22, "most": 2**22, **MODES},
    },
    args=(
        Tensor("loss", (), about="mean over this rank's valid tokens"),
        Tensor("local_valid_tokens", (), dtype="int64", about="how many there are; may be 0"),
        Tensor("global_valid_tokens", (), dtype="int64", about="the divisor, equal on all ranks"),
        Tensor("grad_normalized_loss", (), about="incoming gradient of normalized_loss, equal on all ranks"),
        Tensor("grad_loss_sum", (), optional="has_grad_sum", about="incoming gradient of loss_sum, or None"),
    ),
    returns="tuple",
    outputs=(
        Output(
            "normalized_loss", (), check=within(normalized, description=f"loss_sum's over G: {STEPS} and 2 2^-8 more")
        ),
        Output("loss_sum", (), check=within(weighted_sum, description=f"|out - sum| <= {STEPS} sum |loss n|")),
        Output("grad_loss", (), check=within(gradient, description="5 2^-8 (bfloat16) times the sum of both terms")),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The scalars are read and written.",
        of=("memory",),
    ),
)
