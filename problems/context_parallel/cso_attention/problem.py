"""CSOAttention: attention of independent ranges of queries over a sequence-sharded input, by heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InputMaker,
    Output,
    Problem,
    Scalar,
    Tensor,
    Trials,
    close,
    divide,
)
from pkb_gym.engine.problem.rules import all_of, norm_close

if TYPE_CHECKING:
    import torch

Ranges: TypeAlias = tuple[tuple[int, int], ...]


def resolved(axes: dict[str, AxisValue]) -> dict[str, AxisValue]:
    """Replaces heads, keys per range and slots per range and rank by their defaults where they are None.

    Published are 24 heads and 12150 keys up to 4 ranks, 48 and 21600 above.
    """
    W, few = cast(int, axes["W"]), cast(int, axes["W"]) <= 4
    heads = (24 if few else 48) if axes["Hq"] is None else axes["Hq"]
    if axes["m"] is not None:
        m = cast(int, axes["m"])
        c = W * m - cast(int, axes["padding"]) if axes["c"] is None else cast(int, axes["c"])
    else:
        c = (12150 if few else 21600) if axes["c"] is None else cast(int, axes["c"])
        m = -(-c // W)
    return axes | {"Hq": heads, "c": c, "m": m}


def derive(axes: dict[str, AxisValue]) -> dict[str, AxisValue]:
    """Adds tokens per rank, query heads per rank, KV heads per rank, the ranges of keys, and the default group.

    Raises:
        SizeError: heads that cannot be shared out, more keys than slots, or ranges of keys that do not exist.
    """
    axes = resolved(axes)
    W, R, c, m, Hk = (cast(int, axes[name]) for name in ("W", "R", "c", "m", "Hk"))
    if Hk % W and W % Hk:
        raise SizeError(f"axis Hk={Hk} must be a multiple or a divisor of W={W}")
    divide(axes, "Hq", by="Hk")
    hq, hk = divide(axes, "Hq", by="W"), max(1, Hk // W)
    if not 0 < c <= W * m:
        raise SizeError(f"axis c={c} must be in 1 .. W*m={W * m}")
    ranges = tuple((i * c, (i + 1) * c) for i in range(R)) if axes["ranges"] is None else cast(Ranges, axes["ranges"])
    if len(ranges) != R or not all(0 <= first < end <= R * c for first, end in ranges):
        raise SizeError(f"axis ranges={ranges!r} must be R={R} pairs first < end, within 0 .. R*c={R * c}")
    names: dict[AxisValue, AxisValue] = {"given": c, "none": None, "zero": 0}
    if axes["clip"] not in names or (axes["clip"] != "given" and c != W * m):
        raise SizeError(
            f"axis clip={axes['clip']!r} must be 'given', or with c={c} equal to W*m={W * m} 'none', 'zero'"
        )
    return axes | {
        "n": R * m,
        "hq": hq,
        "hk": hk,
        "D2": 2 * cast(int, axes["D"]),
        "ranges": ranges,
        "clip_token_nums": names[axes["clip"]],
        "group": None,
    }


def draw_ranges(R: int, c: int, draw: Draw) -> Ranges:
    """Each range of queries reaches back over a drawn number of earlier ranges, from and to somewhere inside them."""
    ranges = []
    for i in range(R):
        first = (i - draw.randint(0, i)) * c + draw.randint(0, c // 3)
        ranges.append((first, (i + 1) * c - draw.randint(0, c // 4)))
    return tuple(ranges)


def robust_vary(axes: dict[str, AxisValue], draw: Draw) -> dict[str, AxisValue]:
    """Checks draw ranges of keys and cycle through padding on one rank or more, few KV heads, one to R ranges.

    Slots per range stay those of the size, so that R alone changes the number of tokens.
    """
    if draw.timed:
        return axes
    axes = resolved(axes)
    W, R, m, c = (cast(int, axes[name]) for name in ("W", "R", "m", "c"))
    little, much = max(1, W * m - draw.randint(1, m)), max(1, W * m - draw.randint(m, max(m, m * W // 2)))
    modes: tuple[dict[str, AxisValue], ...] = (
        {"c": c if c < W * m else little},
        {"c": little, "Hk": max(1, W // 2)},
        {"c": W * m, "clip": "none", "R": 2},
        {"c": much, "Hk": 1, "R": 1},
        {"c": little, "R": 3},
        {"c": W * m, "clip": "zero", "Hk": 1},
    )
    axes = axes | {"clip": "given", "R": R} | modes[draw.trial % len(modes)]
    return axes | {"ranges": draw_ranges(cast(int, axes["R"]), cast(int, axes["c"]), draw)}


def published_vary(axes: dict[str, AxisValue], draw: Draw) -> dict[str, AxisValue]:
    """Range i of the queries attends to range i of the keys, and KV heads are not fewer than ranks."""
    return axes | {"ranges": None, "Hk": max(cast(int, axes["Hk"]), cast(int, axes["W"]))}


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
    """How many rows of each rank are keys of at least one range of queries."""
    merged: list[list[int]] = []
    for first, end in sorted(cast(Ranges, ax["ranges"])):
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
    pairs = ax.W * ax.m * ax.hq * sum(end - first for first, end in cast(Ranges, ax["ranges"]))
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
    tags=("all_to_all", "ulysses", "attention", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    # c None is W*m - padding, or where m is None too, as published; m None is ceil(c / W). ranges None is the block
    # diagonal. clip says how c is handed over.
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
    # Two bfloat16 units and 2 % of the rms; in norm correct variants differ by 0.003.
    outputs=(Output("out", ("n", "Hq", "D"), check=all_of((norm_close(1e-2), close(rtol=2**-7, atol_rms=0.02)))),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
)
