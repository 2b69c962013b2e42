"""GNNSparseEmbedding: (node id, gradient row) pairs go to the rank that owns the id, id modulo W."""

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
    with_link,
)
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch

Ints = tuple[int, ...]


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds num_nodes (a multiple of W), this rank's pairs Z, and the pairs that it sends and gets.

    How many pairs each rank owns is drawn with the axes, so that sizes are known; else ids are uniform, and the sizes
    are expectations.
    """
    pairs = ax.int_lists("pairs") if ax["pairs"] else None
    counts = tuple(sum(mine) for mine in pairs) if pairs else (ax.Z,) * ax.W
    shares: tuple[tuple[float, ...], ...] = pairs or tuple((count / ax.W,) * ax.W for count in counts)
    arriving = sum(mine[ax.r] for mine in shares)
    most = int(arriving) if pairs else sum(counts)
    return {
        "num_nodes": -(-ax.nodes // ax.W) * ax.W,
        "Z": counts[ax.r],
        "send": shares[ax.r],
        "Y": arriving,
        "kept": shares[ax.r][ax.r],
        "most": most,
        "most_values": most * ax.D,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Pairs by rank and owner. Timed: Z as the size names it, evenly owned. Checks: unequal Z and skewed owners.

    One rank has no pairs on trials 1, 4, 7, ... of the checks, no rank has any on trial 8 of nine, and ids are negative
    on every third. On even trials half of the ranks have Z pairs as the size names it, so that no rank can infer the
    others' numbers from its own.
    """
    W = ax.W
    if draw.timed:
        jitter = ax.Z // 10 if ax.flag("ragged") else 0
        totals = [ax.Z + draw.randint(-jitter, jitter) for _ in range(W)]
        return {"pairs": tuple(spread(total, [1.0] * W, draw) for total in totals)}
    totals = [draw.randint(ax.Z // 2, ax.Z + ax.Z // 4) for _ in range(W)]
    for rank in draw.sample(range(W), 0 if draw.trial % 2 else W // 2):
        totals[rank] = ax.Z
    if draw.trial % 3 == 1 and W > 1:
        totals[draw.randrange(W)] = 0
    if draw.trial % 9 == 8:
        totals = [0] * W
    heavy = draw.randrange(W)
    weights = [1 / (1 + (d - heavy) % W) ** 2 for d in range(W)]
    group = (tuple(range(W)),) if draw.trial % 2 else None
    return {
        "pairs": tuple(spread(total, weights, draw) for total in totals),
        "negative": draw.trial % 3 == 2,
        "group": group,
    }


def spread(total: int, weights: list[float], draw: Draw) -> Ints:
    """Numbers of pairs by owner: shares of the total, off by as much as independent draws would be."""
    left, mass, counts = total, sum(weights), []
    for weight in weights[:-1]:
        share = min(1.0, weight / mass)
        count = round(draw.gauss(left * share, (left * share * (1 - share)) ** 0.5))
        counts.append(min(max(count, 0), left))
        left, mass = left - counts[-1], mass - weight
    return (*counts, left)


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Owners with the frequencies of the axes, in random order; popular nodes often; rows of random bits."""
    import torch

    ax = make.ax
    owner = torch.arange(ax.W, device=make.device).repeat_interleave(torch.tensor(ax["send"], device=make.device))
    owner = owner[make.permutation(ax.Z)]
    per_rank = ax.num_nodes // ax.W
    node = (make.rand(ax.Z) ** 3 * per_rank).to(torch.int64).clamp(max=per_rank - 1)
    if ax.flag("negative"):
        node -= per_rank // 8
    return owner + ax.W * node, make.bits("value")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Uniform ids, then standard normal rows, from the published seed."""
    stream = make.seeded(42 + 67_000 + make.rank + 1_000_003 * make.trial)
    return stream.integers("idx", 0, make.ax.num_nodes), stream.normal("value")


def cost(ax: Axes) -> Cost:
    """Every pair is read and written once, and crosses the link once unless it stays; one rank hands its input back."""
    pair = 8 + ax.itemsize * ax.D
    counts = 8 * (ax.W - 1)
    arriving, kept = ax.real("Y"), ax.real("kept")
    return Cost(
        memory_bytes=(ax.Z + arriving) * pair if ax.W > 1 else 0,
        link_in_bytes=(arriving - kept) * pair + counts,
        link_out_bytes=(ax.Z - kept) * pair + counts,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link values alone."""
    row, kept = ax.itemsize * ax.D, ax.real("kept")
    return with_link(cost(ax), (ax.real("Y") - kept) * row, (ax.Z - kept) * row)


MODES = {"pairs": None, "negative": False, "group": None}

PROBLEM = Problem(
    name="GNNSparseEmbedding",
    upstream="67_gnn_sparse_embedding_all2all",
    category="graph_parallel",
    origin="DGL sparse node-embedding push (NCCL sparse all-to-all with remainder partition)",
    summary="Every rank holds (node id, gradient row) pairs and sends each to the rank that owns the id, which is "
    "the id modulo the number of ranks.",
    weaknesses=(
        "Z is equal on all ranks and ids are uniform: the exchange is nearly balanced, and fixed slack passes.",
        "Ids are compared as floats with 1 % tolerance.",
    ),
    no_capture_because="How many rows go to each rank depends on the node ids, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "ragged", "graph"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"Z": 24, "D": 16, "nodes": 100, "ragged": True, **MODES},
        "published": {"Z": 1024, "D": 128, "nodes": 100_000, "ragged": False, **MODES},
        "large": {"Z": 262144, "D": 256, "nodes": 10_000_000, "ragged": True, **MODES},
    },
    args=(
        Tensor("idx", ("Z",), dtype="int64", about="node ids, repeats allowed; Z may differ by rank and be 0"),
        Tensor("value", ("Z", "D"), about="row of each id"),
        Scalar("num_nodes", "int", about="unused"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "recv_idx",
            ("?",),
            dtype="int64",
            capacity="most",
            about="ids that this rank owns (id mod W, never negative), by source rank, in the order of the source",
        ),
        Output("recv_value", ("?", "D"), capacity="most_values", check=same_bits(), about="their rows"),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every pair for another rank goes out once, and every foreign one comes in once; ids may be coded in next to "
        "nothing.",
        work=least_work,
    ),
)
