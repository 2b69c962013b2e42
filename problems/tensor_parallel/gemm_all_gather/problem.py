"""GemmAllGather: every rank multiplies its own A and B; the products are gathered side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import (
    Axes,
    Cost,
    InputMaker,
    LeastWork,
    Output,
    Problem,
    Tensor,
    Trials,
    close,
    product_numbers,
    with_link,
)
from pkb_gym.engine.problem.block_rules import blocks_close
from pkb_gym.engine.problem.rules import all_of

if TYPE_CHECKING:
    import torch


def derive(ax: Axes) -> dict[str, int]:
    """Adds the width of one rank's column block."""
    return {"n": ax.divide("N", by="W")}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal and different on every rank and trial, A too; B is scaled so that outputs are of order 1."""
    return make.normal("A"), make.normal("B", std=make.ax.K**-0.5)


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Both standard normal, from the published seed."""
    stream = make.seeded(42 + 14_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("A"), stream.normal("B")


def cost(ax: Axes) -> Cost:
    """The own product; every foreign block over the link once, as a product or as its two factors."""
    block = min(ax.M * ax.n, ax.K * (ax.M + ax.n))
    return Cost(
        matrix_flops=2 * ax.M * ax.K * ax.n,
        memory_bytes=(ax.M * ax.K + ax.K * ax.n + ax.M * ax.N) * ax.itemsize,
        link_in_bytes=(ax.W - 1) * block * ax.itemsize,
        # A switch that multicasts takes each block once; a lower bound must allow for it.
        link_out_bytes=block * ax.itemsize if ax.W > 1 else 0,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link the blocks, or their factors without what these have in common with others of the same product."""
    block = product_numbers(ax.M, ax.n, ax.K) * ax.itemsize
    return with_link(cost(ax), (ax.W - 1) * block, block if ax.W > 1 else 0)


PROBLEM = Problem(
    name="GemmAllGather",
    upstream="14_gemm_allgather",
    category="tensor_parallel",
    origin="column-parallel linear layer with gathered output, in the manner of Megatron-LM",
    summary="Every rank multiplies its own A by its own column shard of a weight matrix, then all ranks gather the "
    "column blocks into one wide matrix.",
    tags=("all_gather", "gemm", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"M": 32, "K": 64, "N": 64},
        "published": {"M": 1024, "K": 512, "N": 1024},
        "large": {"M": 8192, "K": 4096, "N": 16384},
    },
    args=(
        Tensor("A", ("M", "K"), about="this rank's own activations, not equal across ranks"),
        Tensor("B", ("K", "n"), about="column block r of the weight"),
    ),
    outputs=(
        Output(
            "C",
            ("M", "N"),
            # Products are rounded once, and moved: the norm leaves room for two more roundings, and none for 8 bits.
            check=all_of((close(rtol=1e-2, atol_rms=1e-2), blocks_close(3.5e-3, dim=1))),
            about="columns j*n .. (j+1)*n-1 are A_j B_j; the same on every rank",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Each foreign block comes in as the numbers that determine a product of that rank; the own one goes out once, "
        "as a switch may multicast it.",
        work=least_work,
    ),
)
