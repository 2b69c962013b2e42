"""VocabParallelLogProbChunkedBackward: gradient of filtered log-probabilities by logits with a sharded vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pkb_gym.engine.problem import Axes, Cost, Group, InputMaker, LeastWork, Output, Problem, Scalar, Tensor, Trials
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, outside, rule
from pkb_gym.problems.vocab_parallel.vocab_parallel_log_prob import problem as unchunked
from pkb_gym.problems.vocab_parallel.vocab_parallel_log_prob_chunked import problem as forward

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor]"


def robust_inputs(make: InputMaker) -> Inputs:
    """Logits and targets of the forward problem, and normal gradients that are equal on all ranks."""
    return *unchunked.robust_inputs(make), make.shared.normal("grad_output")


def published_inputs(make: InputMaker) -> Inputs:
    """Boosted logits from the published seed, and evenly spaced gradients."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 84_000 + make.rank + 1_000_003 * make.trial)
    spaced = torch.linspace(-1, 1, ax.T, device=make.device).to(make.dtype)
    return *forward.boosted_logits(make, stream), spaced.view(ax.B, ax.S)


def tolerance(expected: torch.Tensor, gamma: torch.Tensor, is_target: torch.Tensor) -> torch.Tensor:
    """2e-3 of the value: probabilities are float32, small ones as precise as large ones.

    At the target 1 - pi may cancel; there 1e-5 of the incoming gradient is added, elsewhere what underflow may take.
    """
    import torch

    return 2e-3 * expected.abs() + gamma.abs() * torch.where(is_target, 1e-5, 1e-9)


def some_kept_set(
    got: torch.Tensor,
    logits: torch.Tensor,
    own: torch.Tensor,
    is_target: torch.Tensor,
    gamma: torch.Tensor,
    k: int | None,
    p: float,
    border: float,
) -> torch.Tensor:
    """Marks what no legal cut of the tail explains; returns (n, Vl) bool.

    In ascending order of logits top-p leaves out the first m tokens. m is legal if the running sum up to the last one
    left out is at most 1 - p + border and that up to the first one kept more than 1 - p - border; among equal logits
    any may come first. So tokens are surely kept, surely left out, or free; free ones count as what they are nearer to,
    and must be left out from below. That bounds m, and with it the kept mass, which has to fit all of the row.

    Args:
        got: (n, Vl) float64, rows of the candidate's gradient.
        logits: (n, V), whole vocabulary.
        own: (n, Vl), this rank's part of it.
        is_target: (n, Vl) bool.
        gamma: (n, 1) float64, incoming gradient.
        k: Number of kept logits, at most V; None for all.
        p: Nucleus mass, below 1.
        border: Half width of the interval around 1 - p that is legal either way.
    """
    import torch

    V = logits.shape[1]
    ascending = logits.sort(dim=1).values.double()
    if k is not None:
        ascending = ascending.masked_fill(ascending < ascending[:, V - k, None], -torch.inf)
    share = (own.double() - ascending.logsumexp(1, keepdim=True)).exp()  # probability before top-p
    mass = ascending.softmax(dim=1)
    running = mass.cumsum(dim=1)
    kept_mass = mass.flip(1).cumsum(1).flip(1)  # [:, m]: what stays if m are left out
    fewest, most = ((running <= 1 - p + slack).sum(1, keepdim=True).clamp(max=V - 1) for slack in (-border, border))
    fewest = fewest.maximum((ascending == -torch.inf).sum(1, keepdim=True)).minimum(most)

    lowest, highest = ascending.gather(1, fewest), ascending.gather(1, most)
    parts_equals = (ascending.gather(1, (most - 1).clamp(min=0)) == highest) & (most > 0)
    surely = (own > highest) | ((own == highest) & ~parts_equals)
    free = (own >= lowest) & ~surely
    if_kept = gamma * (is_target.double() - share / kept_mass.gather(1, fewest))
    kept = surely | (free & (got.abs() > if_kept.abs() / 2))

    at_least = own.double().masked_fill(~free | kept, -torch.inf).amax(1, keepdim=True).maximum(lowest)
    at_most = own.double().masked_fill(~free | ~kept, torch.inf).amin(1, keepdim=True).minimum(highest)
    first = fewest.maximum((ascending < at_least).sum(1, keepdim=True)).clamp(max=V - 1)
    last = most.minimum((ascending <= at_most).sum(1, keepdim=True) - 1).clamp(min=0)

    likeliest = torch.where(kept & ~is_target, share, 0).argmax(1, keepdim=True)
    fitted = gamma.abs() * share.gather(1, likeliest) / got.gather(1, likeliest).abs()
    alone = ~(kept & ~is_target).any(1, keepdim=True)
    fitted_alone = torch.where(is_target & kept, share / (1 - got / gamma), 0).nan_to_num(0, 0, 0).sum(1, keepdim=True)
    total = torch.where(alone, fitted_alone, fitted).nan_to_num(0)
    total = total.maximum(kept_mass.gather(1, last)).minimum(kept_mass.gather(1, first))
    expected = torch.where(kept, gamma * (is_target.double() - share / total), 0)
    return outside(got, expected, tolerance(expected, gamma, is_target)) | (first > last)


