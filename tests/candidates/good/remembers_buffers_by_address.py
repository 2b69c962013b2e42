# expect: passed
# Buffers are kept for each address of the argument, and hold its new contents whenever that returns.
import torch
import torch.distributed as dist

buffers: dict[int, list[torch.Tensor]] = {}


def solution(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.data_ptr() not in buffers:
        buffers[tensor.data_ptr()] = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    shards = buffers[tensor.data_ptr()]
    dist.all_gather(shards, tensor)
    return torch.stack([shard.float() for shard in shards]).sum(0).to(tensor.dtype)
