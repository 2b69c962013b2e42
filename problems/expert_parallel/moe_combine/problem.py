"""MoECombine: the experts' outputs go back to the ranks that own the tokens and are added there, weighted."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Group,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    Stream,
    Tensor,
    Trials,
    close,
)
from pkb_gym.engine.problem.rules import all_of, norm_close
from pkb_gym.problems.expert_parallel.routing import (
    derive_routing,
    mask_of,
    routed_experts,
    uniform_experts,
    vary_routing,
)

if TYPE_CHECKING:
    import torch

Inputs: TypeAlias = "tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]"


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds what the exchange needs, and the shape of the result."""
    additions = derive_routing(ax)
    return additions | {"org_hidden_states_shape": (additions["T"], ax.H)}


def robust_inputs(make: InputMaker) -> Inputs:
    """Splits and counts are those of the routing of all ranks; slots are in random order."""
    return combine_inputs(routed_experts(make), make, make)


def published_inputs(make: InputMaker) -> Inputs:
    """Uniform routing in ascending slots, which the even splits and counts know nothing of."""
    stream = make.seeded(42 + 29_000 + make.rank + 1_000_003 * make.trial)
    ids = uniform_experts(stream.rand(make.ax.T, make.ax.E), make.ax.K).sort(dim=1).values
    return combine_inputs(ids, stream, make)


def combine_inputs(ids: torch.Tensor, stream: Stream, make: InputMaker) -> Inputs:
    """The arguments for experts (T, K), -1 in tokens that no expert got; their slots name experts all the same."""
    import torch

    ax = make.ax
    routing_map = mask_of(ids, ax.E).any(dim=1)
    routing_weights = stream.randn(ax.T, ax.K).softmax(dim=1).to(make.dtype)
    expert_outputs = stream.randn(ax.R, ax.H).to(make.dtype)
    counts = torch.tensor(ax["counts"], dtype=torch.int64, device=make.device)
    mapping = routing_map.nonzero()[:, 1].contiguous()
    return expert_outputs, routing_weights, ids.clamp_min(0), counts, routing_map, mapping


def cost(ax: Axes) -> Cost:
    """Partial sums are formed where the experts are: a row crosses the link once for each token and other rank."""
    row = ax.H * ax.itemsize
    return Cost(
        vector_flops=2 * ax.P * ax.H,
        memory_bytes=(ax.R + ax.T) * row + ax.T * ax.K * (ax.itemsize + 8) + ax.E * ax.T + 8 * ax.P,
        link_in_bytes=ax.real("rows_out") * row,
        link_out_bytes=ax.real("rows_in") * row,
    )


def least_work(ax: Axes) -> Cost:
    """Rows alone, since the routing can be read in several places; a token has parts on K other ranks at most."""
    row = ax.H * ax.itemsize
    parts = max(1, min(ax.K, ax.G - 1))
    return Cost(
        memory_bytes=(ax.R + ax.T) * row,
        link_in_bytes=ax.real("rows_out") / parts * row,
        link_out_bytes=ax.real("rows_in") * row,
    )


MODES = {"rows": None, "routing": None, "group": None}

PROBLEM = Problem(
    name="MoECombine",
    upstream="29_moe_post_all2all",
    category="expert_parallel",
    origin="VeOmni, token combine of its expert-parallel layer; helper of Megatron-LM",
    summary="Send each expert's output rows back to the rank that owns the token and add them up there, each weighted "
    "by its router weight.",
    weaknesses=("Splits and counts are all equal and not those of the routing: a fixed-size exchange passes.",),
    tags=("all_to_all", "ragged", "moe"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"T": 64, "H": 64, "E": 8, "K": 2, **MODES},
        "published": {"T": 1024, "H": 1024, "E": 8, "K": 2, **MODES},
        "large": {"T": 4096, "H": 4096, "E": 32, "K": 4, **MODES},
    },
    args=(
        Tensor("expert_outputs", ("R", "H"), about="rows by local expert, then source rank, then token"),
        Tensor("routing_weights", ("T", "K"), about="of this rank's tokens; T may differ by rank"),
        Tensor("selected_experts", ("T", "K"), dtype="int64", about="expert of each slot"),
        Scalar("num_experts", "int", axis="E", about="E"),
        Scalar("input_splits", "ints", about="rows that come back from each rank"),
        Scalar("output_splits", "ints", about="rows that go back to each rank"),
        Tensor(
            "num_global_tokens_per_local_expert",
            ("G", "L"),
            dtype="int64",
            about="[s, l]: rows held here that belong to rank s, local expert l",
        ),
        Tensor("routing_map", ("E", "T"), dtype="bool", about="true where expert e was sent local token t"),
        Tensor("local_input_permutation_mapping", ("P",), dtype="int64", about="token of each row that was sent"),
        Scalar("org_hidden_states_shape", "ints", about="(T, H)"),
        Group("group", about="expert-parallel group of G ranks; rank d of it hosts experts d*L .. (d+1)*L-1"),
    ),
    # The baseline rounds each weighted row: where two of them cancel, what is left is off by up to 2^-7 of either, and
    # rows reach eight standard deviations in an evaluation. A partial sum formed at the expert's rank rounds once more.
    outputs=(
        Output(
            "out",
            ("T", "H"),
            check=all_of((close(rtol=1.6e-2, atol_rms=4e-2), norm_close(4.5e-3))),
            about="weighted sums per token",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs, vary=vary_routing),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Every expert's row enters a token's sum. A switch may add the ranks' parts, so that one row comes in for a "
        "token; each part goes out.",
        work=least_work,
    ),
)
