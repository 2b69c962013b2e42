"""MoEDispatch: every token goes to the ranks that host its experts, and is sorted there by expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    Cost,
    Group,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    Tensor,
    Trials,
    exact,
    with_link,
)
from pkb_gym.engine.problem.rules import same_bits
from pkb_gym.problems.expert_parallel.routing import (
    derive_routing,
    mask_of,
    routed_experts,
    uniform_experts,
    vary_routing,
)

if TYPE_CHECKING:
    import torch


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random bit patterns for tokens; splits and counts are those of the routing of all ranks."""
    return make.bits("hidden_states"), mask_of(routed_experts(make), make.ax.E).float(), row_counts(make)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uniform routing, which the even splits and counts know nothing of."""
    ax = make.ax
    stream = make.seeded(42 + 28_000 + make.rank + 1_000_003 * make.trial)
    hidden_states = stream.normal("hidden_states")
    ids = uniform_experts(stream.rand(ax.T, ax.E), ax.K)
    return hidden_states, mask_of(ids, ax.E).float(), row_counts(make)


def row_counts(make: InputMaker) -> torch.Tensor:
    """Rows (G, L) that each rank has for each local expert."""
    import torch

    return torch.tensor(make.ax["counts"], dtype=torch.int64, device=make.device)


def cost(ax: Axes) -> Cost:
    """A row crosses the link once for each token and other rank; who receives it copies it for its several experts."""
    row = ax.H * ax.itemsize
    return Cost(
        vector_flops=ax.E * ax.K * ax.T,
        memory_bytes=(ax.T + ax.R) * row + 4 * ax.E * (ax.K + 1) * ax.T + 8 * ax.P,
        link_in_bytes=ax.real("rows_in") * row,
        link_out_bytes=ax.real("rows_out") * row,
    )


def least_work(ax: Axes) -> Cost:
    """The cost with rows multicast by a switch; a token has experts on K other ranks at most."""
    base = cost(ax)
    return with_link(base, base.link_in_bytes, base.link_out_bytes / max(1, min(ax.K, ax.G - 1)))


MODES = {"rows": None, "routing": None, "group": None}

PROBLEM = Problem(
    name="MoEDispatch",
    upstream="28_moe_pre_all2all",
    category="expert_parallel",
    origin="VeOmni, token dispatch of its expert-parallel layer; helpers of Megatron-LM",
    summary="Copy every token once per chosen expert, send the copies to the ranks that host these experts, and lay "
    "the received copies out grouped by local expert.",
    weaknesses=("Splits and counts are all equal and not those of the routing: a fixed-size exchange passes.",),
    tags=("all_to_all", "ragged", "moe"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"T": 64, "H": 64, "E": 8, "K": 2, **MODES},
        "published": {"T": 1024, "H": 1024, "E": 8, "K": 2, **MODES},
        "large": {"T": 4096, "H": 4096, "E": 32, "K": 4, **MODES},
    },
    args=(
        Tensor("hidden_states", ("T", "H"), about="this rank's tokens; T may differ by rank"),
        Tensor("expert_mask", ("E", "K", "T"), dtype="float32", about="[e, k, t] is 1 where slot k of t chose e"),
        Scalar("num_experts", "int", axis="E", about="E"),
        Scalar("input_splits", "ints", about="rows sent to each rank"),
        Scalar("output_splits", "ints", about="rows received from each rank"),
        Tensor(
            "num_global_tokens_per_local_expert",
            ("G", "L"),
            dtype="int64",
            about="[s, l]: received rows from rank s for local expert l",
        ),
        Group("group", about="expert-parallel group of G ranks; rank d of it hosts experts d*L .. (d+1)*L-1"),
    ),
    returns="tuple",
    outputs=(
        Output("dispatched", ("R", "H"), check=same_bits(), about="received rows, by local expert, then source"),
        Output(
            "routing_map",
            ("E", "T"),
            dtype="float32",
            check=exact(),
            about="expert_mask, summed over slots",
            is_local=True,
        ),
        Output("permutation", ("P",), dtype="int64", check=exact(), about="token of each sent row", is_local=True),
        Output("flat_shape", (2,), dtype="int64", check=exact(), about="(T, H); in Python a torch.Size", is_local=True),
    ),
    derive=derive_routing,
    robust=Trials(robust_inputs, vary=vary_routing),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "A token's row comes in once on every other rank that hosts one of its experts, and is written there for each "
        "of them. A switch may multicast it.",
        work=least_work,
    ),
)
