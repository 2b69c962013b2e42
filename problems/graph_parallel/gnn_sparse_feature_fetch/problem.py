"""GNNSparseFeatureFetch: rows of a table cut by ranges over the ranks are fetched and projected by the requester."""

from __future__ import annotations

from math import gcd, lcm
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
    close,
    with_link,
)

if TYPE_CHECKING:
    import torch

Ints = tuple[int, ...]


def rows_of(T: int, S: int, rank: int) -> int:
    """Rows of a rank's shard; trailing ranks may have few or none."""
    return max(0, min(S, T - rank * S))


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds T and S, this rank's rows, and every rank's number of queries and this one's.

    The table has T rows, or `most_rows` times W if that is less.
    """
    T = ax.T if ax["most_rows"] is None else min(ax.T, ax.most_rows * ax.W)
    S = -(-T // ax.W)
    queries = ax.ints_or_none("queries") or tuple(ax.Q + ax.more_by_rank * rank for rank in range(ax.W))
    return {"T": T, "S": S, "rows": rows_of(T, S, ax.r), "queries": queries, "Q": queries[ax.r]}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks have ids of several laws, unequal Q (0 on one rank), tables that W does not divide, and tiny ones."""
    if draw.timed:
        return {}
    laws = ("uniform", "power", "one owner", "power")
    T = min(ax.T, 1_000_000)
    T = max(1, ax.W - 1) if draw.trial % 6 == 5 else T - draw.randrange(min(T // 4, 4 * ax.W))
    queries = [draw.randint(ax.Q // 2, ax.Q) + rank for rank in range(ax.W)]
    if draw.trial % 2 and ax.W > 1:
        queries[draw.randrange(ax.W)] = 0
    return {
        "T": T,
        "law": laws[draw.trial % 4],
        "queries": tuple(queries),
        "group": (tuple(range(ax.W)),) if draw.trial % 2 else None,
    }


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normal tables and matrices; ids uniform, skewed towards a few popular ranges, or all of one owner."""
    import torch

    ax, law = make.ax, make.ax.text("law")
    if law == "one owner":
        owners = -(-ax.T // ax.S)
        owner = int(make.shared.randint(0, owners, 1))
        ids = make.integers("input_node_ids", owner * ax.S, owner * ax.S + rows_of(ax.T, ax.S, owner))
    elif law == "power":
        # Density ~ k^(-2/3) from a start that is common to the ranks: repeats, and owners of many and of few.
        distance = (make.rand(ax.Q).double() ** 3 * ax.T).to(torch.int64)
        ids = (make.shared.randint(0, ax.T, 1) + distance) % ax.T
    else:
        ids = make.integers("input_node_ids", 0, ax.T)
    return make.normal("local_embedding_shard"), ids, make.normal("proj_matrix")


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """A table that W divides, the same Q everywhere, and the formula's ids."""
    return {"T": -(-ax.T // ax.W) * ax.W, "law": "formula", "queries": (ax.Q,) * ax.W}


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Standard normal table and then matrix from the published seed; ids are a formula."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 68_000 + make.rank + 1_000_003 * make.trial)
    j = torch.arange(ax.Q, device=make.device)
    ids = (j + make.rank) % ax.W * ax.S + (7 * j + make.rank) % ax.S
    return stream.normal("local_embedding_shard"), ids, stream.normal("proj_matrix")


def distinct(rows: int, ids: int, T: int) -> float:
    """Expected number of different ones of `rows` rows that `ids` uniform ids among T rows name."""
    return rows * (1 - (1 - 1 / T) ** ids)


def cost(ax: Axes) -> Cost:
    """Each distinct row that a rank asks for is read once and crosses the link once; rows can be pulled.

    Of uniform ids, the expectation: over many trials no kernel moves fewer. Of laws with more repeats only the
    requester's own traffic is certain, and one projection.
    """
    row, out, law = ax.D * ax.itemsize, ax.O * ax.itemsize, ax.text("law")
    own = (8 + out) * ax.Q + (ax.D * out if ax.Q else 0)
    if law == "formula":
        # Owner and row of query j repeat with periods W and S / gcd(7, S).
        share = min(ax.Q, lcm(ax.W, ax.S // gcd(7, ax.S))) / ax.W
        here, inward, outward = share * ax.W, share * (ax.W - 1), share * (ax.W - 1)
    elif law == "uniform":
        queries = ax.ints("queries")
        here = distinct(ax.rows, sum(queries), ax.T)
        inward = distinct(ax.T - ax.rows, ax.Q, ax.T)
        outward = sum(distinct(ax.rows, count, ax.T) for rank, count in enumerate(queries) if rank != ax.r)
    else:
        here, inward, outward = 0, 0, 0
    different = distinct(ax.T, ax.Q, ax.T) if law == "uniform" else min(1, ax.Q)
    return Cost(
        matrix_flops=2 * (ax.Q if law == "formula" else different) * ax.D * ax.O,
        memory_bytes=own + here * row,
        link_in_bytes=inward * row,
        link_out_bytes=outward * row,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link rows, or their projections where these are shorter; a switch may multicast a row."""
    base, share = cost(ax), min(1.0, ax.O / ax.D)
    return with_link(base, share * base.link_in_bytes, 0)


MODES = {"law": "uniform", "queries": None, "group": None}

PROBLEM = Problem(
    name="GNNSparseFeatureFetch",
    upstream="68_gnn_sparse_feature_fetch_projection",
    category="graph_parallel",
    origin="the sparse node embeddings of GraphStorm, DistDGL and WholeGraph, in the size of ogbn-papers100M",
    summary="Each rank looks up embedding rows of any nodes in a table cut into contiguous ranges over the ranks, "
    "then multiplies the fetched rows with its own projection matrix.",
    weaknesses=("Ids are constant over trials, balanced and distinct: hard-coded equal splits or addresses pass.",),
    no_capture_because="How many rows go to each rank depends on the node ids, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "gather_scatter", "gemm", "ragged", "graph"),
    dtypes=("bfloat16", "float16", "float32"),
    # most_rows: bound on the rows of a shard. more_by_rank: rank r has Q + r * more_by_rank queries.
    sizes={
        "tiny": {"T": 250, "most_rows": None, "D": 64, "O": 48, "Q": 40, "more_by_rank": 1, **MODES},
        "published": {
            "T": 111_000_000,
            "most_rows": None,
            "D": 256,
            "O": 256,
            "Q": 20_000,
            "more_by_rank": 0,
            **MODES,
        },
        "large": {
            "T": 111_000_000,
            "most_rows": 27_750_000,
            "D": 256,
            "O": 256,
            "Q": 200_000,
            "more_by_rank": 0,
            **MODES,
        },
    },
    args=(
        Tensor(
            "local_embedding_shard",
            ("rows", "D"),
            resident="a shard of the published table has 14 GB and more, of which a call reads a few rows",
            about="global rows r*S .. min((r+1)*S, T)-1 of the table, S = ceil(T/W)",
        ),
        Tensor(
            "input_node_ids", ("Q",), dtype="int64", about="global ids in [0, T), repeats allowed; Q differs by rank"
        ),
        Tensor("proj_matrix", ("D", "O"), about="this rank's own matrix, different on every rank"),
        Scalar("num_total_nodes", "int", axis="T", about="rows of the whole table"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "out",
            ("Q", "O"),
            check=close(rtol=1e-2, atol=1e-2, atol_rms=2e-3),
            about="row j is the table's row input_node_ids[j] times this rank's proj_matrix",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Each different row that is asked for is read and projected, and crosses the link once, before or after. Of "
        "uniform ids the expectation counts, of other laws nothing.",
        work=least_work,
    ),
)
