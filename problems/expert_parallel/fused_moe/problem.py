"""FusedMoE: a mixture-of-experts layer, its experts spread over the ranks."""

from __future__ import annotations

from math import comb, sqrt
from typing import TYPE_CHECKING, cast

from pkb_gym.engine.axes import AxisValue, divide
from pkb_gym.engine.checks import rows_close
from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.inputs import Draw, InputMaker, Stream
from pkb_gym.engine.problem import Axes, Cost, Group, Linear, Output, Problem, Scalar, Tensor, Trials

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.inputs import Value

NEAR_STEPS = 2
"""A token is redrawn when its K-th and (K+1)-th choice are this many bfloat16 steps apart or fewer."""

LARGEST_LOGIT = 8.0
"""A token is redrawn when a logit reaches this: from here on, one step alone moves a row by more than the tolerance."""

IDLE_BIAS = -32.0
"""Router bias of an idle expert: far below all others, whose logits have a standard deviation of 2 or 3."""


def derive(axes: dict[str, AxisValue]) -> dict[str, AxisValue]:
    """Adds the size G of the group, the experts L of one rank, and this rank's number of tokens."""
    ax = Axes(axes)
    if ax.K > ax.E:
        raise SizeError(f"axis K={ax.K} must be at most E={ax.E}")
    group = cast("tuple[tuple[int, ...], ...] | None", ax["group"])
    rows = cast("tuple[int, ...] | None", ax["rows"])
    axes = axes | {"G": ax.W if group is None else len(group[0]), "T": ax.T if rows is None else rows[ax.r]}
    return axes | {"L": divide(axes, "E", by="G")}


def robust_vary(axes: dict[str, AxisValue], draw: Draw) -> dict[str, AxisValue]:
    """Trial by trial: an idle rank, no router bias, ragged tokens with an empty rank, interleaved subgroups."""
    if draw.timed or draw.trial == 0:
        return axes
    ax, trial = Axes(axes), draw.trial
    rows = None
    if trial % 2:
        empty = draw.randrange(ax.W) if ax.W > 1 else None
        rows = tuple(0 if rank == empty else draw.randint(1, ax.T) for rank in range(ax.W))
    parts = min(2, ax.W) if trial % 3 == 2 else 1
    size = ax.W // parts
    return axes | {
        "rows": rows,
        "biased": trial % 4 != 2,
        "idle": idle_experts(ax.E, ax.K, size, draw.randrange(size)) if trial % 4 == 1 else (),
        "group": tuple(tuple(range(i, ax.W, parts)) for i in range(parts)) if parts > 1 else None,
    }


def idle_experts(experts: int, top_k: int, ranks: int, rank: int) -> tuple[int, ...]:
    """All experts of a rank, or as many of them as leave `top_k` others."""
    local = experts // ranks
    return tuple(range(rank * local, rank * local + min(local, experts - top_k)))


def robust_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Normal tokens; a router scaled so that all K weights matter, skewed by a bias that all ranks share."""
    ax = make.ax
    hidden_states = make.normal("hidden_states")
    gate_weight = make.normal("gate_weight", std=2 / sqrt(ax.H))
    gate_bias = make.shared.normal("gate_bias") if ax["biased"] else None
    if gate_bias is not None:
        gate_bias[list(cast("tuple[int, ...]", ax["idle"]))] = IDLE_BIAS
    redraw_doubtful_tokens(hidden_states, gate_weight, gate_bias, make)
    return hidden_states, gate_weight, gate_bias, *default_layers(make, make)


def published_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Everything standard normal, the router too, which leaves the second weight next to nothing."""
    stream = make.seeded(42 + 31_000 + make.rank + 1_000_003 * make.trial)
    gate = stream.normal("hidden_states"), stream.normal("gate_weight"), stream.normal("gate_bias")
    return *(gate if make.ax["biased"] else (*gate[:2], None)), *default_layers(stream, make)


