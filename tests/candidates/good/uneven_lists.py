# expect: passed
# problem: MoEAllToAll
# until: time
# Lists of tensors of unequal sizes, which NCCL takes and gloo does not.
from __future__ import annotations

import torch
import torch.distributed as dist


def solution(
    local_tensor: torch.Tensor,
    input_split_sizes: list[int] | None = None,
    output_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    size = dist.get_world_size(group)
    if size == 1:
        return local_tensor.clone()
    even = [local_tensor.shape[0] // size] * size
    sent, received = input_split_sizes or even, output_split_sizes or even
    out = local_tensor.new_empty(sum(received), local_tensor.shape[1])
    work = dist.all_to_all(list(out.split(received)), list(local_tensor.split(sent)), group=group, async_op=True)
    work.wait()
    return out
