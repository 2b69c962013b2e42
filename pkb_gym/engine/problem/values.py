"""Values of arguments, and their dtypes."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Value: TypeAlias = "torch.Tensor | None | list[torch.Tensor | None] | tuple[torch.Tensor, torch.Tensor | None]"
"""The value of a data argument: a tensor, None, a list of tensors and None; a Linear's (weight, bias) or a Sparse's
(indices, values)."""


def tensors_made_on(device: str) -> AbstractContextManager[object]:
    """Has tensors that inputs and rules make without saying where made on a device, by its name in torch.

    Nothing on the CPU, where they are made anyway: torch would look at each call, which takes as long as small ones do.
    """
    import torch

    return contextlib.nullcontext() if device == "cpu" else torch.device(device)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
