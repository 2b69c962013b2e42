"""SampleSort: sorts an unevenly spread array; the ranks end up with consecutive, evenly sized pieces of it."""

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
    Tensor,
    Trials,
    with_link,
)

if TYPE_CHECKING:
    import torch

PATTERNS = ("normal", "duplicates", "sorted", "shifted", "equal", "skewed", "special", "reversed", "uniform")


def counts_of(ax: Axes) -> tuple[int, ...]:
    """The number of values on each rank: the first W counts, or equal shares where one number is given."""
    return (ax.counts // ax.W,) * ax.W if isinstance(ax["counts"], int) else ax.by_rank("counts")


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds this rank's n, where it begins, N, the length of the sorted piece, and the default group.

    Raises:
        SizeError: there is no such pattern of values.
    """
    ax.one_of("pattern", PATTERNS)
    counts = counts_of(ax)
    N = sum(counts)
    return {
        "counts": counts,
        "group": None,
        "n": counts[ax.r],
        "offset": sum(counts[: ax.r]),
        "N": N,
        "n_out": N // ax.W + (ax.r < N % ax.W),
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: every pattern in turn, and uneven shards, one of them empty on odd trials.

    Trial 0 keeps the pattern of the size; on one of eight there are hardly more values than ranks. On one trial in four
    about half of the ranks keep the size's number of values, so that no rank can infer the others' from its own.
    """
    if draw.timed:
        return {}
    counts = counts_of(ax)
    W, total = len(counts), sum(counts)
    total = draw.randrange(2 * W) if draw.trial % 8 == 5 else draw.randint(total // 2, total)
    weights = [draw.random() + 0.1 for _ in range(W)]
    if draw.trial % 2 and W > 1:
        weights[draw.randrange(W)] = 0
    pattern = PATTERNS[draw.trial % len(PATTERNS)] if draw.trial else ax.text("pattern")
    uneven = tuple(int(total * w / sum(weights)) for w in weights)
    if draw.trial % 4 == 0:
        changed = sorted(draw.sample(range(W), W), key=counts.__getitem__)[: (W + 1) // 2]  # the emptiest
        most = max(counts)
        uneven = tuple(another(n, most, draw) if rank in changed else n for rank, n in enumerate(counts))
    return {"counts": uneven, "pattern": pattern}


def another(n: int, most: int, draw: Draw) -> int:
    """A number of values other than n, where there is one up to `most`."""
    return draw.randint(n // 2, n - 1) if n > 1 else draw.randint(min(2, most), most)


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Odd ranks hold nothing on every fourth trial."""
    if draw.trial % 4 != 3:
        return {}
    return {"counts": tuple(0 if rank % 2 else n for rank, n in enumerate(counts_of(ax)))}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Values of one distribution for all ranks, or ("shifted") of one around another mean on each."""
    import torch

    n, N, pattern = make.ax.n, make.ax.N, make.ax.text("pattern")
    if pattern == "normal":
        values = make.randn(n)
    elif pattern == "uniform":
        values = 2 * make.rand(n) - 1
    elif pattern == "duplicates":
        values = make.randint(-20, 21, n)
    elif pattern == "equal":
        values = make.shared.randn(1).expand(n)
    elif pattern == "shifted":
        values = 3 * make.randn(1) + make.randn(n)
    elif pattern == "skewed":
        values = torch.exp(3 * make.randn(n)) * (make.rand(n) < 0.7)
    elif pattern == "special":
        chosen = torch.tensor([-torch.inf, -0.0, 0.0, torch.inf], device=make.device)[make.randint(0, 4, n)]
        values = torch.where(make.rand(n) < 0.3, chosen, make.randn(n))
    else:
        place = torch.arange(make.ax.offset, make.ax.offset + n, device=make.device) / max(1, N)
        values = (1 + make.shared.rand(1)) * (place - make.shared.rand(1))
        values = -values if pattern == "reversed" else values
    return (values.to(make.dtype),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Whole numbers in -50 .. 49, lowered by r n_r, so that higher ranks hold smaller values."""
    stream = make.seeded(42 + 85_000 + make.rank + 1_000_003 * make.trial)
    return (stream.integers("local_shard", -50, 50) - make.rank * max(1, make.ax.n),)


def cost(ax: Axes) -> Cost:
    """Values are read and written once; those that belong to another rank cross the link, once.

    Of values that do not depend on the rank one in W stays. A dtype of few values can be sent as counts: at least a
    byte for each of them is assumed. Ranks may already hold the right values where the pattern is neither normal nor
    uniform.
    """
    independent = ax.text("pattern") in ("normal", "uniform")
    as_counts = 2.0 ** (8 * ax.itemsize)
    return Cost(
        vector_flops=ax.n,
        memory_bytes=ax.itemsize * (ax.n + ax.n_out),
        link_in_bytes=min(ax.itemsize * max(0.0, ax.n_out - ax.n / ax.W), as_counts) if independent else 0,
        link_out_bytes=min(ax.itemsize * (ax.n - ax.n / ax.W), as_counts) if independent else 0,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link values of 32 bits and more."""
    base = cost(ax)
    return base if ax.itemsize > 2 else with_link(base, 0, 0)


PROBLEM = Problem(
    name="SampleSort",
    upstream="85_distributed_sample_sort",
    category="other",
    origin="parallel sorting by regular sampling (PSRS, Shi and Schaeffer)",
    summary=(
        "Sort a 1-D array that is spread unevenly over the ranks; afterwards the ranks hold consecutive, evenly sized "
        "pieces of the sorted array."
    ),
    weaknesses=(
        "The ranks' ranges of values are disjoint and reversed: sorting locally and swapping with rank W-1-r passes.",
        "A tolerance of 1e-2 on values near -768 accepts most wrong orders inside a shard.",
    ),
    no_capture_because="The sizes of shards and buckets, and with them the counts of the exchanges, "
    "depend on the values.",
    tags=("all_to_all", "all_gather", "ragged", "sort"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"counts": (37, 0, 5, 64, 1, 20, 0, 3), "pattern": "duplicates"},
        "published": {"counts": 1024, "pattern": "normal"},
        # 2^24 each, up to 10 % more or fewer; meant for float32.
        "large": {
            "counts": (16777216, 15099494, 18454937, 16000000, 17554432, 18000000, 15554432, 16777216),
            "pattern": "normal",
        },
    },
    args=(
        Tensor("local_shard", ("n",), about="unsorted values of this rank, n differs by rank and may be 0"),
        Group("group", about="None means all ranks"),
    ),
    outputs=(Output("sorted_shard", ("n_out",), about="this rank's even share of the sorted array"),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs, vary=published_vary),
    cost=cost,
    least_work=LeastWork(
        "Values are read and written once. Those of another rank come in, but not as such where a dtype has so few "
        "values that counts will do.",
        of=("memory", "link"),
        work=least_work,
    ),
)
