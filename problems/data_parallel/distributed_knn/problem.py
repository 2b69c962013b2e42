"""DistributedKNN: for every rank's queries, the most similar training samples, which are sharded over all ranks."""

from __future__ import annotations

from dataclasses import replace
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
    close,
)
from pkb_gym.engine.problem.rules import DTYPE_SCALE, CheckContext, rule

if TYPE_CHECKING:
    import torch

CLASSES = 1000
"""At least; of large pools so many that a class has about k / 4 samples."""

PAIRS_AT_ONCE = 2**26
"""Maximum number of similarities, or pairs of a result and a candidate, that the check holds at a time."""


def derive(ax: Axes) -> dict[str, int]:
    """Adds this rank's queries and training samples, and the queries of all ranks.

    Raises:
        SizeError: fewer training samples on a rank than results.
    """
    queries = ax.ints_or_none("queries")
    n = ax.number_or_none("samples_per_rank") or max(ax.fewest_samples, ax.pool // ax.W)
    if ax.k > n:
        raise SizeError(f"axis k={ax.k} must be at most the n={n} training samples of a rank")
    queries = queries or (ax.Q,) * ax.W
    return {"n": n, "Q": queries[ax.r], "all_queries": sum(queries)}


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Outside timing: ragged queries, a rank without any on odd trials, another k, the world as an explicit group.

    About half of the ranks keep the size's number of queries, and on one trial in four all else is as in timing: so no
    rank can infer the others' numbers from its own.
    """
    if draw.timed:
        return {}
    queries = [ax.Q] * ax.W
    changed = draw.sample(range(ax.W), (ax.W + 1) // 2)
    for rank in changed:
        queries[rank] = draw.randint(1, ax.Q)
    if draw.trial % 2 and ax.W > 1:
        queries[changed[0]] = 0
    if draw.trial % 4 == 0:
        return {"queries": tuple(queries)}
    return {
        "queries": tuple(queries),
        "k": draw.randint(max(1, ax.k // 2), ax.k),
        "group": (tuple(range(ax.W)),) if draw.trial % 3 == 1 else None,
    }


def number_of_classes(ax: Axes) -> int:
    """The number of classes: were the k nearest all of a query's own class, a search could leave out all others."""
    return max(CLASSES, -(-4 * ax.W * ax.n // ax.k))


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Features are a centre per class and as much noise, of length 1; labels are uniform, centres common to all."""
    ax, classes = make.ax, number_of_classes(make.ax)
    centres = make.shared.randn(classes, ax.F)
    labels = make.randint(0, classes, ax.n)
    test = centres[make.randint(0, classes, ax.Q)] + make.randn(ax.Q, ax.F)
    train = centres[labels] + make.randn(ax.n, ax.F)
    return unit(test, make.dtype), unit(train, make.dtype).T.contiguous(), labels.view(1, -1)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Random directions; labels are the samples' numbers modulo 1000."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 79_000 + make.rank + 1_000_003 * make.trial)
    test = stream.randn(ax.Q, ax.F).to(make.dtype)
    train = stream.randn(ax.n, ax.F).to(make.dtype)
    numbers = make.rank * ax.n + torch.arange(ax.n, device=make.device)
    return unit(test, make.dtype), unit(train, make.dtype).T.contiguous(), (numbers % CLASSES).view(1, -1)


def unit(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows of length 1."""
    length: torch.Tensor = rows.norm(dim=1, keepdim=True)
    return (rows / length).to(dtype)


def step(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """A step of the dtype at most, and what float32 sums may be off by."""
    return 2.0**-7 * DTYPE_SCALE[dtype] * values.abs() + 1e-6


def sims_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Values of the baseline within a step and a half; each row in descending order."""
    bad = close(rtol=1.5 * 2.0**-7, atol=1e-6 / DTYPE_SCALE[context.ax.dtype]).wrong(got, context)
    bad[:, 1:] |= got[:, 1:] > got[:, :-1]
    return bad


def labels_mark(got: torch.Tensor, context: CheckContext) -> torch.Tensor:
    """Labels that no sample of the result's similarity has, and rows that lack or repeat samples.

    A row lacks some if a label is rarer in it than among the samples more than two steps above the k-th similarity; it
    repeats some if a label is more frequent in it than among those not further below.
    """
    import torch

    ax = context.ax
    bad = torch.ones_like(got, dtype=torch.bool)
    if not bad.numel():
        return bad
    train = torch.cat([context.tensor("train_features_rank_T", rank).float() for rank in range(ax.W)], dim=1)
    pool_labels = torch.cat([context.tensor("train_labels_rank", rank)[0] for rank in range(ax.W)])
    sims = context.candidate.get("sims", context.outputs["sims"]).float()
    last = context.outputs["sims"][:, -1:].float()
    at_once = max(1, PAIRS_AT_ONCE // max(len(pool_labels), 4 * ax.k * ax.k))
    for start in range(0, ax.Q, at_once):
        rows = slice(start, start + at_once)
        pool = context.tensor("test_features_rank")[rows].float() @ train
        floor = last[rows] - 2 * step(last[rows], ax.dtype)
        most = int((pool >= floor).sum(1).max())
        values, places = pool.topk(max(most, ax.k), dim=1)
        labels, near = pool_labels[places], values >= floor
        clear = values > last[rows] + 2 * step(last[rows], ax.dtype)
        same = got[rows, :, None] == labels[:, None, :]  # (rows, results, candidates)
        distance = (sims[rows, :, None] - values[:, None, :]).abs()
        found = (same & (distance <= step(sims[rows], ax.dtype)[:, :, None])).any(2)
        own = (labels[:, :, None] == labels[:, None, :]) & clear[:, None, :]
        lacking = clear & (same.sum(1) < own.sum(2))
        repeated = (got[rows, :, None] == got[rows, None, :]).sum(2) > (same & near[:, None, :]).sum(2)
        bad[rows] = ~found | lacking.any(1, keepdim=True) | repeated
    return bad


def cost(ax: Axes) -> Cost:
    """All queries meet all samples; every foreign query comes in, and the foreign share of the results of its own.

    Results are spread over the ranks as samples are; a label takes two bytes. Fewer samples would move instead.
    """
    s = ax.itemsize
    foreign = (ax.W - 1) / ax.W
    results = ax.Q * ax.k * foreign * (s + 2)
    queries, samples = ax.Q * ax.F * s, ax.n * (ax.F * s + 2)
    foreign_queries = (ax.all_queries - ax.Q) * ax.F * s
    return Cost(
        matrix_flops=2 * ax.all_queries * ax.n * ax.F,
        vector_flops=ax.all_queries * ax.n,
        memory_bytes=s * ax.F * ax.n + queries + 8 * ax.n + ax.Q * ax.k * (s + 8),
        link_in_bytes=min(foreign_queries + results, (ax.W - 1) * samples),
        # A switch that multicasts takes queries, or samples, once.
        link_out_bytes=min(queries + results, samples) if ax.W > 1 else 0.0,
    )


def least_work(ax: Axes) -> Cost:
    """Without the labels of samples that are not among the results."""
    return replace(cost(ax), memory_bytes=ax.itemsize * ax.F * (ax.n + ax.Q) + ax.Q * ax.k * (ax.itemsize + 8))


MODES = {"queries": None, "group": None}

PROBLEM = Problem(
    name="DistributedKNN",
    upstream="79_dinov2_distributed_knn",
    category="data_parallel",
    origin="DINOv2, k-nearest-neighbour evaluation",
    summary="For every rank's queries find the k most similar training samples, which are sharded over all ranks.",
    weaknesses=(
        "Labels follow a closed form, so that a solution need not read them.",
        "Similarities tie in nearly all places and features have no clusters: comparing labels one by one tests the "
        "order of ties and refuses right answers.",
    ),
    no_capture_because="The numbers of other ranks' queries are unknown to the host until they are exchanged.",
    tags=("broadcast", "gather", "top_k", "gemm"),
    dtypes=("bfloat16", "float16", "float32"),
    # Training samples of a rank: samples_per_rank, or else its share of the pool, fewest_samples at least.
    sizes={
        "tiny": {"Q": 8, "F": 16, "k": 10, "samples_per_rank": 64, "pool": 256, "fewest_samples": 64, **MODES},
        "published": {
            "Q": 32,
            "F": 384,
            "k": 200,
            "samples_per_rank": None,
            "pool": 16_384,
            "fewest_samples": 1024,
            **MODES,
        },
        "large": {
            "Q": 4096,
            "F": 1024,
            "k": 200,
            "samples_per_rank": 131_072,
            "pool": 524_288,
            "fewest_samples": 1024,
            **MODES,
        },
    },
    args=(
        Tensor("test_features_rank", ("Q", "F"), about="this rank's queries; Q may differ by rank"),
        Tensor("train_features_rank_T", ("F", "n"), about="this rank's training samples as columns"),
        Tensor("train_labels_rank", (1, "n"), dtype="int64", about="their labels"),
        Scalar("max_k", "int", axis="k", about="k, at most n"),
        Group("group", about="None means all ranks"),
    ),
    returns="tuple",
    outputs=(
        Output(
            "sims",
            ("Q", "k"),
            check=rule(sims_mark, description="within one and a half steps, in descending order"),
            about="largest similarities",
        ),
        Output(
            "labels",
            ("Q", "k"),
            dtype="int64",
            check=rule(
                labels_mark,
                description="each label has a sample with that similarity (within a step), and all samples more than "
                "two steps above the k-th are there, none twice",
                batched=False,
            ),
            about="labels of the samples behind sims",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Queries and samples are read and the results are written. Near samples can be found without all products, "
        "and only the results' labels are needed.",
        of=("memory",),
        work=least_work,
    ),
)
