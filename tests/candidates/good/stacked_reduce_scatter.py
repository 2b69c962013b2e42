# expect: passed
# problem: ReduceScatter
# A stacked input, which NCCL takes and gloo does not.
import torch
import torch.distributed as dist


def solution(tensor: torch.Tensor) -> torch.Tensor:
    blocks = tensor.view(dist.get_world_size(), -1, tensor.shape[1])
    out = torch.empty_like(blocks[0])
    dist.reduce_scatter_tensor(out, blocks)
    return out
