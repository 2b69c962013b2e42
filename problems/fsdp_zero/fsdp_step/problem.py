"""FSDPStep: a training step whose parameters, gradients and Adam state are all split over the ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    AxisValue,
    Cost,
    Draw,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Scalar,
    Tensor,
    Trials,
    with_link,
)
from pkb_gym.engine.problem.rules import CheckContext
from pkb_gym.problems.mlp_training_step import (
    SIZES,
    averaged_gradient,
    averaged_square,
    batch_bytes,
    by_parameter,
    derive_sharded,
    elementwise_flops,
    first_layer_of_shards,
    first_moment,
    matrix_flops,
    parameter_shapes,
    published_batch,
    published_parameters,
    rank_shard,
    samples,
    second_moment,
    updated,
    vary,
    vary_published,
)

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, AxisValue]:
    """Adds the shapes of the four parameters."""
    return derive_sharded(ax) | {"param_shapes": parameter_shapes(ax)}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Scaled normal parameters: the slices of all ranks make one whole network, whose every layer has a gradient."""
    batch = samples(make, partial(first_layer_of_shards, make)), make.normal("y_local")
    return (
        *batch,
        rank_shard(make, make.rank),
        first_moment(make, "exp_avg_shard"),
        second_moment(make, "exp_avg_sq_shard"),
    )


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Standard normal data; each rank slices its own whole vector, which is zero on all ranks but 0; moments 0."""
    import torch

    ax = make.ax
    stream = make.seeded(42 + 47_000 + 1_000_003 * make.trial)
    batch = published_batch(make, stream)
    flat = torch.cat([p.flatten() for p in published_parameters(make, stream)])
    shard = flat[ax.r * ax.part : (ax.r + 1) * ax.part].clone()
    return *batch, shard, torch.zeros_like(shard), torch.zeros_like(shard)


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """The axes of `vary`, with another decay in odd checks."""
    decay = ax.real("weight_decay") * (2.5 if draw.trial % 2 and not draw.timed else 1.0)
    return vary(ax, draw) | {"weight_decay": decay}


def published_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """The published constants; the decay is lost in rounding."""
    return vary_published(ax, draw) | {"weight_decay": 0.01}


CHANGE_AND_DECAY = (5.5e-2, 0.2)
"""The change's tolerance is wider than without weight decay, whose own rounding counts."""


def before(context: CheckContext) -> torch.Tensor:
    """The parameters before the step."""
    return context.tensor("flat_param_shard")


def cost(ax: Axes) -> Cost:
    """An all-gather of parameters, a reduce-scatter of gradients by the endpoints; own slices are read and written."""
    part = ax.itemsize * ax.part
    return Cost(
        matrix_flops=matrix_flops(ax),
        vector_flops=elementwise_flops(ax) + (17 + ax.W - 1) * ax.part,
        memory_bytes=batch_bytes(ax) + 6 * part,
        link_in_bytes=2 * (ax.W - 1) * part,
        # A switch that multicasts takes each rank's parameters once.
        link_out_bytes=ax.W * part if ax.W > 1 else 0,
    )


def least_work(ax: Axes) -> Cost:
    """One slice over the link each way."""
    part = ax.itemsize * ax.part if ax.W > 1 else 0
    return with_link(cost(ax), part, part)


PROBLEM = Problem(
    name="FSDPStep",
    upstream="47_fsdp_step_e2e",
    category="fsdp_zero",
    origin="PyTorch FSDP / DeepSpeed ZeRO stage 3 style training step",
    summary="A fully sharded training step of a two-layer MLP: gather the parameters, compute gradients on the local "
    "batch, reduce-scatter them, and update only the local slice of parameters and Adam state with weight decay.",
    weaknesses=(
        "Only rank 0's slice of the parameters is not zero, so gradients are 0 or below the tolerance: unchanged "
        "parameters and zero moments pass, without computing or communicating.",
        "Half of the ranks see no change of parameters and moments at all.",
    ),
    tags=("all_gather", "reduce_scatter", "gemm", "backward", "optimizer"),
    dtypes=("bfloat16",),
    # A decay of lr * weight_decay = 3 % shows in bfloat16.
    sizes={size: axes | {"lr": 3e-2, "weight_decay": 1.0} for size, axes in SIZES.items()},
    args=(
        Tensor("X_local", ("n", "d_in"), about="inputs: rows r*n .. (r+1)*n-1 of the global batch"),
        Tensor("y_local", ("n", "d_out"), about="their targets"),
        Tensor("flat_param_shard", ("part",), about="flat elements r*part .. (r+1)*part-1 of the parameters"),
        Scalar("param_shapes", "shapes", about="shapes of W1, b1, W2, b2, in flat order"),
        Tensor("exp_avg_shard", ("part",), about="first moment of the same elements"),
        Tensor("exp_avg_sq_shard", ("part",), about="second moment of the same elements"),
        Scalar("lr", "float", about="step size"),
        Scalar("beta1", "float", about="decay of the first moment"),
        Scalar("beta2", "float", about="decay of the second moment"),
        Scalar("eps", "float", about="added to the root of the second moment"),
        Scalar("weight_decay", "float", about="decoupled decay, times lr"),
        Scalar("step", "int", about="number of this step, from 1"),
    ),
    outputs=(
        Output(
            "theta", ("part",), check=updated(before, by_parameter, rel=CHANGE_AND_DECAY), about="updated parameters"
        ),
        Output("m", ("part",), check=averaged_gradient(by_parameter), about="updated first moment"),
        Output("v", ("part",), check=averaged_square(by_parameter), about="updated second moment"),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, robust_vary),
    published=Trials(published_inputs, published_vary),
    cost=cost,
    least_work=LeastWork(
        "A rank's new slice depends on all gradients of it, and other slices on its own parameters: one slice in, one "
        "out. Where the products are made is open.",
        work=least_work,
    ),
)
