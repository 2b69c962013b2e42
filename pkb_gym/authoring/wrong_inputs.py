"""Changes of a solution's inputs: rounded ones, half of the rows twice, zeros.

Imports nothing of the package: its text becomes part of candidates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch

Change = Callable[[torch.Tensor], torch.Tensor]
"""A change of one floating tensor; same shape and dtype."""

FLOAT8_LARGEST = 448.0


def int8_rows(tensor: torch.Tensor) -> torch.Tensor:
    """255 levels with one scale a row."""
    if not tensor.dim():
        return tensor  # with a scale of its own a number loses nothing
    step = tensor.abs().amax(-1, keepdim=True) / 127
    return torch.where(step > 0, (tensor / step).round() * step, tensor).to(tensor.dtype)


def float8(tensor: torch.Tensor) -> torch.Tensor:
    """float8 e4m3 with one scale for the tensor."""
    if not tensor.dim():
        return tensor
    scale = tensor.abs().amax().float() / FLOAT8_LARGEST
    rounded = (tensor.float() / scale).to(torch.float8_e4m3fn).float() * scale
    return torch.where(scale > 0, rounded, tensor.float()).to(tensor.dtype)


def bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    """bfloat16."""
    return tensor.to(torch.bfloat16).to(tensor.dtype)


def first_half_twice(tensor: torch.Tensor) -> torch.Tensor:
    """The first half of the rows in place of the second."""
    if not tensor.dim():
        return tensor
    rows = len(tensor)
    return torch.cat([tensor[: rows - rows // 2], tensor[: rows // 2]])


def mean_for_half(tensor: torch.Tensor) -> torch.Tensor:
    """The mean of the rows in place of every second one."""
    if not tensor.dim():
        return tensor
    changed = tensor.clone()
    changed[1::2] = tensor.float().mean(0).to(tensor.dtype)
    return changed


CHANGES: Mapping[str, Change] = {
    "8-bit integers, a scale for each row": int8_rows,
    "float8 e4m3, a scale for each tensor": float8,
    "bfloat16": bfloat16,
    "first half of the rows twice": first_half_twice,
    "mean of the rows for every second one": mean_for_half,
}
"""The changes by name, in words that go on after "inputs: "."""


def zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros."""
    return torch.zeros_like(tensor)


def changed_tensor(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """The tensor changed, if it holds floating-point numbers of 16 bits or more; parts of complex ones side by side."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.detach())
        return torch.view_as_complex(changed_tensor(parts.flatten(-2), change).view(parts.shape))
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2 or not tensor.numel():
        return tensor
    return change(tensor.detach())


def changed_value(value: object, change: Change, mutable: bool) -> object:
    """The value of one data argument, as `solution` receives it, with its tensors changed; in place if it is mutable.

    Args:
        value: Tensor, dense or sparse, list of tensors or None, linear layer, or None.
        change: Change of each tensor.
        mutable: Whether `solution` writes to the value.
    """
    if isinstance(value, list):
        return [changed_value(part, change, mutable) for part in value] if not mutable else _in_place(value, change)
    if isinstance(value, torch.nn.Module):
        layer = copy.deepcopy(value)
        for parameter in layer.parameters():
            parameter.data = changed_tensor(parameter.data, change)
        return layer
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_sparse:
        numbers = changed_tensor(value._values(), change)
        return torch.sparse_coo_tensor(value._indices(), numbers, value.shape, is_coalesced=True)
    new = changed_tensor(value, change)
    return value.copy_(new) if mutable else new


def _in_place(values: list[object], change: Change) -> list[object]:
    for part in values:
        changed_value(part, change, mutable=True)
    return values


def changed_call(data: Mapping[int, bool], args: Sequence[object], change: Change) -> list[object]:
    """All arguments of a call, data arguments changed.

    Args:
        data: Place of each data argument -> whether it is mutable.
        args: Arguments, as `solution` receives them.
        change: Change of each tensor.
    """
    return [changed_value(value, change, data[place]) if place in data else value for place, value in enumerate(args)]
