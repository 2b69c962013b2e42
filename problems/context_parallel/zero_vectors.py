"""Queries and keys of which some are zero, which normalisation has to leave as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkb_gym.engine.problem import InputMaker

if TYPE_CHECKING:
    import torch

MAX_ZEROS = 4
"""Zero vectors of a rank."""


def normal_or_zero(make: InputMaker, name: str) -> torch.Tensor:
    """Standard normal vectors along the last dimension; one in sixteen is zero, 1 to `MAX_ZEROS` of them."""
    values = make.normal(name)
    vectors = values.view(-1, values.shape[-1])
    vectors[make.randint(0, len(vectors), max(1, min(MAX_ZEROS, len(vectors) // 16)))] = 0
    return values
