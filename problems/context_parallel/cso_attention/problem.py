"""CSOAttention: attention of independent ranges of queries over a sequence-sharded input, by heads."""

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
    Tensor,
    Trials,
    with_link,
)
from pkb_gym.engine.problem.row_rules import close_by_rows
from pkb_gym.engine.problem.rules import all_of, norm_close

if TYPE_CHECKING:
    import torch

Ranges: TypeAlias = tuple[tuple[int, int], ...]


def resolved(ax: Axes) -> dict[str, AxisValue]:
    """Heads, keys per range and slots per range and rank, the defaults where they are None.

    Published are 24 heads and 12150 keys up to 4 ranks, 48 and 21600 above.
    """
    few = ax.W <= 4
    heads = (24 if few else 48) if ax["Hq"] is None else ax.Hq
    if ax["m"] is not None:
        m = ax.m
        c = ax.W * m - ax.padding if ax["c"] is None else ax.c
    else:
        c = (12150 if few else 21600) if ax["c"] is None else ax.c
        m = -(-c // ax.W)
    return {"Hq": heads, "c": c, "m": m}


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds tokens per rank, query heads per rank, KV heads per rank, the ranges of keys, and the default group.

    Raises:
        SizeError: heads that cannot be shared out, more keys than slots, or ranges of keys that do not exist.
    """
    sizes = resolved(ax)
    ax = ax.replace(**sizes)
    slots, keys = ax.W * ax.m, ax.R * ax.c
    if ax.Hk % ax.W and ax.W % ax.Hk:
        raise SizeError(f"axis Hk={ax.Hk} must be a multiple or a divisor of W={ax.W}")
    ax.divide("Hq", by="Hk")
    hq = ax.divide("Hq", by="W")
    if not 0 < ax.c <= slots:
        raise SizeError(f"axis c={ax.c} must be in 1 .. W*m={slots}")
    ranges = aligned_ranges(ax.R, ax.c) if ax["ranges"] is None else ax.int_lists("ranges")
    if len(ranges) != ax.R or not all(0 <= first < end <= keys for first, end in ranges):
        raise SizeError(f"axis ranges={ranges!r} must be R={ax.R} pairs first < end, within 0 .. R*c={keys}")
    clip, names = ax.text("clip"), {"given": ax.c, "none": None, "zero": 0}
    if clip not in names or (clip != "given" and ax.c != slots):
        raise SizeError(f"axis clip={clip!r} must be 'given', or with c={ax.c} equal to W*m={slots} 'none', 'zero'")
    return sizes | {
        "n": ax.R * ax.m,
        "hq": hq,
        "hk": max(1, ax.Hk // ax.W),
        "D2": 2 * ax.D,
        "ranges": ranges,
        "clip_token_nums": names[clip],
        "group": None,
    }


def aligned_ranges(R: int, c: int) -> Ranges:
    """Each range of queries attends to its own range of keys."""
    return tuple((i * c, (i + 1) * c) for i in range(R))


def draw_ranges(R: int, c: int, draw: Draw) -> Ranges:
    """Each range of queries reaches back over a drawn number of earlier ranges, from and to somewhere inside them."""
    ranges = []
    for i in range(R):
        first = (i - draw.randint(0, i)) * c + draw.randint(0, c // 3)
        ranges.append((first, (i + 1) * c - draw.randint(0, c // 4)))
    return tuple(ranges)


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks draw ranges of keys and cycle through padding on one rank or more, few KV heads, one to R ranges.

    Slots per range stay those of the size, so that R alone changes the number of tokens. On one trial in six all
    but the ranges is as in timing, so that nothing else shows that they have to be read.
    """
    if draw.timed:
        return {}
    sizes = resolved(ax)
    ax = ax.replace(**sizes)
    slots = ax.W * ax.m
    little, much = max(1, slots - draw.randint(1, ax.m)), max(1, slots - draw.randint(ax.m, max(ax.m, slots // 2)))
    modes: tuple[dict[str, AxisValue], ...] = (
        {"c": ax.c},
        {"c": little, "Hk": max(1, ax.W // 2)},
        {"c": slots, "clip": "none", "R": 2},
        {"c": much, "Hk": 1, "R": 1},
        {"c": little, "R": 3},
        {"c": slots, "clip": "zero", "Hk": 1},
    )
    changes = sizes | {"clip": "given"} | modes[draw.trial % len(modes)]
    ax = ax.replace(**changes)
    return changes | {"ranges": draw_ranges(ax.R, ax.c, draw)}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Range i of the queries attends to range i of the keys, and KV heads are not fewer than ranks."""
    return {"ranges": None, "Hk": max(ax.Hk, ax.W)}


def ranges_tensor(make: InputMaker) -> torch.Tensor:
    """The axis as a tensor."""
    import torch

    return torch.tensor(make.ax["ranges"], dtype=torch.int64, device=make.device)


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries of std 4, so that few keys dominate each, and padding of large keys and values, which spoils any sum."""
    import torch

    ax = make.ax
    query, key_value = make.normal("query", std=4), make.normal("key_value")
    slots = ax.r * ax.m + torch.arange(ax.n, device=make.device) % ax.m
    key_value[slots >= ax.c] *= 8
    return query, key_value, ranges_tensor(make)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Standard normal queries, keys and values, from one stream whose seed differs by rank and trial."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 77_000 + make.rank + 1_000_003 * make.trial)
    query = stream.normal("query")
    key, value = (stream.randn(ax.n, ax.Hk, ax.D) for _ in range(2))
    return query, torch.cat([key, value], dim=-1).to(make.dtype), ranges_tensor(make)


def keys_used(ax: Axes) -> list[int]:
    """The number of rows of each rank that are keys of at least one range of queries."""
    merged: list[list[int]] = []
    for first, end in sorted(ax.int_lists("ranges")):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([first, end])
    used = [0] * ax.W
    for rank in range(ax.W):
        for i in range(ax.R):
            low, high = i * ax.c + rank * ax.m, i * ax.c + min((rank + 1) * ax.m, ax.c)
            used[rank] += sum(max(0, min(high, end) - max(low, first)) for first, end in merged)
    return used


def cost(ax: Axes) -> Cost:
    """Heads are exchanged, or, where that is cheaper, all keys and values gathered and queries left in place.

    Attention is shared evenly either way. Keys outside all ranges, padding among them, are not needed.
    """
    used = keys_used(ax)
    own, foreign = used[ax.r], sum(used) - used[ax.r]
    pairs = ax.W * ax.m * ax.hq * sum(end - first for first, end in ax.int_lists("ranges"))
    queries = ax.n * ax.Hq * ax.D
    share = (ax.W - 1) / ax.W
    copies = ax.W - 1 if ax.Hk >= ax.W else ax.Hk  # a switch that multicasts takes each KV head once
    heads_in = 2 * share * queries + foreign * ax.hk * ax.D2
    heads_out = 2 * share * queries + own * copies * ax.hk * ax.D2
    return Cost(
        matrix_flops=4 * pairs * ax.D,
        vector_flops=4 * pairs,
        memory_bytes=(2 * queries + own * ax.Hk * ax.D2) * ax.itemsize,
        link_in_bytes=min(heads_in, foreign * ax.Hk * ax.D2) * ax.itemsize,
        link_out_bytes=min(heads_out, own * ax.Hk * ax.D2) * ax.itemsize if ax.W > 1 else 0,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link keys and values, or results."""
    used = keys_used(ax)
    own, foreign = used[ax.r] * ax.Hk * ax.D2, (sum(used) - used[ax.r]) * ax.Hk * ax.D2
    results = ax.n * ax.Hq * ax.D
    return with_link(cost(ax), min(results, foreign) * ax.itemsize, min((ax.W - 1) * results, own) * ax.itemsize)


PROBLEM = Problem(
    name="CSOAttention",
    upstream="77_magi1_cso_async_attention",
    category="context_parallel",
    origin="MAGI-1 (SandAI), context-shuffle-overlap attention of the video diffusion transformer",
    summary="Attention in several independent query ranges over a sequence-sharded input; all-to-alls move heads to "
    "ranks and back, and the exchange of the next range overlaps the attention of the current one.",
    weaknesses=(
        "k_ranges is always the block diagonal: ignoring it passes.",
        "Random queries make the softmax nearly flat and outputs as small as the tolerance: wrong clipping passes.",
        "KV heads are never fewer than ranks, nor is there padding at W = 8: not repeating heads passes.",
    ),
    no_capture_because="The range of keys of each attention is read from k_ranges, which lies on the device.",
    tags=("all_to_all", "ulysses", "attention", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    # c None is W*m - padding, or where m is None too, as published; m None is ceil(c / W). ranges None is the block
    # diagonal. clip determines how c is handed over.
    sizes={
        "tiny": {
            "R": 4,
            "m": 8,
            "c": None,
            "padding": 2,
            "Hq": 8,
            "Hk": 2,
            "D": 16,
            "ranges": None,
            "clip": "given",
        },
        "published": {
            "R": 4,
            "m": None,
            "c": None,
            "padding": 0,
            "Hq": None,
            "Hk": 8,
            "D": 128,
            "ranges": None,
            "clip": "given",
        },
        "large": {
            "R": 4,
            "m": None,
            "c": 21600,
            "padding": 0,
            "Hq": 48,
            "Hk": 8,
            "D": 128,
            "ranges": None,
            "clip": "given",
        },
    },
    args=(
        Tensor("query", ("n", "Hq", "D"), about="row i*m + a of rank s is slot s*m + a of range i"),
        Tensor("key_value", ("n", "Hk", "D2"), about="key, then value; rows as in query"),
        Tensor("k_ranges", ("R", 2), dtype="int64", about="first and end of each range's keys; equal on all ranks"),
        Scalar("cp_shuffle_num", "int", axis="R", about="number of ranges"),
        Scalar("clip_token_nums", "int", optional=True, about="keys per range, c; None and 0 mean all W*m slots"),
        Group("group", about="None means all ranks"),
    ),
    # Two bfloat16 units and 20 % of the rms, half of it the row's; in norm correct variants differ by 0.003.
    outputs=(
        Output("out", ("n", "Hq", "D"), check=all_of((norm_close(1e-2), close_by_rows(rtol=2**-7, atol_rms=0.2)))),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "The result depends on every foreign key and value in range: as many numbers come in as they have, or as the "
        "result has where that is less.",
        work=least_work,
    ),
)
