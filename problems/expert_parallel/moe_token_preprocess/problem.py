"""MoETokenPreprocess: from each rank's routing mask, how many tokens go from every rank to every expert."""

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
    exact,
)
from pkb_gym.problems.expert_parallel.routing import interleaved, ragged_rows

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the size G of the group, the experts L of one rank, and this rank's number of tokens."""
    rows, size = ax.ints_or_none("rows"), len(ax.group_ranks("group"))
    return {
        "G": size,
        "T": ax.T if rows is None else rows[ax.r],
        "L": ax.replace(G=size).divide("E", by="G"),
    }


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Trial by trial: ragged tokens with an empty rank, distinct experts, an idle expert, and interleaved subgroups."""
    if draw.timed or draw.trial == 0:
        return {}
    trial = draw.trial
    return {
        "rows": ragged_rows(ax.W, ax.T, draw) if trial % 2 else None,
        "distinct": trial % 3 == 1,
        "idle": trial % 4 in (1, 2) and ax.K < ax.E,
        "group": interleaved(ax.W, min(2, ax.W)) if trial % 3 == 2 else None,
    }


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Experts drawn from a skewed law, softmax(1.5 z) with normal z; new every trial and common to the ranks."""
    import torch

    ax = make.ax
    scores = 1.5 * make.shared.randn(ax.E)
    if ax.flag("idle"):
        scores[make.shared.randint(0, ax.E, 1)] = -torch.inf
    slots = (ax.T, 1) if ax.flag("distinct") else (ax.T, ax.K)
    # The largest scores after Gumbel noise are draws from the softmax, without replacement along the last dimension.
    noisy = scores - torch.log(-torch.log(make.rand(*slots, ax.E)))
    ids = noisy.topk(ax.K if ax.flag("distinct") else 1, dim=-1).indices.reshape(ax.T, ax.K)
    return (routing_mask(ids, make),)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor]:
    """Experts drawn uniformly, with replacement."""
    ax = make.ax
    stream = make.seeded(42 + 26_000 + make.rank + 1_000_003 * make.trial)
    return (routing_mask(stream.randint(0, ax.E, ax.T, ax.K), make),)


def routing_mask(ids: torch.Tensor, make: InputMaker) -> torch.Tensor:
    """One-hot mask (E, K, T) of expert ids (T, K)."""
    import torch

    one_hot = torch.nn.functional.one_hot(ids, make.ax.E)
    return one_hot.permute(2, 1, 0).to(make.dtype).contiguous()


def cost(ax: Axes) -> Cost:
    """The mask is summed once; each rank needs the other ranks' counts for its own L experts alone."""
    mask = ax.E * ax.K * ax.T
    foreign = (ax.G - 1) * ax.L * ax.itemsize
    return Cost(
        vector_flops=mask,
        memory_bytes=(mask + ax.E + ax.G * ax.L + ax.L) * ax.itemsize + 16 * ax.G,
        link_in_bytes=foreign,
        link_out_bytes=foreign,
    )


PROBLEM = Problem(
    name="MoETokenPreprocess",
    upstream="26_moe_token_preprocess",
    category="expert_parallel",
    origin="VeOmni, before the token exchange of its expert-parallel layer",
    summary="From each rank's one-hot routing mask, work out how many tokens go from every rank to every expert.",
    weaknesses=("Uniform routing leaves every count near 256, where a tolerance of 1e-2 forgives an error of 2.",),
    no_capture_because="Its results are counts in host memory, which the caller reads at once.",
    tags=("all_gather", "moe", "latency"),
    dtypes=("float32", "float64"),
    sizes={
        "tiny": {"E": 8, "K": 2, "T": 64, "rows": None, "distinct": False, "idle": False, "group": None},
        "published": {"E": 8, "K": 2, "T": 1024, "rows": None, "distinct": False, "idle": False, "group": None},
        "large": {"E": 256, "K": 8, "T": 8192, "rows": None, "distinct": False, "idle": False, "group": None},
    },
    args=(
        Tensor("expert_mask", ("E", "K", "T"), about="[e, k, t] is 1 where slot k of local token t chose expert e"),
        Scalar("num_experts", "int", axis="E", about="E"),
        Group("group", about="expert-parallel group of G ranks; rank d of it hosts experts d*L .. (d+1)*L-1"),
    ),
    returns="tuple",
    outputs=(
        Output("input_splits", ("G",), dtype="int64", check=exact(), about="pairs sent to each rank", is_local=True),
        Output("output_splits", ("G",), dtype="int64", check=exact(), about="pairs received from each"),
        Output("tokens_per_local_expert", ("G", "L"), check=exact(), about="[s, l]: from s for expert l"),
        Output("sum_per_local_expert", ("L",), check=exact(), about="pairs for each local expert"),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The mask is read and the counts are written. What crosses the link, counts, is too little to count.",
        of=("memory",),
    ),
)
