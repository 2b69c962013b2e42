"""UlyssesAllGatherVariable: an all-gather of tensors whose lengths differ by rank and are not known beforehand."""

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
    SizeError,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.rules import same_bits

if TYPE_CHECKING:
    import torch


def lengths_of(ax: Axes) -> tuple[int, ...]:
    """Each rank's length: the first W of several, or one number for all."""
    return (ax.lengths,) * ax.W if isinstance(ax["lengths"], int) else ax.by_rank("lengths")


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's shape, elements of this rank and of all ranks, and the default group.

    Raises:
        SizeError: gather_dim names no dimension.
    """
    lengths, rest = lengths_of(ax), ax.ints("rest")
    if not -len(rest) - 1 <= ax.gather_dim <= len(rest):
        raise SizeError(f"axis gather_dim={ax.gather_dim} must name one of {len(rest) + 1} dimensions")
    place, own = ax.gather_dim % (len(rest) + 1), lengths[ax.r]
    return {
        "lengths": lengths,
        "x_shape": (*rest[:place], own, *rest[place:]),
        "n": own * prod(rest),
        "N": sum(lengths) * prod(rest),
        "group": None,
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Checks draw lengths anew, every third time an empty rank, and gather along inner dimensions every other time.

    About half of the ranks keep the length of the size, so that no rank can infer the others' lengths from its own.
    """
    if draw.timed:
        return {}
    lengths, rest = list(lengths_of(ax)), ax.ints("rest")
    mean = max(2, sum(lengths) // len(lengths))
    changed = draw.sample(range(len(lengths)), (len(lengths) + 1) // 2)
    for rank in changed:
        lengths[rank] = draw.randint(mean // 2, 3 * mean // 2)
    if draw.trial % 3 == 1 and len(lengths) > 1:
        lengths[changed[0]] = 0
    if draw.trial % 2 == 0:
        return {"lengths": tuple(lengths)}
    outer = 4 if prod(rest) % 4 == 0 else 1
    inner_dim = 1 if draw.trial % 4 == 1 else -2
    return {"lengths": tuple(lengths), "rest": (outer, prod(rest) // outer), "gather_dim": inner_dim}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Equal lengths, gathered along the first dimension."""
    return {"lengths": lengths_of(ax)[0], "gather_dim": 0}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Random bit patterns, so that nothing but a copy of every element gives the result."""
    return (make.bits("x"),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Standard normal, from the published seed."""
    return (make.seeded(42 + 35_000 + make.rank + 1_000_003 * make.trial).normal("x"),)


def cost(ax: Axes) -> Cost:
    """Every foreign tensor comes in once; the few bytes of the lengths can travel with them."""
    return Cost(
        memory_bytes=(ax.n + ax.N) * ax.itemsize,
        link_in_bytes=(ax.N - ax.n) * ax.itemsize,
        # A switch that multicasts takes each tensor once; a lower bound must allow for it.
        link_out_bytes=ax.n * ax.itemsize if ax.W > 1 else 0,
    )


PROBLEM = Problem(
    name="UlyssesAllGatherVariable",
    upstream="35_ulysses_all_gather_variable_primitive",
    category="context_parallel",
    origin="VeOmni sequence-parallel primitives (DeepSpeed-Ulysses family)",
    summary="Like an all-gather, but ranks may hold different lengths along the gathered dimension, and the lengths "
    "are not known beforehand by the other ranks.",
    weaknesses=(
        "All lengths are equal and gather_dim is always 0: a plain all-gather along dimension 0, without exchange of "
        "lengths, passes.",
    ),
    no_capture_because="The lengths of other ranks' tensors are unknown to the host until they are exchanged.",
    tags=("all_gather", "ulysses", "ragged"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    # `rest` is the shape without the gathered dimension.
    sizes={
        "tiny": {"lengths": (5, 0, 9, 3, 7, 1, 4, 2), "rest": (24,), "gather_dim": 0},
        "published": {"lengths": 1024, "rest": (1024,), "gather_dim": 0},
        "large": {
            "lengths": (10240, 8192, 6144, 8191, 12288, 4096, 8193, 7168),
            "rest": (8192,),
            "gather_dim": 0,
        },
    },
    args=(
        Tensor("x", "x_shape", about="local shard; its length along gather_dim differs by rank and may be 0"),
        Scalar("gather_dim", "int", about="dimension to join along; negative counts from the last"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(
        # Its size is known after the exchange of lengths alone.
        Output("out", ("?",), capacity="N", check=same_bits(), about="all ranks' x, joined along gather_dim"),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "A foreign tensor is unknown to a rank until it has come in. The own one goes out once, as a switch may "
        "multicast it.",
    ),
)
