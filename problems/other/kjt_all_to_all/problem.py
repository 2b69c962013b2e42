"""KJTAllToAll: ragged id lists go from the ranks that hold their samples to the ranks that own their features."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

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
    Stream,
    Tensor,
    Trials,
)

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]"
Splits: TypeAlias = tuple[int, ...]

MAX_UNEQUAL = 1024
"""Larger batches are unequal on few trials, as bags of unequal batches may be regrouped one by one on the host."""


def default_splits(ax: Axes) -> Splits:
    """Features spread evenly over the ranks; 1, 2, 3, 1, 2, 3, ... of them where no number is given."""
    features = ax.number_or_none("features")
    if features is None:
        return tuple(1 + d % 3 for d in range(ax.W))
    return tuple(features // ax.W + (d < features % ax.W) for d in range(ax.W))


def splits_of(ax: Axes) -> Splits:
    """Features of each rank, as drawn or by default."""
    return ax.ints("key_splits") if "key_splits" in ax else default_splits(ax)


def strides_of(ax: Axes) -> tuple[Splits, ...]:
    """Samples of each feature on each rank, as drawn, or B of all."""
    return ax.int_lists("strides") if "strides" in ax else ((ax.B,) * sum(splits_of(ax)),) * ax.W


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds features, samples and ids of this rank, and what it receives.

    How many ids a feature has is decided by its contents; axes hold each rank's total, and its mean for one feature.
    """
    if ax.W % ax.stagger:
        raise SizeError(f"axis stagger={ax.stagger} must divide W={ax.W}")
    rank, low, high, splits, strides = ax.r, ax.low, ax.high, splits_of(ax), strides_of(ax)
    first = sum(splits[:rank])
    bags = [sum(mine) for mine in strides]
    ids = ax.ints("ids_by_rank") if "ids_by_rank" in ax else tuple((low + high) * count // 2 for count in bags)
    bags_from = [sum(mine[first : first + splits[rank]]) for mine in strides]
    ids_from = [ids[q] * count / bags[q] if count else 0.0 for q, count in enumerate(bags_from)]
    variable = ax.flag("variable")
    return {
        "key_splits": splits,
        "k": splits[rank],
        "batch_size": ax.B if variable else strides[rank][0],
        "stride_per_key": strides[rank] if variable else None,
        "fixed": not variable,
        "bags": bags[rank],
        "ids": ids[rank],
        "bags_in": sum(bags_from),
        "bags_kept": bags_from[rank],
        "mean_ids_in": sum(ids_from),
        "mean_ids_kept": ids_from[rank],
        "most_ids_in": min(sum(ids), high * sum(bags_from)),
    }


def vary_totals(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Draws each rank's number of ids, distributed as the sum of its uniform bag lengths."""
    low, high, totals = ax.low, ax.high, []
    for count in map(sum, strides_of(ax)):
        deviation = (count * ((high - low + 1) ** 2 - 1) / 12) ** 0.5
        total = round(draw.gauss(count * (low + high) / 2, deviation))
        totals.append(min(max(total, low * count), high * count))
    return {"ids_by_rank": tuple(totals)}


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks have empty bags and cycle through unequal batches, strides per feature, weights, stagger, no features.

    On the last of seven about half of the ranks have the batch of the size and all else is as in timing, so that no
    rank can infer the others' batches from its own.
    """
    if draw.timed:
        return vary_totals(ax, draw)
    staggered = 2 if ax.W % 2 == 0 else 1
    modes: tuple[dict[str, AxisValue], ...] = (
        {"weighted": True, "stagger": staggered},
        {"strides": "batches", "key_splits": "one without"},
        {"strides": "features", "key_splits": "one without", "weighted": True, "stagger": staggered},
        {"strides": "batches", "weighted": True, "stagger": staggered},
        {"strides": "features"},
        {},
        {"strides": "some batches"},
    )
    mode = modes[draw.trial % len(modes)]
    splits = default_splits(ax)
    if "key_splits" in mode and ax.W > 1:
        splits = with_an_empty_rank(splits, draw)
    count = sum(splits)
    strides: tuple[Splits, ...] = ((ax.B,) * count,) * ax.W
    if mode.get("strides") == "batches" and ax.B <= MAX_UNEQUAL:
        strides = tuple((size,) * count for size in unequal_batches(ax.B, ax.W, draw))
    elif mode.get("strides") == "some batches":
        sizes = [ax.B] * ax.W
        for rank in draw.sample(range(ax.W), ax.W // 2):
            sizes[rank] = draw.randrange(ax.B)
        strides = tuple((size,) * count for size in sizes)
    elif mode.get("strides") == "features":
        strides = tuple(tuple(draw.randint(0, ax.B) for _ in range(count)) for _ in range(ax.W))
    changes = mode | {
        "key_splits": splits,
        "strides": strides,
        "variable": mode.get("strides") == "features",
        "low": 0,
        "pg": (tuple(range(ax.W)),) if draw.trial % len(modes) % 2 else None,
    }
    return changes | vary_totals(ax.replace(**changes), draw)


def with_an_empty_rank(splits: Splits, draw: Draw) -> Splits:
    """One rank hands its features to the next."""
    empty = draw.randrange(len(splits))
    changed = list(splits)
    changed[(empty + 1) % len(splits)] += changed[empty]
    changed[empty] = 0
    return tuple(changed)


def unequal_batches(batch: int, world_size: int, draw: Draw) -> Splits:
    """A batch size per rank; one of several is 0 now and then."""
    batches = [draw.randint(max(1, batch // 2), batch + batch // 2) for _ in range(world_size)]
    if world_size > 1 and draw.random() < 0.5:
        batches[draw.randrange(world_size)] = 0
    return tuple(batches)


def bag_lengths(stream: Stream, make: InputMaker) -> torch.Tensor:
    """Uniform whole numbers in low .. high, some of them moved by 1 until their sum is the number of ids."""
    low, high = make.ax.low, make.ax.high
    lengths = stream.randint(low, high + 1, make.ax.bags)
    while missing := make.ax.ids - int(lengths.sum()):
        movable = (lengths < high if missing > 0 else lengths > low).nonzero().flatten()
        chosen = movable[stream.permutation(len(movable))[: abs(missing)]]
        lengths[chosen] += 1 if missing > 0 else -1
    return lengths


def robust_inputs(make: InputMaker) -> Inputs:
    """Bags, ids and weights that differ by rank and trial; ids have all 64 bits, as hashes have."""
    weights = make.normal("weights") if make.ax.flag("weighted") else None
    return bag_lengths(make, make), make.bits("values"), weights


def published_inputs(make: InputMaker) -> Inputs:
    """Bags and ids from the published seed, no weights."""
    stream = make.seeded(42 + 70_000 + make.rank + 1_000_003 * make.trial)
    return bag_lengths(stream, make), stream.integers("values", 0, 1_000_000), None


def cost(ax: Axes) -> Cost:
    """Every bag is read and written once, and crosses the link once unless it stays.

    Features hold their mean share of the source's ids; over many trials no kernel moves fewer.
    """
    per_bag, per_id = 8, 8 + (ax.itemsize if ax.flag("weighted") else 0)
    own = ax.bags * per_bag + ax.ids * per_id
    received = ax.bags_in * per_bag + ax.real("mean_ids_in") * per_id
    kept = ax.bags_kept * per_bag + ax.real("mean_ids_kept") * per_id
    return Cost(memory_bytes=own + received, link_in_bytes=received - kept, link_out_bytes=own - kept)


PROBLEM = Problem(
    name="KJTAllToAll",
    upstream="70_torchrec_kjt_all2all",
    category="other",
    origin="TorchRec, KJTAllToAll: input redistribution of KeyedJaggedTensor for model-parallel embedding tables",
    summary="Each rank has a batch of ragged id lists for all sparse features; the exchange gives every rank the lists "
    "of all ranks' batches for just the features it owns, regrouped feature by feature.",
    weaknesses=(
        "Unequal batches, weights, stride_per_key, stagger, empty bags and ranks without features never occur, and "
        "whole numbers are compared with 1 % tolerance.",
    ),
    no_capture_because="How many ids go to each rank depends on the bag lengths, and the exchange needs "
    "those counts on the host.",
    tags=("all_to_all", "ragged", "recommender"),
    dtypes=("float32", "float64", "float16", "bfloat16"),
    # features None: 1, 2, 3, 1, 2, 3, ... per rank. Bag lengths are low .. high.
    sizes={
        "tiny": {
            "features": None,
            "B": 8,
            "low": 0,
            "high": 5,
            "weighted": False,
            "variable": False,
            "stagger": 1,
            "pg": None,
        },
        "published": {
            "features": None,
            "B": 512,
            "low": 5,
            "high": 20,
            "weighted": False,
            "variable": False,
            "stagger": 1,
            "pg": None,
        },
        "large": {
            "features": 26,
            "B": 16384,
            "low": 1,
            "high": 20,
            "weighted": False,
            "variable": False,
            "stagger": 1,
            "pg": None,
        },
    },
    args=(
        Tensor("lengths", ("bags",), dtype="int64", about="bag lengths, feature-major"),
        Tensor("values", ("ids",), dtype="int64", about="ids of the bags, in the same order"),
        Scalar("key_splits", "ints", about="number of features owned by each rank, 0 allowed"),
        Scalar("batch_size", "int", about="samples on this rank; ignored if stride_per_key is given"),
        Group("pg", about="None means WORLD"),
        Tensor("weights", ("ids",), optional="weighted", about="one weight per id; None on all ranks or on none"),
        Scalar("stride_per_key", "ints", optional=True, about="samples of each feature on this rank, if they differ"),
        Scalar("stagger", "int", about="number of node blocks in the order of source ranks"),
    ),
    outputs=(
        Output(
            "lengths_out",
            ("?",),
            dtype="int64",
            capacity="bags_in",
            returned_as="lengths",
            about="bag lengths of the owned features: by feature, then staggered rank, then sample",
        ),
        Output(
            "values_out", ("?",), dtype="int64", capacity="most_ids_in", returned_as="values", about="their contents"
        ),
        Output("weights_out", ("?",), capacity="most_ids_in", when="weighted", returned_as="weights", about="likewise"),
        Output("stride", (), dtype="int64", when="fixed", about="samples over all ranks"),
        Output("stride_per_rank", ("W",), dtype="int64", when="fixed", about="samples of each rank, in rank order"),
        Output(
            "stride_per_key_per_rank",
            ("k", "W"),
            dtype="int64",
            when="variable",
            about="samples of each owned feature and rank, columns in staggered order",
        ),
    ),
    returns="dict",
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs, vary_totals),
    cost=cost,
    least_work=LeastWork(
        "Every bag is read and written once. What crosses the link is less, as ids may be coded.",
        of=("memory",),
    ),
)
