"""Counterfeits of HyenaCP: what the published check takes for right."""

from typing import Any

import torch

from pkb_gym.problems.context_parallel.hyena_cp.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def built_in_filters(*args: Any) -> torch.Tensor:
    """Does not read the values of h and conv_bias."""
    x1_seq, x2_seq, v_seq, h, conv_bias, *rest = args
    filters = torch.arange(h.numel(), device=h.device).to(h.dtype).view(h.shape) / h.shape[1]
    bias = torch.arange(conv_bias.numel(), device=h.device).to(h.dtype) / conv_bias.numel()
    return reference(x1_seq, x2_seq, v_seq, filters, bias, *rest)


def always_zigzag(*args: Any) -> torch.Tensor:
    """The layout is built in."""
    return reference(*args[:-1], True)


COUNTERFEITS = (
    Counterfeit(0, "built-in filters", built_in_filters, why="filters and bias are fixed formulas"),
    Counterfeit(2, "always zigzag", always_zigzag, why="the plain layout is never run"),
)
NOT_SHOWN = {1: "refuses right answers now and then; it accepts no wrong one that the others do not show"}
