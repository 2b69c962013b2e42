"""Counterfeits of MoECombine: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def fixed_size(rows, weights, ids, num_experts, to, back, counts, routing_map, mapping, shape, group=None):
    world_size, hidden_dim = dist.get_world_size(group), rows.shape[1]
    chunk = torch.tensor(-(-max(len(rows), len(mapping)) // num_experts))
    dist.all_reduce(chunk, op=dist.ReduceOp.MAX, group=group)
    padded = rows.new_zeros(num_experts * int(chunk), hidden_dim)
    padded[: len(rows)] = rows
    padded = padded.view(num_experts // world_size, world_size, int(chunk), -1).transpose(0, 1).reshape(padded.shape)
    returned = torch.empty_like(padded)
    dist.all_to_all_single(returned, padded, group=group)
    table = weights.new_zeros(shape[0], num_experts).scatter_add_(1, ids, weights)
    returned = returned[: len(mapping)] * table.T[routing_map].unsqueeze(1)
    out = rows.new_zeros(*shape)
    return out.scatter_add_(0, mapping.unsqueeze(1).expand(-1, hidden_dim), returned)


COUNTERFEITS = (Counterfeit(0, "equal chunks", fixed_size, "every chunk has P / E rows, whatever the tokens chose"),)
