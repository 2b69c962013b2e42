"""VocabParallelLogProbChunked: filtered log-probabilities with a sharded vocabulary, chunk by chunk over the tokens."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Draw,
    Group,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    SizeError,
    Stream,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import rule
from pkb_gym.problems.vocab_parallel.vocab_parallel_log_prob import problem as unchunked

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds tokens, this rank's share of the vocabulary, the default group, and chunks where the size gives none."""
    size = ax.number_or_none("chunk_size")
    if size is None:
        size = min(-(-max(ax.W, ax.S // 4) // ax.W) * ax.W, ax.S)
    chunk = ax.B * max(1, size)
    if chunk % ax.W:
        raise SizeError(f"B*chunk_size = {ax.B}*{max(1, size)} = {chunk} tokens must be a multiple of W={ax.W}")
    return unchunked.derive(ax) | {"chunk_size": size}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: the filters of the problem without chunks, and chunks of any size, the last one often short."""
    changes = unchunked.robust_vary(ax, draw)
    if draw.timed or draw.trial == 0:
        return changes
    step = ax.W // gcd(ax.B, ax.W)
    size = step * draw.randint(1, max(1, ax.S // step - 1))
    if draw.trial % 4 == 3 and step == 1:
        size = 0  # counts as 1
    return changes | {"chunk_size": size}


def boosted_logits(make: InputMaker, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal logits with 8 added at the targets, which follow a closed form."""
    import torch

    ax = make.ax
    logits = stream.normal("vocab_parallel_logits").view(ax.T, ax.Vl)
    target = (19 * torch.arange(ax.T, device=make.device) + 5 + make.trial) % ax.V
    index = target - make.rank * ax.Vl
    rows = ((index >= 0) & (index < ax.Vl)).nonzero().squeeze(1)
    logits[rows, index[rows]] += 8
    return logits.view(ax.B, ax.S, ax.Vl), target.view(ax.B, ax.S)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Boosted logits from the published seed."""
    return boosted_logits(make, make.seeded(42 + 83_000 + make.rank + 1_000_003 * make.trial))


PROBLEM = Problem(
    name="VocabParallelLogProbChunked",
    upstream="83_vocab_parallel_log_prob_topk_chunked",
    category="vocab_parallel",
    origin="NeMo-RL: chunked distributed log-probabilities with a top-k / top-p sampling filter",
    summary="The filtered log-probability of VocabParallelLogProb, computed chunk by chunk over the tokens.",
    weaknesses=(
        "Targets carry a boost of 8 and are nearly always the only token kept: all zeros pass in some trials.",
        "Targets follow a closed form and are never filtered out; only top-k together with top-p is run.",
        "On eight ranks there is only one chunk, and a short last chunk never occurs.",
    ),
    tags=("all_to_all", "all_gather", "top_k", "top_p", "softmax", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    # chunk_size None: S / 4, at least W, in multiples of W.
    sizes={
        "tiny": {"B": 2, "S": 12, "V": 64, "top_k": 10, "top_p": 0.9, "chunk_size": 8},
        "published": {"B": 2, "S": 8, "V": 256, "top_k": 10, "top_p": 0.9, "chunk_size": None},
        "large": {"B": 4, "S": 1024, "V": 151936, "top_k": 50, "top_p": 0.95, "chunk_size": 256},
    },
    args=(
        Tensor("vocab_parallel_logits", ("B", "S", "Vl"), about="vocabulary ids r*Vl .. (r+1)*Vl-1"),
        Tensor("target", ("B", "S"), dtype="int64", about="a vocabulary id per token, equal on all ranks"),
        Group("tp_group", about="None means all ranks"),
        Scalar("top_k", "int", optional=True, about="keep the k largest and their equals; None or <= 0: off"),
        Scalar("top_p", "float", optional=True, about="nucleus mass, after top-k; None or >= 1: off"),
        Scalar("chunk_size", "int", about="the baseline's chunks have B * max(1, chunk_size) tokens"),
    ),
    outputs=(
        Output(
            "logprobs",
            ("B", "S"),
            dtype="float32",
            check=rule(
                unchunked.filtered_mark,
                description=(
                    "atol=1e-2 and -inf where it is -inf (bfloat16); tokens whose running sum lies within 4e-3 of "
                    "1 - top_p, and equal logits there, may be kept or left out"
                ),
                batched=False,
            ),
            about="-inf where the target was left out",
        ),
    ),
    derive=derive,
    robust=Trials(unchunked.robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=unchunked.cost,
    least_work=LeastWork(
        "Every logit may be among the k largest, or enters the normaliser. What crosses the link, a few numbers a "
        "token, is too little to count.",
        of=("memory",),
    ),
)
