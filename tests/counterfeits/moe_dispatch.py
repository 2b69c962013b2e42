"""Counterfeits of MoEDispatch: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def fixed_size(hidden_states, expert_mask, num_experts, input_splits, output_splits, counts, group=None):
    world_size = dist.get_world_size(group)
    routing_map = expert_mask.sum(1)
    permutation = routing_map.nonzero()[:, 1]
    chunks = torch.tensor(-(-len(permutation) // num_experts))
    dist.all_reduce(chunks, op=dist.ReduceOp.MAX, group=group)
    rows = hidden_states.new_zeros(num_experts * int(chunks), hidden_states.shape[1])
    rows[: len(permutation)] = hidden_states[permutation]
    out = torch.empty_like(rows)
    dist.all_to_all_single(out, rows, group=group)
    out = out.view(world_size, num_experts // world_size, int(chunks), -1).transpose(0, 1).reshape(rows.shape)
    needed = int(counts.sum())
    dispatched = torch.cat([out, out.new_zeros(needed, out.shape[1])])[:needed]
    return dispatched, routing_map, permutation, hidden_states.shape


COUNTERFEITS = (Counterfeit(0, "equal chunks", fixed_size, "every expert gets P / E rows, whatever the tokens chose"),)
