"""torch.distributed on gloo, made to behave as on NCCL where the two differ.

Applied alike beside the baseline and beside candidates of the python dialect, so that one source runs on both devices:

- `reduce` leaves the buffers of the other ranks as they were (gloo leaves partial sums there);
- `all_gather_into_tensor` takes an output of shape (W, *shape) as well as one of shape (W * n, ...);
- `all_gather` takes tensors of unequal sizes, by one broadcast a rank, as NCCL does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def install() -> None:
    """Replaces the three functions; calling it again changes nothing."""
    if getattr(dist, "_pkb_gloo_compat", False):
        return
    _reduce, _all_gather, _into_tensor = dist.reduce, dist.all_gather, dist.all_gather_into_tensor

    def reduce(tensor: torch.Tensor, dst: int | None = None, *args: Any, **kwargs: Any) -> Any:
        keep = tensor.clone()
        root = dst
        if kwargs.get("group_dst") is not None:
            root = dist.get_global_rank(kwargs["group"], kwargs["group_dst"])
        work = _reduce(tensor, dst, *args, **kwargs)
        if dist.get_rank() == root:
            return work
        if work is not None:
            work.wait()
        tensor.copy_(keep)
        return work

    def all_gather_into_tensor(
        output_tensor: torch.Tensor, input_tensor: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        stacked = output_tensor.dim() == input_tensor.dim() + 1 and input_tensor.dim() > 0
        return _into_tensor(output_tensor.flatten(0, 1) if stacked else output_tensor, input_tensor, *args, **kwargs)

    def all_gather(
        tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False
    ) -> Any:
        if all(out.shape == tensor_list[0].shape for out in tensor_list):
            return _all_gather(tensor_list, tensor, group=group, async_op=async_op)
        work = None
        for source, out in enumerate(tensor_list):
            if dist.get_rank(group) == source:
                out.copy_(tensor)
            root = source if group is None else dist.get_global_rank(group, source)
            work = dist.broadcast(out, src=root, group=group, async_op=async_op)
        return work

    dist.reduce, dist.all_gather, dist.all_gather_into_tensor = reduce, all_gather, all_gather_into_tensor
    dist._pkb_gloo_compat = True  # type: ignore[attr-defined]  # a mark of ours