def default_layers(stream: Stream, make: InputMaker) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weight and bias of the three layers, uniform in +-1 / sqrt(fan_in) as torch.nn.Linear starts."""
    layers = []
    for rows, fan_in in ((make.ax.I, make.ax.H), (make.ax.I, make.ax.H), (make.ax.H, make.ax.I)):
        weight, bias = ((2 * stream.rand(*shape) - 1) / sqrt(fan_in) for shape in ((rows, fan_in), (rows,)))
        layers.append((weight.to(make.dtype), bias.to(make.dtype)))
    return layers


def redraw_doubtful_tokens(
    hidden_states: torch.Tensor, gate_weight: torch.Tensor, gate_bias: torch.Tensor | None, make: InputMaker
) -> None:
    """Redraws, in place, the tokens whose right result depends on the order of the router's sums.

    Raises:
        SizeError: some stay doubtful however often they are drawn.
    """
    import torch

    doubtful = torch.arange(len(hidden_states), device=hidden_states.device)
    for _ in range(200):
        doubtful = doubtful[is_doubtful(hidden_states[doubtful], gate_weight, gate_bias, make.ax.K)]
        if not len(doubtful):
            return
        hidden_states[doubtful] = make.randn(len(doubtful), make.ax.H).to(hidden_states.dtype)
    raise SizeError(f"{make.problem.name}: {len(doubtful)} tokens keep near ties; choose fewer experts or a larger H")


def is_doubtful(
    hidden_states: torch.Tensor, gate_weight: torch.Tensor, gate_bias: torch.Tensor | None, top_k: int
) -> torch.Tensor:
    """Marks tokens with a large logit, or whose K-th and (K+1)-th logits or probabilities are next to each other."""
    import torch

    logits = hidden_states.float() @ gate_weight.float().T
    if gate_bias is not None:
        logits = logits + gate_bias.float()
    doubtful = (logits >= LARGEST_LOGIT).any(-1)
    if top_k == logits.shape[1]:
        return doubtful  # every expert is chosen
    for values in (logits, logits.softmax(-1)):
        last, first_left_out = values.topk(top_k + 1, dim=-1).values[:, top_k - 1 :].unbind(-1)
        largest = torch.maximum(last.abs(), first_left_out.abs())
        step = torch.exp2(largest.clamp_min(1e-30).log2().floor() - 7)
        # One more step, for the rounding of both.
        doubtful |= last - first_left_out <= (NEAR_STEPS + 1) * step
    return doubtful


def cost(ax: Axes) -> Cost:
    """One evaluation for each token and distinct rank; the cheaper of moving tokens and moving the MLPs.

    Takes routing as uniform: skew leaves the mean over ranks about where it is and makes the busiest rank slower.
    """
    ranks_per_token = ax.G * (1 - comb(ax.E - ax.L, ax.K) / comb(ax.E, ax.K))
    evaluations = ax.T * ranks_per_token
    layers = (3 * ax.H * ax.I + 2 * ax.I + ax.H) * ax.itemsize
    tokens = 2 * evaluations * (ax.G - 1) / ax.G * ax.H * ax.itemsize
    return Cost(
        matrix_flops=2 * ax.T * ax.H * ax.E + 6 * evaluations * ax.H * ax.I,
        vector_flops=5 * ax.T * ax.E + evaluations * (5 * ax.I + 2 * ax.H),
        memory_bytes=(2 * ax.T * ax.H + ax.E * ax.H + ax.E) * ax.itemsize + layers,
        link_in_bytes=min(tokens, (ax.G - 1) * layers),
        # A switch that multicasts takes each MLP once.
        link_out_bytes=min(tokens, layers),
    )


MODES = {"rows": None, "biased": True, "idle": (), "group": None}

PROBLEM = Problem(
    name="FusedMoE",
    upstream="31_fused_moe_fwd",
    category="expert_parallel",
    origin="VeOmni, fused expert-parallel MoE forward; helpers of Megatron-LM",
    summary="Send each token to its top-k experts on other ranks, run their gated MLP, bring back and add the results.",
    weaknesses=(
        "An unscaled router is nearly one-hot: leaving the second expert out passes on 87 % of the rows.",
        "Routing is uniform: no rank or expert is ever empty.",
        "A tolerance of 1e-2 forgives errors near 8 % of a typical element.",
        "Weights are small and never change: a solution may gather them once and skip all later communication.",
    ),
    tags=("all_to_all", "moe", "gemm", "overlap"),
    dtypes=("bfloat16",),
    sizes={
        "tiny": {"T": 64, "H": 64, "I": 32, "E": 8, "K": 2, **MODES},
        "published": {"T": 1024, "H": 1024, "I": 128, "E": 8, "K": 2, **MODES},
        "large": {"T": 8192, "H": 4096, "I": 4096, "E": 8, "K": 2, **MODES},
    },
    args=(
        Tensor("hidden_states", ("T", "H"), about="this rank's tokens; T may differ by rank"),
        Tensor("gate_weight", ("E", "H"), about="router of this rank's tokens; differs by rank"),
        Tensor("gate_bias", ("E",), optional="biased", about="router bias, or None"),
        Linear("gate_proj", ("I", "H"), about="gate layer of the experts hosted here"),
        Linear("up_proj", ("I", "H"), about="up layer"),
        Linear("down_proj", ("H", "I"), about="down layer"),
        Scalar("num_experts", "int", axis="E", about="E, experts in the whole group"),
        Scalar("top_k", "int", axis="K", about="K, experts of one token"),
        Group("group", about="expert-parallel group of G ranks; rank d of it hosts experts d*L .. (d+1)*L-1"),
    ),
    # The baseline is within 0.7 % of an exact evaluation; a logit that rounds the other way moves a row by up to 1.6 %.
    outputs=(Output("out", ("T", "H"), check=rows_close(2e-2), about="the layer's output, tokens in their order"),),
    derive=derive,
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
)
