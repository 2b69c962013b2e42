"""GNNFeatureExchange: feature rows go to the ranks that asked for them, chunks by distance from the own rank."""

from __future__ import annotations

from math import prod
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
from pkb_gym.problems.graph_parallel.exchange import (
    Ints,
    as_timed,
    count_lists,
    draw_requests,
    draw_sizes,
    requests_of,
    world_group,
)

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the count lists, the seeds S of this rank, the rows that leave and arrive, and the shapes."""
    row, seeds = ax.ints("row"), ax.ints_or_none("seeds")
    S = seeds[ax.r] if seeds else ax.S
    lists = count_lists(requests_of(ax), ax.r)
    R_out, R_in = sum(lists["counts_received"]), sum(lists["counts_sent"])
    return {
        **lists,
        "features_shape": (S, *row),
        "out_shape": (R_in, *row),
        "S": S,
        "R_out": R_out,
        "R_in": R_in,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks have uneven and empty chunks, S by rank, and rows of two, one and no dimensions."""
    if draw.timed:
        return {"requests": draw_requests(ax, draw, [])} if ax.flag("ragged") else {}
    row, kept = ax.ints("row"), as_timed(ax, draw)
    rows: tuple[Ints, ...] = (row, (2, row[0] // 2), row, ())
    return {
        "requests": draw_requests(ax, draw, kept),
        "seeds": draw_sizes(ax, draw, kept),
        "row": rows[draw.trial % 4],
        "group": world_group(ax, draw),
    }


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every row gives the result."""
    return make.bits("local_features"), make.integers("seed_inverse_ids", 0, make.ax.S)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal features, then uniform ids, from the published seed."""
    stream = make.seeded(42 + 65_000 + make.rank + 1_000_003 * make.trial)
    features = stream.normal("local_features")
    return features, stream.integers("seed_inverse_ids", 0, make.ax.S)


def distinct(S: int, ids: int) -> float:
    """Expected number of different ones of S rows that `ids` uniform ids name."""
    return S * (1 - (1 - 1 / S) ** ids)


def cost(ax: Axes) -> Cost:
    """Each row that is named is read once, and crosses the link once for each rank that asked for it.

    Ids are uniform: different rows are counted by their expectation, which no kernel undercuts over many trials.
    """
    row = ax.itemsize * prod(ax.ints("row"))
    requests, seeds = requests_of(ax), ax.ints_or_none("seeds")
    peers = [p for p in range(ax.W) if p != ax.r]
    arriving = sum(distinct(seeds[q] if seeds else ax.S, requests[q][ax.r]) for q in peers)
    leaving = sum(distinct(ax.S, requests[ax.r][p]) for p in peers)
    return Cost(
        memory_bytes=row * (distinct(ax.S, ax.R_out) + ax.R_in) + 8 * ax.R_out,
        link_in_bytes=row * arriving,
        link_out_bytes=row * leaving,
    )


def least_work(ax: Axes) -> Cost:
    """The cost, with each row multicast by a switch to all that ask for it."""
    base, foreign = cost(ax), ax.R_out - requests_of(ax)[ax.r][ax.r]
    leaving = ax.itemsize * prod(ax.ints("row")) * distinct(ax.S, foreign)
    return with_link(base, base.link_in_bytes, leaving)


MODES = {"requests": None, "seeds": None, "group": None}

PROBLEM = Problem(
    name="GNNFeatureExchange",
    upstream="65_gnn_feature_exchange_all2all",
    category="graph_parallel",
    origin="DGL GraphBolt, cooperative minibatching (CooperativeConv forward)",
    summary="Each rank picks the feature rows that other ranks asked for and sends them by an uneven all-to-all whose "
    "chunk lists are ordered by distance from the own rank.",
    weaknesses=(
        "All counts are equal on all ranks, peers and trials: uneven or empty chunks and unequal S never occur.",
    ),
    tags=("all_to_all", "gather_scatter", "ragged", "graph"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    # rows: mean number of rows that a rank sends, over all peers; S: seeds of a rank.
    sizes={
        "tiny": {"rows": 18, "row": (16,), "S": 24, "ragged": True, **MODES},
        "published": {"rows": 1024, "row": (128,), "S": 768, "ragged": False, **MODES},
        "large": {"rows": 262144, "row": (128,), "S": 196608, "ragged": True, **MODES},
    },
    args=(
        Tensor("local_features", "features_shape", about="features of this rank's S seeds; S may differ by rank"),
        Tensor("seed_inverse_ids", ("R_out",), dtype="int64", about="row of local_features for every row to be sent"),
        Scalar("counts_sent", "ints", about="entry i: rows asked of, so RECEIVED from, rank (r+i) mod W"),
        Scalar("counts_received", "ints", about="entry i: rows that are SENT to rank (r+i) mod W"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output("out", "out_shape", check=same_bits(), about="rows from rank r, then from (r+1) mod W, and so on"),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Each different row that a rank asks for is read, and comes in once. Of uniform ids the expectation counts.",
        work=least_work,
    ),
)
