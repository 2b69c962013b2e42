"""Values of arguments, and their dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Value: TypeAlias = "torch.Tensor | None | list[torch.Tensor | None] | tuple[torch.Tensor, torch.Tensor | None]"
"""The value of a data argument: a tensor, None, a list of tensors and None; a Linear's (weight, bias) or a Sparse's
(indices, values)."""


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
