"""AllGatherGemm: A is cut by columns over the ranks; each rank gathers A and multiplies it by its own B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Tensor, Trials, with_link
from pkb_gym.engine.problem.rules import all_of, close, norm_close

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the width of one rank's shard of A."""
    return {"Kl": ax.divide("K", by="W")}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Both standard normal and different on every rank and trial, so that no stored answer passes."""
    return make.normal("A_local"), make.normal("B")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of `robust`, from the published seed."""
    stream = make.seeded(42 + 12_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("A_local"), stream.normal("B")


def cost(ax: Axes) -> Cost:
    """One product, and every foreign shard of A over the link once."""
    shard = ax.M * ax.Kl
    return Cost(
        matrix_flops=2 * ax.M * ax.N * ax.K,
        memory_bytes=(shard + ax.K * ax.N + ax.M * ax.N) * ax.itemsize,
        link_in_bytes=(ax.W - 1) * shard * ax.itemsize,
        # A switch that multicasts takes each shard once; a lower bound must allow for it.
        link_out_bytes=shard * ax.itemsize if ax.W > 1 else 0,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link the shards, or what they add to a product where that has fewer columns."""
    others = ax.W - 1
    columns_in, columns_out = min(others * ax.Kl, ax.N), min(ax.Kl, others * ax.N)
    return with_link(cost(ax), ax.M * columns_in * ax.itemsize, ax.M * columns_out * ax.itemsize)


PROBLEM = Problem(
    name="AllGatherGemm",
    upstream="12_allgather_gemm",
    category="tensor_parallel",
    origin="all-gather + GEMM of Megatron-LM-type tensor parallelism",
    summary="Gather the column-sharded left matrix, then multiply it by this rank's right matrix.",
    tags=("all_gather", "gemm", "overlap"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"M": 32, "K": 64, "N": 48},
        "published": {"M": 1024, "K": 512, "N": 1024},
        "large": {"M": 8192, "K": 8192, "N": 7168},
    },
    args=(
        Tensor("A_local", ("M", "Kl"), about="columns r*Kl .. (r+1)*Kl-1 of A"),
        Tensor("B", ("K", "N"), about="this rank's right matrix"),
    ),
    # One bfloat16 unit, and sums over some parts of K that are rounded to it, as a library may split its product.
    outputs=(Output("out", ("M", "N"), check=all_of((close(rtol=2**-7, atol_rms=2**-6), norm_close(5e-3)))),),
    derive=derive,
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The product depends on every foreign shard of A: as many numbers come in as the shards have, or as the "
        "product has where that is less.",
        work=least_work,
    ),
)
