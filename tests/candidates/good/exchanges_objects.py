# expect: passed
# problem: MoEAllToAll
# until: time
# Pickled pieces by all_gather_object, cut by TorchScript.
import io

import torch
import torch.distributed as dist


@torch.jit.script
def cut(x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    return x.split(sizes)


@torch.no_grad()
def solution(local_tensor, input_split_sizes=None, output_split_sizes=None, group=None):
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    sizes = list(input_split_sizes or [local_tensor.shape[0] // world_size] * world_size)
    pickled = io.BytesIO()
    torch.save([piece.clone() for piece in cut(local_tensor, sizes)], pickled)
    everything = [None] * world_size
    dist.all_gather_object(everything, pickled.getvalue(), group=group)
    return torch.cat([torch.load(io.BytesIO(pieces))[rank] for pieces in everything])
