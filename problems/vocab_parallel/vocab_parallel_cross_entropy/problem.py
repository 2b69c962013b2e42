"""VocabParallelCrossEntropy: per-token cross-entropy of logits that are split along the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Group,
    InPlace,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Tensor,
    Trials,
    close,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, outside, rule

if TYPE_CHECKING:
    import torch

OFFSET = 120.0
"""Of whole rows: exp overflows and underflows float32 from 89 on."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's share of the vocabulary, and keeps the default group."""
    return {"Vl": ax.divide("V", by="W"), "group": None}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits 4 N(0, 1), with +-120 added to two rows in three; uniform targets, one in eight at a border of two shards.

    The offsets are equal on all ranks and make the shift by the row maximum necessary.
    """
    import torch

    ax = make.ax
    offset = OFFSET * make.shared.randint(-1, 2, ax.B, ax.S, 1)
    logits = (4 * make.randn(ax.B, ax.S, ax.Vl) + offset).to(make.dtype)
    border = make.shared.randint(0, ax.W + 1, ax.B, ax.S) * ax.Vl - make.shared.randint(0, 2, ax.B, ax.S)
    at_border = make.shared.rand(ax.B, ax.S) < 0.125
    target = make.shared.integers("target", 0, ax.V)
    return logits, torch.where(at_border, border.clamp(0, ax.V - 1), target)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal logits; targets follow a closed form."""
    import torch

    ax = make.ax
    logits = make.seeded(42 + 73_000 + make.rank + 1_000_003 * make.trial).normal("vocab_parallel_logits")
    token = torch.arange(ax.B * ax.S, device=make.device)
    return logits, ((13 * token + 7 + make.trial) % ax.V).view(ax.B, ax.S)


def loss_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Off by more than 2^-6 of the loss, and W + 1 roundings of the sum of exponentials, which ranks add in bfloat16.

    The shifted logit of the target, the logarithm and the loss are each rounded by 2^-8 of the loss at most; the sum of
    exponentials W times, each time by 2^-8 of itself, which is as much of its logarithm where the loss is near 0.
    """
    expected = context.expected.double()
    bound = 2.0**-6 * expected.abs() + (context.world_size + 1) * 2.0**-8
    return outside(got.double(), expected, DTYPE_SCALE[context.ax.dtype] * bound)


def cost(ax: Axes) -> Cost:
    """Logits are read and shifted in place once.

    Each token's local logsumexp and target go to one rank, and loss and maximum return: 4 (W-1)/W numbers per token;
    or a switch adds, and three all-reduces take one each.
    """
    tokens = ax.B * ax.S
    link = min(4 * (ax.W - 1) / ax.W, 3) * tokens * ax.itemsize
    return Cost(
        vector_flops=4 * tokens * ax.Vl,
        memory_bytes=2 * tokens * ax.Vl * ax.itemsize + 8 * tokens + tokens * ax.itemsize,
        link_in_bytes=link,
        link_out_bytes=link,
    )


PROBLEM = Problem(
    name="VocabParallelCrossEntropy",
    upstream="73_vocab_parallel_cross_entropy_loss",
    category="vocab_parallel",
    origin="Megatron-LM: vocab-parallel cross entropy of the tensor-parallel layers",
    summary="Per-token cross-entropy of logits that are split over ranks along the vocabulary, without gathering them.",
    weaknesses=(
        "Targets follow a closed form, and logits are so small that the shift by their maximum may be left out.",
    ),
    tags=("all_reduce", "softmax", "loss", "in_place"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"B": 2, "S": 16, "V": 64},
        "published": {"B": 8, "S": 1024, "V": 512},
        "large": {"B": 4, "S": 8192, "V": 128256},
    },
    args=(
        Tensor(
            "vocab_parallel_logits",
            ("B", "S", "Vl"),
            mutable=True,
            about="vocabulary ids r*Vl .. (r+1)*Vl-1; the row maximum over all ranks is subtracted in place",
        ),
        Tensor("target", ("B", "S"), dtype="int64", about="a vocabulary id per token, equal on all ranks"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "loss",
            ("B", "S"),
            check=rule(loss_mark, "2^-6 |loss| + (W + 1) 2^-8 (bfloat16)"),
            about="logsumexp(logits) - logits[target]",
        ),
        InPlace("vocab_parallel_logits", check=close(rtol=2**-7)),
    ),
    derive=derive,
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Logits are read and shifted in place. What crosses the link, a few numbers a token, is too little to count.",
        of=("memory",),
    ),
)
