"""Shared parts of the mixture-of-experts layers: arguments, inputs whose routing is beyond doubt, modes, least cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import comb, sqrt
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    Group,
    InputMaker,
    LeastWork,
    Linear,
    Output,
    Scalar,
    SizeError,
    Stream,
    Tensor,
    Trials,
)
from pkb_gym.engine.problem.row_rules import summed_rows_close
from pkb_gym.engine.problem.rules import all_of, norm_close
from pkb_gym.problems.expert_parallel.routing import interleaved, ragged_rows

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem import Value

NEAR_STEPS = 2
"""A token is redrawn when its K-th and (K+1)-th choice are this many bfloat16 steps apart or fewer."""

SUMMED = 4.0
"""Magnitude of the sums of some of a logit's terms, whose steps count where the logit is smaller: a product may round
them to bfloat16, as PyTorch's do that split the dimension of the sum."""

MAX_LOGIT = 8.0
"""A token is redrawn when a logit reaches this: from here on, one step alone moves a row by more than the tolerance."""

IDLE_BIAS = -32.0
"""Router bias of an idle expert: far below all others, whose logits have a standard deviation of 2 or 3."""

MODES = {"rows": None, "biased": True, "idle_rank": None, "group": None}
"""Axes that `vary` changes: ragged tokens by rank, router bias, place of a rank without tokens, partition."""


def derive_layer(ax: Axes) -> dict[str, AxisValue]:
    """Adds to E, K and G the experts L of one rank, this rank's number of tokens, and the idle experts.

    Raises:
        SizeError: K is larger than E, or E no multiple of G.
    """
    if ax.K > ax.E:
        raise SizeError(f"axis K={ax.K} must be at most E={ax.E}")
    rows, idle_rank = ax.ints_or_none("rows"), ax.number_or_none("idle_rank")
    local = ax.divide("E", by="G")
    first = 0 if idle_rank is None else idle_rank % ax.G * local
    idle = tuple(range(first, first + min(local, ax.E - ax.K)))  # K others stay
    return {
        "E": ax.E,
        "K": ax.K,
        "G": ax.G,
        "T": ax.T if rows is None else rows[ax.r],
        "L": local,
        "idle": () if idle_rank is None else idle,
    }


def vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Trial by trial: an idle rank, no router bias, ragged tokens with an empty rank, interleaved subgroups."""
    if draw.timed or draw.trial == 0:
        return {}
    trial = draw.trial
    parts = min(2, ax.W) if trial % 3 == 2 else 1
    return {
        "rows": ragged_rows(ax.W, ax.T, draw) if trial % 2 else None,
        "biased": trial % 4 != 2,
        "idle_rank": draw.randrange(ax.W // parts) if trial % 4 == 1 else None,
        "group": interleaved(ax.W, parts) if parts > 1 else None,
    }


def robust_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Normal tokens; a router scaled so that all K weights matter, skewed by a bias that all ranks share."""
    ax = make.ax
    hidden_states = make.normal("hidden_states")
    gate_weight = make.normal("gate_weight", std=2 / sqrt(ax.H))
    gate_bias = make.shared.normal("gate_bias") if ax.flag("biased") else None
    if gate_bias is not None:
        gate_bias[list(ax.ints("idle"))] = IDLE_BIAS
    redraw_doubtful_tokens(hidden_states, gate_weight, gate_bias, make)
    return hidden_states, gate_weight, gate_bias, *default_layers(make, make)


def published_inputs(make: InputMaker) -> tuple[Value, ...]:
    """Inputs from the published seed, see `published_from`."""
    return published_from(published_stream(make), make)


def published_stream(make: InputMaker) -> Stream:
    """The published seed."""
    return make.seeded(42 + 1000 * make.problem.number + make.rank + 1_000_003 * make.trial)


def published_from(stream: Stream, make: InputMaker) -> tuple[Value, ...]:
    """Everything standard normal, the router too, which leaves the second weight next to nothing."""
    gate = stream.normal("hidden_states"), stream.normal("gate_weight"), stream.normal("gate_bias")
    return *(gate if make.ax.flag("biased") else (*gate[:2], None)), *default_layers(stream, make)


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
    doubtful = (logits >= MAX_LOGIT).any(-1)
    if top_k == logits.shape[1]:
        return doubtful  # every expert is chosen
    for values, least in ((logits, SUMMED), (logits.softmax(-1), 1e-30)):
        last, first_left_out = values.topk(top_k + 1, dim=-1).values[:, top_k - 1 :].unbind(-1)
        largest = torch.maximum(last.abs(), first_left_out.abs())
        step = torch.exp2(largest.clamp_min(least).log2().floor() - 7)
        # One more step, for the rounding of both.
        doubtful |= last - first_left_out <= (NEAR_STEPS + 1) * step
    return doubtful


