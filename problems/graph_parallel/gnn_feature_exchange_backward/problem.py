"""GNNFeatureExchangeBackward: gradient rows travel back to the owners of their seeds and are added up there."""

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
from pkb_gym.engine.problem.rules import DTYPE_SCALE, UNIT_ROUNDOFF, CheckContext, within
from pkb_gym.problems.graph_parallel.exchange import (
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
    """Adds the count lists, the seeds S of this rank, and the rows that leave and arrive."""
    seeds, lists = ax.ints_or_none("seeds"), count_lists(requests_of(ax), ax.r)
    R_out, R_in = sum(lists["counts_sent"]), sum(lists["counts_received"])
    return {**lists, "S": seeds[ax.r] if seeds else ax.S, "R_out": R_out, "R_in": R_in}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks have uneven and empty chunks, and S by rank."""
    if draw.timed:
        return {"requests": draw_requests(ax, draw, [])} if ax.flag("ragged") else {}
    kept = as_timed(ax, draw)
    requests, seeds = draw_requests(ax, draw, kept), draw_sizes(ax, draw, kept)
    return {"requests": requests, "seeds": seeds, "group": world_group(ax, draw)}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal gradients; skewed seeds (the k-th has density ~ k^(-2/3)): some get many rows and some none."""
    import torch

    S = make.ax.S
    place = (make.rand(make.ax.R_in) ** 3 * S).to(torch.int64).clamp(max=S - 1)
    return make.normal("grad_output"), make.permutation(S)[place]


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal gradients, then uniform ids, from the published seed."""
    stream = make.seeded(42 + 66_000 + make.rank + 1_000_003 * make.trial)
    gradients = stream.normal("grad_output")
    return gradients, stream.integers("seed_inverse_ids", 0, make.ax.S)


def row_sums(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums in float64, and how far a sum of k terms in any order may be off; not at all where k = 0."""
    import torch

    ax, W = context.ax, context.world_size
    ids = context.tensor("seed_inverse_ids")
    requests = requests_of(ax)
    arriving = []
    for i in range(W):
        q, j = (ax.r + i) % W, (W - i) % W
        sent = count_lists(requests, q)["counts_sent"]
        begin = sum(sent[:j])
        arriving.append(context.tensor("grad_output", q)[begin : begin + sent[j]])
    G = torch.cat(arriving).double()
    total = G.new_zeros(ax.S, ax.D).index_add_(0, ids, G)
    terms = torch.bincount(ids, minlength=ax.S).double().unsqueeze(1)
    # 1e-5 for float32; k roundings add to it where very many terms meet.
    unit = 1e-5 * DTYPE_SCALE[ax.dtype] / DTYPE_SCALE["float32"]
    bound = unit * (total.abs() + terms.sqrt()) + UNIT_ROUNDOFF[ax.dtype] * terms
    return total, torch.where(terms > 0, bound, 0.0)


def cost(ax: Axes) -> Cost:
    """Every row crosses the link, as its sender does not know which rows belong together; all is read or written once.

    The first row of a seed needs no addition.
    """
    row = ax.itemsize * ax.D
    sent, received = ax.ints("counts_sent"), ax.ints("counts_received")
    return Cost(
        vector_flops=max(0, ax.R_in - ax.S) * ax.D,
        memory_bytes=row * (ax.R_out + ax.S) + 8 * ax.R_in,
        link_in_bytes=row * (ax.R_in - received[0]),
        link_out_bytes=row * (ax.R_out - sent[0]),
    )


def least_work(ax: Axes) -> Cost:
    """Over the link a row for each seed that is expected to be named: with a probability of 1 / (3 S) at least."""
    foreign = ax.R_in - ax.ints("counts_received")[0]
    named = ax.S * (1 - (1 - 1 / (3 * ax.S)) ** foreign) if ax.S else 0.0
    return with_link(cost(ax), ax.itemsize * ax.D * named, 0)


MODES = {"requests": None, "seeds": None, "group": None}

PROBLEM = Problem(
    name="GNNFeatureExchangeBackward",
    upstream="66_gnn_feature_exchange_all2all_backward",
    category="graph_parallel",
    origin="DGL GraphBolt, cooperative minibatching (CooperativeConv backward)",
    summary="The gradient of the feature exchange: gradient rows travel back to the ranks that own the seeds, where "
    "rows of the same seed are added up.",
    weaknesses=(
        "All counts are equal on all ranks and trials: uneven or empty chunks and a seed_size by rank never occur.",
    ),
    tags=("all_to_all", "scatter_add", "ragged", "graph", "backward"),
    dtypes=("float32", "float64"),
    # rows: mean number of rows that a rank sends, over all peers; S: seeds of a rank.
    sizes={
        "tiny": {"rows": 18, "D": 16, "S": 16, "ragged": True, **MODES},
        "published": {"rows": 1024, "D": 128, "S": 512, "ragged": False, **MODES},
        "large": {"rows": 262144, "D": 128, "S": 131072, "ragged": True, **MODES},
    },
    args=(
        Tensor("grad_output", ("R_out", "D"), about="gradients of the rows this rank had received"),
        Tensor("seed_inverse_ids", ("R_in",), dtype="int64", about="seed of each row that arrives, in 0 .. S-1"),
        Scalar("seed_size", "int", axis="S", about="rows of the result; may differ by rank"),
        Scalar("counts_sent", "ints", about="entry i: rows SENT to rank (r+i) mod W"),
        Scalar("counts_received", "ints", about="entry i: rows RECEIVED from rank (r+i) mod W"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        Output(
            "grad_seeds",
            ("S", "D"),
            check=within(
                row_sums, "float64 sum of k rows, within 1e-5 (|sum| + sqrt(k)) for float32; exact where k = 0"
            ),
            about="sum of the rows of each seed, 0 where there are none",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every row is read. Each seed that foreign rows name depends on them; a switch, or the sender, may add them "
        "first, so that one row comes in for a seed.",
        work=least_work,
    ),
)
