"""VocabParallelLogProb: log-probabilities under the top-k/top-p filtered softmax, with a sharded vocabulary."""

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
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, outside, rule

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-2
BORDER = 4e-3
"""Distance of a bfloat16 running sum from 1 - top_p within which rounding may decide."""

SMALLEST_SHARE = 2.0**-25
"""Probability below which tails of the logits are cut: half a step of the uniform numbers that they are made from."""

LOGITS_AT_ONCE = 2**24
"""Maximum number of elements that the check sorts at a time."""


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds tokens, this rank's share of the vocabulary, and the default group."""
    tokens = ax.B * ax.S
    if tokens % ax.W:
        raise SizeError(f"B*S = {ax.B}*{ax.S} = {tokens} tokens must be a multiple of W={ax.W}")
    return {"T": tokens, "Vl": ax.divide("V", by="W"), "tp_group": None}


def filters(ax: Axes) -> tuple[int | None, float | None]:
    """k, at most V, and p; None where that filter is off."""
    top_k, top_p = ax.number_or_none("top_k"), ax.real_or_none("top_p")
    k = min(top_k, ax.V) if top_k is not None and top_k > 0 else None
    p = top_p if top_p is not None and top_p < 1 else None
    return k, p


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: the size's filters, then top-p alone, top-k alone and none, over and over, with other k and p.

    The second round has the extremes: p = 0, k beyond the vocabulary, and filters switched off by other values.
    """
    if draw.timed or draw.trial == 0:
        return {}
    top_k = ax.number_or_none("top_k")
    around = top_k if top_k is not None and top_k > 0 else 10
    k, p = draw.randint(max(1, around // 2), 2 * around), round(draw.uniform(0.8, 0.97), 3)
    rounds: tuple[tuple[AxisValue, AxisValue], ...] = ((k, p), (None, p), (k, 1.0), (None, 1.0))
    if draw.trial % 8 > 4:
        rounds = ((k, p), (0, 0.0), (ax.V + k, None), (0, 1.5))
    chosen = rounds[draw.trial % 4]
    return {"top_k": chosen[0], "top_p": chosen[1]}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Logistic logits; one target in two is uniform over the vocabulary, the others are likely tokens.

    The exponential of a standard logistic variable has a tail so heavy that the mean does not exist: the few largest of
    any number of tokens have much of the sum, and neither part of the vocabulary nor the distribution tells how much.
    A likely token has the logit of one of the k largest, more often of the first. In a quarter of the rows logits are
    multiples of 1/4, so that several are equal to the k-th largest.
    """
    ax = make.ax
    k, _ = filters(ax)
    logits = make.rand(ax.T, ax.Vl).logit(eps=SMALLEST_SHARE)
    target = make.shared.randint(0, ax.V, ax.T)
    likely = make.shared.rand(ax.T) < 0.5
    place = make.shared.rand(ax.T).clamp(min=0.03).square() * (k or max(1, ax.V // 10)) / ax.V
    coarse = make.shared.rand(ax.T) < 0.25
    index = target - make.rank * ax.Vl
    rows = (likely & (index >= 0) & (index < ax.Vl)).nonzero().squeeze(1)
    logits[rows, index[rows]] = (1 - place[rows]).logit(eps=SMALLEST_SHARE)
    logits[coarse] = (4 * logits[coarse]).round() / 4
    return logits.to(make.dtype).view(ax.B, ax.S, ax.Vl), target.view(ax.B, ax.S)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal logits with 8 added at the targets, which follow a closed form."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 82_000 + make.rank + 1_000_003 * make.trial)
    logits = stream.normal("vocab_parallel_logits").view(ax.T, ax.Vl)
    target = (17 * torch.arange(ax.T, device=make.device) + 3 + make.trial) % ax.V
    index = target - make.rank * ax.Vl
    rows = ((index >= 0) & (index < ax.Vl)).nonzero().squeeze(1)
    logits[rows, index[rows]] += 8
    return logits.view(ax.B, ax.S, ax.Vl), target.view(ax.B, ax.S)


def either_decision(
    got: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, k: int | None, p: float, border: float, tol: float
) -> torch.Tensor:
    """Whether some legal cut of the tail gives `got`.

    In ascending order of logits top-p leaves out the first m tokens. m is legal if the running sum up to the last one
    left out is at most 1 - p + border and that up to the first one kept more than 1 - p - border. Among equal logits
    any may come first, so that a target whose equals are partly left out may be among them or not.

    Args:
        got: (n,) float64, candidate's log-probabilities.
        logits: (n, V), whole vocabulary.
        target: (n,).
        k: Number of kept logits, at most V; None for all.
        p: Nucleus mass, below 1.
        border: Half width of the interval around 1 - p that is legal either way.
        tol: Tolerance of finite values.

    Returns:
        (n,) bool.
    """
    import torch

    V = logits.shape[1]
    own = logits.gather(1, target[:, None]).double()
    ascending = logits.sort(dim=1).values.double()
    cut = torch.zeros_like(own, dtype=torch.bool)
    if k is not None:
        threshold = ascending[:, V - k, None]
        cut = own < threshold
        ascending = ascending.masked_fill(ascending < threshold, -torch.inf)
    mass = ascending.softmax(dim=1)
    running = mass.cumsum(dim=1)
    kept_mass = mass.flip(1).cumsum(1).flip(1)  # [:, m]: what stays if m are left out
    fewest = (running <= 1 - p - border).sum(1, keepdim=True).clamp(max=V - 1)
    most = (running <= 1 - p + border).sum(1, keepdim=True).clamp(max=V - 1)
    m = torch.arange(V, device=logits.device)
    legal = (m >= fewest) & (m <= most)
    below, up_to = (ascending < own).sum(1, keepdim=True), (ascending <= own).sum(1, keepdim=True)
    value = own - ascending.logsumexp(1, keepdim=True) - kept_mass.log()
    stays = (legal & (m < up_to) & ~cut & ((value - got[:, None]).abs() <= tol)).any(1)
    goes = (legal & (m > below)).any(1) | cut.squeeze(1)
    return torch.where(got == -torch.inf, goes, stays)


def filtered_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks what differs from the baseline, unless top-p may decide otherwise by rounding or among equal logits."""
    import torch

    ax = context.ax
    k, p = filters(ax)
    tol = TOLERANCE * max(DTYPE_SCALE[ax.dtype], 2.0**-7)
    bad = outside(got.double(), context.expected.double(), tol).flatten()
    rows = bad.nonzero().squeeze(1)
    if p is None or not rows.numel():
        return bad.view(got.shape)
    # With p <= 0 only the largest stays, whatever the rounding.
    border = BORDER * max(DTYPE_SCALE[ax.dtype], 2.0**-8) if p > 0 else 0.0
    shards = [context.tensor("vocab_parallel_logits", rank).view(ax.T, ax.Vl) for rank in range(context.world_size)]
    targets = context.tensor("target").flatten()
    for some in torch.split(rows, max(1, LOGITS_AT_ONCE // ax.V)):
        logits = torch.cat([shard[some] for shard in shards], dim=1).float()
        bad[some] = ~either_decision(got.flatten()[some].double(), logits, targets[some], k, p, border, tol)
    return bad.view(got.shape)


def cost(ax: Axes) -> Cost:
    """Every logit is looked at once; candidates for the k largest and the target's logit go to the token's owner.

    Without top-k a maximum, a sum and the target's logit do. The results return to all ranks.
    """
    k, _ = filters(ax)
    per_token = 12 if k is None else ax.itemsize * (min(k, ax.Vl) + 1) + 4
    link = (ax.W - 1) / ax.W * ax.T * per_token
    return Cost(
        vector_flops=(4 if k is None else 1) * ax.T * ax.Vl,
        memory_bytes=ax.itemsize * ax.T * ax.Vl + 8 * ax.T + 4 * ax.T,
        link_in_bytes=link,
        link_out_bytes=link,
    )


PROBLEM = Problem(
    name="VocabParallelLogProb",
    upstream="82_vocab_parallel_log_prob_topk",
    category="vocab_parallel",
    origin="NeMo-RL: distributed log-probabilities with a top-k / top-p sampling filter",
    summary=(
        "Log-probability of each target token under the top-k/top-p filtered softmax, with the logits split over ranks "
        "along the vocabulary."
    ),
    weaknesses=(
        "Targets carry a boost of 8 and are nearly always the only token kept: all zeros pass in some trials.",
        "Targets follow a closed form and are never filtered out; only top-k together with top-p is run.",
    ),
    tags=("all_to_all", "all_gather", "top_k", "top_p", "softmax"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"B": 2, "S": 8, "V": 64, "top_k": 10, "top_p": 0.9},
        "published": {"B": 2, "S": 8, "V": 256, "top_k": 10, "top_p": 0.9},
        "large": {"B": 4, "S": 1024, "V": 151936, "top_k": 50, "top_p": 0.95},
    },
    args=(
        Tensor("vocab_parallel_logits", ("B", "S", "Vl"), about="vocabulary ids r*Vl .. (r+1)*Vl-1"),
        Tensor("target", ("B", "S"), dtype="int64", about="a vocabulary id per token, equal on all ranks"),
        Group("tp_group", about="None means all ranks"),
        Scalar("top_k", "int", optional=True, about="keep the k largest and their equals; None or <= 0: off"),
        Scalar("top_p", "float", optional=True, about="nucleus mass, after top-k; None or >= 1: off"),
    ),
    outputs=(
        Output(
            "logprobs",
            ("B", "S"),
            dtype="float32",
            check=rule(
                filtered_mark,
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
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every logit may be among the k largest, or enters the normaliser. What crosses the link, a few numbers a "
        "token, is too little to count.",
        of=("memory",),
    ),
)
