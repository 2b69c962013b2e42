"""ZeRO2: a training step whose gradients and Adam state are split over the ranks."""

from __future__ import annotations

from functools import partial

from pkb_gym.engine.problem import Output, Problem, Scalar, Tensor, Trials
from pkb_gym.problems.mlp_training_step import (
    SHARDED_STATE_LEAST_WORK,
    SIZES,
    averaged_gradient,
    averaged_square,
    by_parameter,
    derive_sharded,
    published_sharded_state_inputs,
    root_value,
    sharded_state_cost,
    sharded_state_inputs,
    updated,
    vary,
    vary_published,
)

PROBLEM = Problem(
    name="ZeRO2",
    upstream="42_zero2_optimizer_shard_grad",
    category="fsdp_zero",
    origin="DeepSpeed ZeRO stage 2 (optimizer-state and gradient partitioning)",
    summary="A data-parallel MLP training step where gradients are reduce-scattered so that each rank holds only its "
    "1/W slice, updates that slice of the parameters with its slice of Adam state, and all-gathers the parameters.",
    weaknesses=(
        "Parameters move by at most 0.002, below the tolerance of 1e-2: returning rank 0's unchanged passes for them.",
        "Zero moments hide beta1 m, beta2 v and eps; the update is a constant times sign(g).",
    ),
    tags=("broadcast", "reduce_scatter", "all_gather", "gemm", "backward", "optimizer"),
    dtypes=("bfloat16",),
    sizes=SIZES,
    args=(
        Tensor("X_local", ("n", "d_in"), about="inputs: rows r*n .. (r+1)*n-1 of the global batch"),
        Tensor("y_local", ("n", "d_out"), about="their targets"),
        Tensor("W1", ("hid", "d_in"), about="parameter; only rank 0's counts"),
        Tensor("b1", ("hid",), about="parameter; only rank 0's counts"),
        Tensor("W2", ("d_out", "hid"), about="parameter; only rank 0's counts"),
        Tensor("b2", ("d_out",), about="parameter; only rank 0's counts"),
        Tensor("exp_avg_part", ("part",), about="first moment of flat elements r*part .. (r+1)*part-1"),
        Tensor("exp_avg_sq_part", ("part",), about="second moment of the same elements"),
        Scalar("lr", "float", about="step size"),
        Scalar("beta1", "float", about="decay of the first moment"),
        Scalar("beta2", "float", about="decay of the second moment"),
        Scalar("eps", "float", about="added to the root of the second moment"),
        Scalar("step", "int", about="number of this step, from 1"),
    ),
    outputs=(
        Output("new_W1", ("hid", "d_in"), check=updated(partial(root_value, "W1")), about="updated W1"),
        Output("new_b1", ("hid",), check=updated(partial(root_value, "b1")), about="updated b1"),
        Output("new_W2", ("d_out", "hid"), check=updated(partial(root_value, "W2")), about="updated W2"),
        Output("new_b2", ("d_out",), check=updated(partial(root_value, "b2")), about="updated b2"),
        Output("new_exp_avg_part", ("part",), check=averaged_gradient(by_parameter), about="first moment of the slice"),
        Output("new_exp_avg_sq_part", ("part",), check=averaged_square(by_parameter), about="second moment of it"),
    ),
    returns="tuple",
    derive=derive_sharded,
    robust=Trials(sharded_state_inputs, vary),
    published=Trials(published_sharded_state_inputs, vary_published),
    cost=sharded_state_cost,
    least_work=SHARDED_STATE_LEAST_WORK,
)
