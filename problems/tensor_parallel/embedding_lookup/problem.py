"""EmbeddingLookup: rows of a row-sharded table are fetched from their owners, grouped by owner."""

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
    with_link,
)
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the rows V of the whole table, and the number of ids of every rank and of this one."""
    lengths = ax.ints_or_none("lengths") or (ax.L,) * ax.W
    return {"V": ax.W * ax.Vs, "lengths": lengths, "L": lengths[ax.r]}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: the size's own, hot rows, one owner of all ids, ragged lists; the last two with an empty list."""
    law = ("uniform", "zipf", "one owner", "uniform")[draw.trial % 4]
    if draw.timed or draw.trial % 4 == 0:
        return {}
    if law == "zipf":
        return {"law": law}
    empty = draw.randrange(ax.W) if ax.W > 1 else None
    lengths = tuple(0 if rank == empty else draw.randint(1, ax.L) for rank in range(ax.W))
    return {"law": law, "lengths": lengths}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every row gives the result, and ids of the trial's law."""
    import torch

    ax, law = make.ax, make.ax.text("law")
    if law == "one owner":
        first = make.shared.randint(0, ax.W, 1).item() * ax.Vs
        ids = first + make.integers("indices", 0, ax.Vs)
    elif law == "zipf":
        # The k-th most popular row has probability ~ 1/k; popularity is common to the ranks.
        popularity = make.shared.permutation(ax.V)
        mass = torch.arange(1, ax.V + 1, device=make.device).reciprocal().cumsum(0)
        ids = popularity[torch.searchsorted(mass, make.rand(ax.L) * mass[-1]).clamp(max=ax.V - 1)]
    else:
        ids = make.integers("indices", 0, ax.V)
    return ids, make.bits("local_shard")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """A normal table, drawn first, and uniform ids."""
    stream = make.seeded(42 + 10_000 + make.rank + 1_000_003 * make.trial)
    local_shard = stream.normal("local_shard")
    return stream.integers("indices", 0, make.ax.V), local_shard


def distinct(rows: int, ids: int, V: int) -> float:
    """Expected number of different ones of `rows` rows that `ids` uniform ids among V rows name."""
    return rows * (1 - (1 - 1 / V) ** ids)


def cost(ax: Axes) -> Cost:
    """Each distinct row that a rank asks for is read once and crosses the link once.

    Of uniform ids, the expectation: over many trials no kernel moves fewer. Of other laws the output alone is certain.
    Owners' ids cost nothing: rows can be pulled.
    """
    lengths = ax.ints("lengths")
    row = ax.E * ax.itemsize
    own = 8 * ax.L + ax.L * row
    if ax.text("law") != "uniform":
        return Cost(memory_bytes=own)
    others = [length for rank, length in enumerate(lengths) if rank != ax.r]
    return Cost(
        memory_bytes=own + distinct(ax.Vs, sum(lengths), ax.V) * row,
        link_in_bytes=distinct(ax.V - ax.Vs, ax.L, ax.V) * row,
        link_out_bytes=sum(distinct(ax.Vs, length, ax.V) for length in others) * row,
    )


def least_work(ax: Axes) -> Cost:
    """The cost, with each row multicast by a switch to all that ask for it."""
    base, others = cost(ax), sum(ax.ints("lengths")) - ax.L
    if ax.text("law") != "uniform":
        return base
    return with_link(base, base.link_in_bytes, distinct(ax.Vs, others, ax.V) * ax.E * ax.itemsize)


PROBLEM = Problem(
    name="EmbeddingLookup",
    upstream="10_embedding_lookup",
    category="tensor_parallel",
    origin="row-wise sharded embedding lookup by all-to-all, as in TorchRec / DLRM",
    summary="An embedding table is cut by rows over the ranks; each rank asks for the rows of its own list of ids and "
    "gets them from their owners, grouped by owner.",
    no_capture_because="How many rows go to each rank depends on the indices, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "gather_scatter", "ragged", "recommender"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    # lengths None: L ids on every rank. law: how ids are drawn, "uniform", "zipf" or "one owner".
    sizes={
        "tiny": {"Vs": 32, "E": 64, "L": 40, "lengths": None, "law": "uniform"},
        "published": {"Vs": 1024, "E": 1024, "L": 1024, "lengths": None, "law": "uniform"},
        "large": {"Vs": 65536, "E": 2048, "L": 16384, "lengths": None, "law": "uniform"},
    },
    args=(
        Tensor("indices", ("L",), dtype="int64", about="global row ids in [0, W*Vs); L may differ by rank"),
        Tensor("local_shard", ("Vs", "E"), about="rows r*Vs .. (r+1)*Vs-1 of the table"),
    ),
    outputs=(
        Output(
            "out",
            ("L", "E"),
            check=same_bits(),
            about="rows of `indices`, stably grouped by owner, ascending; not permuted back",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Each different row that a rank asks for is read, and comes in once. Of uniform ids the expectation counts, "
        "of other laws nothing.",
        work=least_work,
    ),
)
