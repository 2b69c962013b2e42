"""GNNNegativeScoring: the rank of every positive edge's score among those of its negatives, pooled over all ranks."""

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
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import CheckContext, rule

if TYPE_CHECKING:
    import torch

Ints = tuple[int, ...]


def counts_of(ax: Axes) -> Ints:
    """Every rank's number of positives."""
    counts = ax.ints_or_none("counts")
    if counts is None:
        base = ax.base if ax["total"] is None else max(16, min(ax.total // ax.W, 1280))
        counts = tuple(base + rank % 3 for rank in range(ax.W))
    return counts


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds every rank's number of positives, this one's, and their sum P."""
    counts = counts_of(ax)
    return {"counts": counts, "P_r": counts[ax.r], "P": sum(counts)}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks have any number of positives, none on one rank on odd trials, and none anywhere on the last of eight.

    About half of the ranks keep the number of the size, so that no rank can infer the others' numbers from its own.
    """
    if draw.timed:
        return {}
    counts = list(counts_of(ax))
    changed = draw.sample(range(len(counts)), (len(counts) + 1) // 2)
    for rank in changed:
        counts[rank] = draw.randint(1, counts[rank])
    if draw.trial % 2 and len(counts) > 1:
        counts[changed[0]] = 0
    if draw.trial % 8 == 7:
        counts = [0] * len(counts)
    group = (tuple(range(len(counts))),) if draw.trial % 2 else None
    return {"counts": tuple(counts), "group": group, "special": draw.trial % 4 == 3}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal scores, positives moved up as by a trained model; some saturated, infinite and NaN on some trials."""
    import torch

    positives, negatives = make.normal("local_pos_scores", mean=1.0), make.normal("local_neg_scores")
    if make.ax.flag("special"):
        special = torch.tensor([-torch.inf, torch.inf, torch.nan, 12.0, -0.0], device=make.device)
        for scores in (positives, negatives):
            chosen = special[make.randint(0, len(special), *scores.shape)]
            scores.copy_(torch.where(make.rand(*scores.shape) < 0.05, chosen, scores.float()))
    return positives, negatives


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal scores from the published seed, positives first."""
    stream = make.seeded(42 + 69_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("local_pos_scores"), stream.normal("local_neg_scores")


def bounded_sigmoid(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest value that a float32 sigmoid, a few ulp off, may be rounded to; 2 for NaN."""
    import torch

    wide = torch.sigmoid(scores.double())
    low, high = (wide * (1 - 2.0**-21)).to(scores.dtype), (wide * (1 + 2.0**-21)).clamp(max=1).to(scores.dtype)
    return low.nan_to_num(2.0), high.nan_to_num(2.0)


def wrong_ranks(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Marks what is less than 1 + the number of greater negatives, or more than that with those that tie added.

    A positive may come anywhere among the negatives that tie with it, as a sort that is not stable leaves it. Where a
    sigmoid lies on the edge between two numbers of the dtype, a tie may be broken, or made.
    """
    import torch

    least, most = [], []
    for rank in range(context.world_size):
        p_low, p_high = bounded_sigmoid(context.tensor("local_pos_scores", rank).unsqueeze(1))
        q_low, q_high = bounded_sigmoid(context.tensor("local_neg_scores", rank))
        least.append(1 + (q_low > p_high).sum(dim=1))
        most.append(1 + (q_high >= p_low).sum(dim=1))
    return (got < torch.cat(least)) | (got > torch.cat(most))


def cost(ax: Axes) -> Cost:
    """Every rank ranks its own positives, and shares nothing but the results."""
    return Cost(
        vector_flops=5 * ax.P_r * (ax.K + 1),
        memory_bytes=ax.itemsize * ax.P_r * (ax.K + 1) + 8 * ax.P,
        link_in_bytes=8 * (ax.P - ax.P_r),
        link_out_bytes=8 * ax.P_r if ax.W > 1 else 0,
    )


MODES = {"counts": None, "special": False, "group": None}

PROBLEM = Problem(
    name="GNNNegativeScoring",
    upstream="69_gnn_negative_scoring",
    category="graph_parallel",
    origin="GraphStorm link-prediction evaluation",
    summary="All ranks pool the scores of their positive edges and of their negatives, and every rank returns the rank "
    "(1 = best) of each positive among its own negatives.",
    weaknesses=(
        "Ranks are compared as floats with 1 % tolerance: a rank of 500 may be off by 5.",
        "Sizes never change over trials.",
    ),
    no_capture_because="The numbers of other ranks' positives are unknown to the host until they are exchanged.",
    tags=("all_gather", "ragged", "sort", "graph"),
    dtypes=("bfloat16", "float16", "float32"),
    # Rank r has base + r mod 3 positives; total, where given, replaces base by total / W, 16 to 1280.
    sizes={
        "tiny": {"base": 16, "total": None, "K": 100, **MODES},
        "published": {"base": 256, "total": 1024, "K": 1000, **MODES},
        "large": {"base": 16384, "total": None, "K": 1000, **MODES},
    },
    args=(
        Tensor("local_pos_scores", ("P_r",), about="score of each positive; P_r differs by rank and may be 0"),
        Tensor("local_neg_scores", ("P_r", "K"), about="scores of its K negatives"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "ranks",
            ("P",),
            dtype="int64",
            check=rule(wrong_ranks, "exact, but that ties of rounded sigmoids may come in any order"),
            about="1 + number of own negatives whose rounded sigmoid is greater (NaN greatest), or that tie and come "
            "first, by rank, on all ranks",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Scores are read and ranks are written. What crosses the link, ranks, is too little to count.",
        of=("memory",),
    ),
)
