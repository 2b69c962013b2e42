"""MoEAllToAll: ragged pieces of rows, piece d of every rank goes to rank d."""

from __future__ import annotations

from math import exp
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
)
from pkb_gym.engine.problem.rules import same_bits
from pkb_gym.problems.expert_parallel.routing import Ints, even_pieces, interleaved, ragged_rows

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the split sizes, and the rows T and R that this rank sends and receives; even pieces if none are drawn."""
    group = ax.group_ranks("group")
    place = group.index(ax.r)
    even = ax["pieces"] is None
    pieces = (even_pieces(ax.replace(G=len(group)), "T"),) * ax.W if even else ax.int_lists("pieces")
    sent, received = pieces[ax.r], tuple(pieces[rank][place] for rank in group)
    explicit = ax.flag("explicit")
    return {
        "T": sum(sent),
        "R": sum(received),
        "kept": sent[place],
        "G": len(group),
        "input_split_sizes": sent if explicit else None,
        "output_split_sizes": received if explicit else None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks cycle through skewed pieces, no lists, ragged rows with an idle sender or receiver, and subgroups.

    On the last of six trials every second rank has even pieces, as in timing at some sizes, and others have not: no
    rank can infer the others' pieces from its own.
    """
    if draw.timed:
        return {"pieces": skewed_pieces((ax.T,) * ax.W, ax.W, draw) if ax.flag("ragged") else None}
    trial = draw.trial % 6
    parts = 2 if trial in (2, 3) and ax.W > 1 else 1
    group = interleaved(ax.W, parts) if parts > 1 else ax["group"]
    if trial == 3:
        return {"group": group, "explicit": False}
    rows = ragged_rows(ax.W, ax.T, draw) if trial in (1, 2) else (ax.T,) * ax.W
    pieces = skewed_pieces(rows, ax.W // parts, draw)
    if trial == 5 and ax.W > 1:
        pieces = tuple(
            tuple(ax.T // ax.W if source % 2 or d % 2 else n for d, n in enumerate(piece))
            for source, piece in enumerate(pieces)
        )
    if trial == 4 and ax.W > 1:
        idle = draw.randrange(ax.W)
        pieces = tuple(tuple(0 if d == idle else n for d, n in enumerate(piece)) for piece in pieces)
    return {"group": group, "pieces": pieces}


def skewed_pieces(rows: Ints, destinations: int, draw: Draw) -> tuple[Ints, ...]:
    """Each rank's rows, cut in proportion to softmax of normal scores.

    One destination gets twice its share of everybody; where there are three or more, every other rank has an empty
    piece.
    """
    heavy = draw.randrange(destinations)
    pieces = []
    for source, count in enumerate(rows):
        weights = [exp(draw.gauss(0, 1)) * (2 if d == heavy else 1) for d in range(destinations)]
        if destinations > 2 and source % 2 == 0:
            weights[draw.randrange(destinations)] = 0.0
        cuts = [round(count * sum(weights[:d]) / sum(weights)) for d in range(destinations + 1)]
        pieces.append(tuple(cuts[d + 1] - cuts[d] for d in range(destinations)))
    return tuple(pieces)


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("local_tensor"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 27_000 + make.rank + 1_000_003 * make.trial).normal("local_tensor"),)


def cost(ax: Axes) -> Cost:
    """Rows are read and written once, and cross the link once unless they stay; a group of one hands its input back."""
    row = ax.H * ax.itemsize
    return Cost(
        memory_bytes=(ax.T + ax.R) * row if ax.G > 1 else 0,
        link_in_bytes=(ax.R - ax.kept) * row,
        link_out_bytes=(ax.T - ax.kept) * row,
    )


MODES = {"pieces": None, "explicit": True, "group": None}

PROBLEM = Problem(
    name="MoEAllToAll",
    upstream="27_moe_all2all_primitive",
    category="expert_parallel",
    origin="VeOmni, the row exchange of its expert-parallel layer; as in Megatron-LM and DeepSpeed",
    summary="Each rank cuts its rows into consecutive pieces of given sizes and sends piece d to rank d; every rank "
    "ends with the pieces meant for it, in order of sender.",
    weaknesses=("Every split is equal: a fixed-size exchange that ignores both lists passes.",),
    tags=("all_to_all", "ragged", "moe"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"T": 64, "H": 32, "ragged": True, **MODES},
        "published": {"T": 1024, "H": 1024, "ragged": False, **MODES},
        "large": {"T": 16384, "H": 4096, "ragged": True, **MODES},
    },
    args=(
        Tensor("local_tensor", ("T", "H"), about="rows in order of destination; T may differ by rank"),
        Scalar("input_split_sizes", "ints", optional=True, about="rows for each rank; None: T / W each"),
        Scalar("output_split_sizes", "ints", optional=True, about="rows from each rank; None: T / W each"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(Output("out", ("R", "H"), check=same_bits(), about="the pieces for this rank, in order of sender"),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every row for another rank goes out once, and every foreign one comes in once. A group of one hands its "
        "input back.",
    ),
)
