"""CombinedShardedGemms: a two-layer SiLU MLP, input split by features, output split by rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, Cost, InputMaker, LeastWork, Output, Problem, Tensor, Trials, close, with_link
from pkb_gym.engine.problem.rules import all_of, norm_close

if TYPE_CHECKING:
    import torch

    Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def derive(ax: Axes) -> dict[str, int]:
    """Adds the columns h of the input, and the rows m of the output, that one rank has."""
    return {"h": ax.divide("H", by="W"), "m": ax.divide("M", by="W")}


def robust_inputs(make: InputMaker) -> Inputs:
    """All normal and different on every rank; weights scaled so that every layer's values are of order 1."""
    ax = make.ax
    return make.normal("x_local"), make.normal("W1", std=ax.H**-0.5), make.normal("W2", std=ax.F**-0.5)


def published_inputs(make: InputMaker) -> Inputs:
    """All standard normal, weights too."""
    stream = make.seeded(42 + 15_000 + make.rank + 1_000_003 * make.trial)
    return stream.normal("x_local"), stream.normal("W1"), stream.normal("W2")


def cost(ax: Axes) -> Cost:
    """Each rank computes its own rows alone, and needs just these of the others' columns."""
    foreign = (ax.W - 1) * ax.m * ax.h * ax.itemsize
    return Cost(
        matrix_flops=2 * ax.m * ax.H * ax.F + 2 * ax.m * ax.F * ax.H2,
        vector_flops=5 * ax.m * ax.F,
        memory_bytes=(ax.M * ax.h + ax.H * ax.F + ax.F * ax.H2 + ax.m * ax.H2) * ax.itemsize,
        link_in_bytes=foreign,
        link_out_bytes=foreign,
    )


def least_work(ax: Axes) -> Cost:
    """Over the link the shards' rows, or results where these are narrower."""
    others = ax.W - 1
    columns_in, columns_out = min(others * ax.h, ax.F, ax.H2), others * min(ax.h, ax.F, ax.H2)
    return with_link(cost(ax), ax.m * columns_in * ax.itemsize, ax.m * columns_out * ax.itemsize)


PROBLEM = Problem(
    name="CombinedShardedGemms",
    upstream="15_combined_sharded_gemms",
    category="tensor_parallel",
    origin="all-gather + GEMM and GEMM + reduce-scatter of Megatron-LM-type parallelism, joined",
    summary="A two-layer SiLU MLP whose input arrives split by features and whose output leaves split by rows.",
    weaknesses=(
        "Nothing exercises the reduce-scatter, and unscaled weights give outputs near 256, for which an absolute "
        "tolerance of 1e-2 means nothing.",
    ),
    tags=("all_gather", "reduce_scatter", "all_to_all", "gemm", "overlap"),
    dtypes=("bfloat16", "float16", "float32"),
    sizes={
        "tiny": {"M": 32, "H": 32, "F": 64, "H2": 32},
        "published": {"M": 1024, "H": 256, "F": 512, "H2": 256},
        "large": {"M": 16384, "H": 4096, "F": 14336, "H2": 4096},
    },
    args=(
        Tensor("x_local", ("M", "h"), about="feature columns r*h .. (r+1)*h-1 of X (M, H)"),
        Tensor("W1", ("H", "F"), about="this rank's first weight, not equal across ranks"),
        Tensor("W2", ("F", "H2"), about="this rank's second weight, not equal across ranks"),
    ),
    outputs=(
        Output(
            "y_local",
            ("m", "H2"),
            # The baseline rounds the hidden values to 16 bits, twice; a kernel may keep them in float32. That moves an
            # element by 2.5e-3 of the root mean square (standard deviation): of the 10^8 elements of an evaluation some
            # by 6 times as much. The norm of all together is held to what it moves them by on average.
            check=all_of((close(rtol=1e-2, atol_rms=3e-2), norm_close(5e-3))),
            about="rows r*m .. (r+1)*m-1 of silu(X W1) W2",
        ),
    ),
    derive=derive,
    robust=Trials(robust_inputs),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "The own rows of the result depend on these rows of every foreign shard: as many numbers come in as they "
        "have, or as the result has where that is less.",
        work=least_work,
    ),
)
