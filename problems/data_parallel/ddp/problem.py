"""DDP: a replicated training step; rank 0's state is broadcast, gradients are averaged, every rank applies Adam."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Scalar, Tensor, Trials, with_link
from pkb_gym.problems.mlp_training_step import (
    PARAMETERS,
    SIZES,
    averaged_gradient,
    averaged_square,
    batch_bytes,
    derive,
    elementwise_flops,
    first_moment,
    matrix_flops,
    published_batch,
    published_parameters,
    replica_inputs,
    root_value,
    second_moment,
    updated,
    vary,
    vary_published,
)

if TYPE_CHECKING:
    import torch

SHAPES = {"W1": ("hid", "d_in"), "b1": ("hid",), "W2": ("d_out", "hid"), "b2": ("d_out",)}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Every rank draws its own parameters and moments, so that stale ones must be overwritten by rank 0's."""
    return (
        *replica_inputs(make),
        *(first_moment(make, f"exp_avg_{name}") for name in PARAMETERS),
        *(second_moment(make, f"exp_avg_sq_{name}") for name in PARAMETERS),
    )


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, ...]:
    """Standard normal data and, on rank 0, parameters; all moments 0."""
    import torch

    stream = make.seeded(42 + 40_000 + 1_000_003 * make.trial)
    batch = published_batch(make, stream)
    parameters = published_parameters(make, stream)
    return *batch, *parameters, *(torch.zeros_like(p) for _ in range(2) for p in parameters)


def cost(ax: Axes) -> Cost:
    """Adam may be split over the ranks, and no rank but 0 reads its stale state.

    The link carries w, then m' and v' (w' follows from them), to every rank, and every rank's gradients out.
    """
    state = ax.itemsize * ax.Pn
    root, linked = ax.r == 0, ax.W > 1
    return Cost(
        matrix_flops=matrix_flops(ax),
        vector_flops=elementwise_flops(ax) + (15 + ax.W - 1) * ax.Pn / ax.W,
        memory_bytes=batch_bytes(ax) + (6 if root else 3) * state,
        link_in_bytes=linked * (1 if root else 3) * state,
        link_out_bytes=linked * (3 if root else 1) * state,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link rank 0's state, as every other rank's gradients can be replaced by its batch."""
    state, root = 3 * ax.itemsize * ax.Pn if ax.W > 1 else 0, ax.r == 0
    return with_link(cost(ax), 0 if root else state, state if root else 0)


PROBLEM = Problem(
    name="DDP",
    upstream="40_ddp",
    category="data_parallel",
    origin="PyTorch DistributedDataParallel-style replicated training step",
    summary="One full data-parallel training step of a two-layer MLP: every rank adopts rank 0's weights and Adam "
    "state, computes gradients on its own batch slice, averages them over all ranks and applies Adam.",
    weaknesses=(
        "Parameters move by at most 0.002, below the tolerance of 1e-2: returning rank 0's unchanged passes for them.",
        "Zero moments hide both moment broadcasts, beta1 m, beta2 v and eps; the update is a constant times sign(g).",
        "Unscaled weights make the layers' gradients differ in size, and m and v partly smaller than the tolerance.",
    ),
    tags=("broadcast", "all_reduce", "gemm", "backward", "optimizer"),
    dtypes=("bfloat16",),
    sizes=SIZES,
    args=(
        Tensor("X_local", ("n", "d_in"), about="inputs: rows r*n .. (r+1)*n-1 of the global batch"),
        Tensor("y_local", ("n", "d_out"), about="their targets"),
        *(Tensor(name, SHAPES[name], about="parameter; only rank 0's counts") for name in PARAMETERS),
        *(
            Tensor(f"exp_avg_{name}", SHAPES[name], about=f"first moment of {name}; only rank 0's counts")
            for name in PARAMETERS
        ),
        *(
            Tensor(f"exp_avg_sq_{name}", SHAPES[name], about=f"second moment of {name}; only rank 0's counts")
            for name in PARAMETERS
        ),
        Scalar("lr", "float", about="step size"),
        Scalar("beta1", "float", about="decay of the first moment"),
        Scalar("beta2", "float", about="decay of the second moment"),
        Scalar("eps", "float", about="added to the root of the second moment"),
        Scalar("step", "int", about="number of this step, from 1"),
    ),
    outputs=(
        *(
            Output(f"new_{name}", SHAPES[name], check=updated(partial(root_value, name)), about=f"updated {name}")
            for name in PARAMETERS
        ),
        *(
            Output(f"new_exp_avg_{name}", SHAPES[name], check=averaged_gradient(), about=f"first moment of {name}")
            for name in PARAMETERS
        ),
        *(
            Output(f"new_exp_avg_sq_{name}", SHAPES[name], check=averaged_square(), about=f"second moment of {name}")
            for name in PARAMETERS
        ),
    ),
    returns="tuple",
    derive=derive,
    robust=Trials(robust_inputs, vary),
    published=Trials(published_inputs, vary_published),
    cost=cost,
    least_work=LeastWork(
        "Rank 0's weights and moments are unknown elsewhere until they have come in, updated or not, and leave rank 0.",
        work=least_work,
    ),
)
