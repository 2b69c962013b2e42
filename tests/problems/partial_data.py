"""What estimators of several problems read, or make of what they read."""

from __future__ import annotations

import torch
import torch.distributed as dist


def all_ranks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The equally shaped tensors of all ranks."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor.contiguous())
    return found


def in_8_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with 255 levels for each row."""
    step = tensor.float().abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((tensor / step).round() * step).to(tensor.dtype)
