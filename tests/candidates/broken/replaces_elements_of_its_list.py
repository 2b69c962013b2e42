# expect: output_mismatch grad_tensors[0]; elements of `grad_tensors[0]` as they were before the call: write every element
# problem: ClipGradNorm
# Puts new tensors into the list, where the gradients themselves are to be scaled.
from __future__ import annotations

import torch
import torch.distributed as dist


def solution(
    grad_tensors: list[torch.Tensor | None],
    max_norm: float,
    norm_type: float = 2.0,
    fsdp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    powers = [torch.linalg.vector_norm(g.float(), norm_type) ** norm_type for g in grad_tensors if g is not None]
    total = torch.stack([torch.zeros(()), *powers]).sum()
    if fsdp_group is not None:
        dist.all_reduce(total, group=fsdp_group)
    norm = total ** (1 / norm_type)
    if norm > max_norm:
        grad_tensors[:] = [None if g is None else g * (max_norm / norm) for g in grad_tensors]
    return norm
