"""Counterfeits of MoEAllToAll: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def fixed_size(local_tensor, input_split_sizes=None, output_split_sizes=None, group=None):
    world_size = dist.get_world_size(group)
    rows = torch.tensor(len(local_tensor))
    dist.all_reduce(rows, op=dist.ReduceOp.MAX, group=group)
    padded = local_tensor.new_zeros(-(-int(rows) // world_size) * world_size, local_tensor.shape[1])
    padded[: len(local_tensor)] = local_tensor
    out = torch.empty_like(padded)
    dist.all_to_all_single(out, padded, group=group)
    needed = len(local_tensor) if output_split_sizes is None else sum(output_split_sizes)
    return torch.cat([out, out.new_zeros(needed, out.shape[1])])[:needed]


COUNTERFEITS = (Counterfeit(0, "equal pieces", fixed_size, "every piece has T / W rows, whatever the rank and trial"),)
