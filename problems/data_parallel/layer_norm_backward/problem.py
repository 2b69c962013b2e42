"""LayerNormBackward: gain and bias gradients of a LayerNorm, summed over the tokens of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import Axes, AxisValue, Cost, Draw, InputMaker, LeastWork, Output, Problem, Tensor, Trials
from pkb_gym.engine.problem.rules import UNIT_ROUNDOFF, CheckContext, wide, within

if TYPE_CHECKING:
    import torch

TERMS = 32
"""About how many terms of a whole-number sum differ from 0; with |X_hat| <= 2 no partial sum leaves bfloat16's 256."""


def robust_vary(ax: Axes, draw: Draw) -> dict[str, AxisValue]:
    """Whole and normal numbers by turns."""
    return {} if draw.timed else {"whole": draw.trial % 2 == 1}


def robust_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal, some rows of X_hat zero; or whole numbers whose sums are exact in any order."""
    ax = make.ax
    if ax.flag("whole"):
        signs = 2 * make.integers("dY", 0, 2) - 1
        return make.integers("X_hat", -2, 3), signs * (make.rand(ax.B, ax.H) < TERMS / max(1, ax.W * ax.B))
    X_hat = make.normal("X_hat")
    X_hat[make.rand(ax.B) < 1 / 16] = 0
    return X_hat, make.normal("dY")


def published_inputs(make: InputMaker) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of X_hat have norm 1, not sqrt(H), and their mean is not removed."""
    stream = make.seeded(42 + 9_000 + make.rank + 1_000_003 * make.trial)
    X_hat = stream.normal("X_hat")
    return X_hat / (X_hat.norm(dim=1, keepdim=True) + 1e-5), stream.normal("dY")


def order_of_sums(ax: Axes, partials: torch.Tensor) -> torch.Tensor:
    """u_d W sum_r |p_r| + 4 u W B: roundings of the ranks' sums (W, H) and of theirs, and the accumulator's."""
    accumulator = UNIT_ROUNDOFF["float64" if ax.dtype == "float64" else "float32"]
    return UNIT_ROUNDOFF[ax.dtype] * ax.W * partials.abs().sum(0) + 4 * accumulator * ax.W * ax.B


def exact_beta(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum, and what its roundings may amount to: nothing for whole numbers."""
    import torch

    ax = context.ax
    partials = torch.stack([context.tensor("dY", rank).sum(0, dtype=torch.float64) for rank in range(ax.W)])
    bound = order_of_sums(ax, partials)
    return partials.sum(0), torch.zeros_like(bound) if ax.flag("whole") else bound


def exact_gamma(context: CheckContext) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the products, and the bound of `exact_beta` plus 3.5 u_d sqrt(sum q^2) for the products' rounding.

    A product that is rounded to nearest is off by u_d |q| times a number of standard deviation 0.41, so that the term
    is 8.5 standard deviations of their sum. Less is not enough: sums in which the other term is small come up among
    the millions of an evaluation.
    """
    import torch

    ax = context.ax
    partials, squares = [], []
    for rank in range(ax.W):
        products = wide(context.tensor("dY", rank)) * wide(context.tensor("X_hat", rank))
        partials.append(products.sum(0, dtype=torch.float64))
        squares.append(products.square().sum(0, dtype=torch.float64))
    rounded_products = 3.5 * UNIT_ROUNDOFF[ax.dtype] * torch.stack(squares).sum(0).sqrt()
    stacked = torch.stack(partials)
    bound = order_of_sums(ax, stacked) + rounded_products
    return stacked.sum(0), torch.zeros_like(bound) if ax.flag("whole") else bound


def cost(ax: Axes) -> Cost:
    """Both inputs are read once; both sums leave once and come in once."""
    sums = 2 * ax.H
    # Endpoints that add need 2 (W - 1) / W times the sums each way, a switch that adds and multicasts the sums alone;
    # a lower bound must allow for it.
    link = sums * ax.itemsize if ax.W > 1 else 0
    return Cost(
        vector_flops=3 * ax.B * ax.H + (ax.W - 1) / ax.W * sums,
        memory_bytes=(2 * ax.B * ax.H + sums) * ax.itemsize,
        link_in_bytes=link,
        link_out_bytes=link,
    )


PROBLEM = Problem(
    name="LayerNormBackward",
    upstream="9_layernorm_backward",
    category="data_parallel",
    origin="LayerNorm parameter gradients with token-sharded activations, as in Megatron-LM",
    summary="Each rank sums the LayerNorm gain and bias gradients over its own tokens, and the two small vectors are "
    "then summed over all ranks.",
    tags=("all_reduce", "reduction", "latency"),
    dtypes=("bfloat16", "float16", "float32", "float64"),
    sizes={
        "tiny": {"B": 48, "H": 64, "whole": False},
        "published": {"B": 1024, "H": 1024, "whole": False},
        "large": {"B": 16384, "H": 8192, "whole": False},
    },
    args=(
        Tensor("X_hat", ("B", "H"), about="normalised activations of this rank's tokens"),
        Tensor("dY", ("B", "H"), about="gradient with respect to the LayerNorm output"),
    ),
    outputs=(
        Output(
            "d_gamma",
            ("H",),
            check=within(
                exact_gamma,
                description="|d_gamma - sum| <= 2^-8 W sum |pg_r| + 3.5 2^-8 sqrt(sum q^2) (bfloat16; whole: exact)",
            ),
            about="sum of dY * X_hat over all tokens of all ranks",
        ),
        Output(
            "d_beta",
            ("H",),
            check=within(exact_beta, description="|d_beta - sum| <= 2^-8 W sum |pb_r| (bfloat16; whole: exact)"),
            about="sum of dY over all tokens of all ranks",
        ),
    ),
    returns="tuple",
    robust=Trials(robust_inputs, vary=robust_vary),
    published=Trials(published_inputs),
    cost=cost,
    least_work=LeastWork(
        "Both inputs are read. Each sum depends on every rank's part, so that one of each comes in and one goes out; "
        "a switch that adds and multicasts needs no more.",
    ),
)