def evaluations(ax: Axes) -> float:
    """MLPs to be evaluated for one rank's tokens: one for each token and distinct rank, for uniform routing.

    Skew leaves the mean over ranks about where it is and makes the busiest rank slower.
    """
    return ax.T * ax.G * (1 - comb(ax.E - ax.L, ax.K) / comb(ax.E, ax.K))


def layer_parameters(ax: Axes) -> int:
    """Parameters of one rank's MLP."""
    return 3 * ax.H * ax.I + 2 * ax.I + ax.H


def layer_cost(ax: Axes, parameters: int) -> Cost:
    """Evaluates each MLP once per token and distinct rank; moves tokens or MLPs, whichever is cheaper.

    Args:
        ax: Axes of this rank.
        parameters: Number of elements of one rank's MLP.
    """
    times = evaluations(ax)
    layers = parameters * ax.itemsize
    tokens = 2 * times * (ax.G - 1) / ax.G * ax.H * ax.itemsize
    return Cost(
        matrix_flops=2 * ax.T * ax.H * ax.E + 6 * times * ax.H * ax.I,
        vector_flops=5 * ax.T * ax.E + times * (5 * ax.I + 2 * ax.H),
        memory_bytes=(2 * ax.T * ax.H + ax.E * ax.H + ax.E) * ax.itemsize + layers,
        link_in_bytes=min(tokens, (ax.G - 1) * layers),
        # A switch that multicasts takes each MLP once.
        link_out_bytes=min(tokens, layers),
    )


def cost(ax: Axes) -> Cost:
    """Least work of the layer, see `layer_cost`."""
    return layer_cost(ax, layer_parameters(ax))


def least_work_of(parameters: Callable[[Axes], int]) -> LeastWork:
    """The least work of a layer whose ranks' MLPs have so many elements."""
    return LeastWork(
        "Every token goes through one MLP at least, whatever its routing. In the mean over the ranks one token in G "
        "stays; for the others a row comes in at the MLP and one at the token, or the MLP does.",
        work=partial(_least_work, parameters=parameters),
    )


def _least_work(ax: Axes, *, parameters: Callable[[Axes], int]) -> Cost:
    """One MLP a token; over the link means over the ranks, which the skew of a routing does not change."""
    share, elements = (ax.G - 1) / ax.G, parameters(ax)
    return replace(
        layer_cost(ax, elements),
        matrix_flops=2 * ax.T * ax.H * ax.E + 6 * ax.T * ax.H * ax.I,
        link_in_bytes=share * min(2 * ax.T * ax.H, elements) * ax.itemsize,
        link_out_bytes=0,
    )


LEAST_WORK = least_work_of(layer_parameters)


ROBUST = Trials(robust_inputs, vary=vary)
PUBLISHED = Trials(published_inputs)

DATA_ARGS = (
    Tensor("hidden_states", ("T", "H"), about="this rank's tokens; T may differ by rank"),
    Tensor("gate_weight", ("E", "H"), about="router of this rank's tokens; differs by rank"),
    Tensor("gate_bias", ("E",), optional="biased", about="router bias, or None"),
    Linear("gate_proj", ("I", "H"), about="gate layer of the experts hosted here"),
    Linear("up_proj", ("I", "H"), about="up layer"),
    Linear("down_proj", ("H", "I"), about="down layer"),
)
COUNT_ARGS = (
    Scalar("num_experts", "int", axis="E", about="E, experts in the whole group"),
    Scalar("top_k", "int", axis="K", about="K, experts of one token"),
)
GROUP_ARG = Group("group", about="expert-parallel group of G ranks; rank d of it hosts experts d*L .. (d+1)*L-1")

OUTPUT = Output(
    "out",
    ("T", "H"),
    check=all_of((summed_rows_close(3.2e-2), norm_close(1.2e-2))),
    about="the layer's output, tokens in their order",
)
"""The baseline is within 0.7 % of an exact evaluation, as the norm of all rows shows. Besides, it rounds logits, by up
to 2^-6 where they lie in 4 .. 8, and weights by 2^-8: a kernel that does not moves a row by up to 2 % and 0.4 % more.
Few rows come near that."""

ORIGIN = "VeOmni, fused expert-parallel MoE forward; helpers of Megatron-LM"
NEARLY_ONE_HOT = "An unscaled router is nearly one-hot: leaving the second expert out passes on {share} of the rows."
UNIFORM = "Routing is uniform: no rank or expert is ever empty."
COARSE = "A tolerance of 1e-2 forgives errors near 8 % of a typical element."
SMALL_WEIGHTS = "Weights are small and never change: a solution may gather them once and skip all later communication."