def gradient_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks what differs from the baseline, unless top-p may decide otherwise by rounding or among equal logits."""
    import torch

    ax = context.ax
    k, p = unchunked.filters(ax)
    targets, gammas = context.tensor("target").flatten(), context.tensor("grad_output").flatten().double()
    values = got.view(ax.T, ax.Vl)
    columns = torch.arange(context.rank * ax.Vl, (context.rank + 1) * ax.Vl, device=got.device)
    shards = [context.tensor("vocab_parallel_logits", rank).view(ax.T, ax.Vl) for rank in range(context.world_size)]
    border = unchunked.BORDER * max(DTYPE_SCALE[ax.dtype], 2.0**-8) if p is not None and p > 0 else 0.0
    marked = torch.zeros_like(values, dtype=torch.bool)
    for some in torch.split(torch.arange(ax.T, device=got.device), max(1, unchunked.LOGITS_AT_ONCE // ax.V)):
        is_target = targets[some, None] == columns
        gamma = gammas[some, None]
        expected = context.expected.view(ax.T, ax.Vl)[some].double()
        bad = outside(values[some].double(), expected, tolerance(expected, gamma, is_target))
        rows = bad.any(dim=1).nonzero().squeeze(1)
        if p is not None and rows.numel():
            which = some[rows]
            logits = torch.cat([shard[which] for shard in shards], dim=1).float()
            own, mine = shards[context.rank][which].float(), values[which].double()
            bad[rows] = some_kept_set(mine, logits, own, is_target[rows], gamma[rows], k, p, border)
        marked[some] = bad
    return marked.view(got.shape)


def cost(ax: Axes) -> Cost:
    """Logits are read and gradients written once; candidates for the k largest go to the token's owner.

    The smallest logit kept and the normaliser return to all ranks, which form their columns themselves. Without top-k
    a maximum and a sum do.
    """
    k, _ = unchunked.filters(ax)
    link = (ax.W - 1) / ax.W * ax.T * (8 if k is None else ax.itemsize * min(k, ax.Vl) + 8)
    return Cost(
        vector_flops=(6 if k is None else 1) * ax.T * ax.Vl,
        memory_bytes=(ax.itemsize + 4) * ax.T * ax.Vl + (8 + ax.itemsize) * ax.T,
        link_in_bytes=link,
        link_out_bytes=link,
    )


PROBLEM = Problem(
    name="VocabParallelLogProbChunkedBackward",
    upstream="84_vocab_parallel_log_prob_topk_chunked_backward",
    category="vocab_parallel",
    origin="NeMo-RL: backward of chunked distributed log-probabilities with a top-k / top-p sampling filter",
    summary=(
        "Gradient of the filtered target log-probability with respect to the vocabulary-split logits, recomputed chunk "
        "by chunk."
    ),
    weaknesses=(
        "Targets carry a boost of 8 and are nearly always the only token kept, so that the gradient is nearly zero.",
        "Targets follow a closed form and are never filtered out; only top-k together with top-p is run.",
        "The incoming gradient never changes; on eight ranks there is only one chunk, and never a short last one.",
    ),
    tags=("all_to_all", "top_k", "top_p", "softmax", "backward", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes=forward.PROBLEM.sizes,
    args=(
        Tensor("vocab_parallel_logits", ("B", "S", "Vl"), about="vocabulary ids r*Vl .. (r+1)*Vl-1"),
        Tensor("target", ("B", "S"), dtype="int64", about="a vocabulary id per token, equal on all ranks"),
        Tensor("grad_output", ("B", "S"), about="gradient of the loss by each log-probability, equal on all ranks"),
        Group("tp_group", about="None means all ranks"),
        Scalar("top_k", "int", optional=True, about="keep the k largest and their equals; None or <= 0: off"),
        Scalar("top_p", "float", optional=True, about="nucleus mass, after top-k; None or >= 1: off"),
        Scalar("chunk_size", "int", about="the baseline's chunks have B * max(1, chunk_size) tokens"),
    ),
    outputs=(
        Output(
            "grad_logits",
            ("B", "S", "Vl"),
            dtype="float32",
            check=rule(
                gradient_mark,
                description=(
                    "rtol=2e-3 (at the target also 1e-5 of its incoming gradient); tokens whose running sum lies "
                    "within 4e-3 of 1 - top_p (bfloat16), and equal logits there, may be kept or left out"
                ),
                batched=False,
            ),
            about="0 for logits that were left out",
        ),
    ),
    derive=forward.derive,
    robust=Trials(robust_inputs, vary=forward.robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every logit may be among the k largest, or enters the normaliser; every gradient is written. What crosses "
        "the link, a few numbers a token, is too little to count.",
        of=("memory",),
    ),
)
