"""Counterfeits that the mixture-of-experts layers share."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

CACHED = "about calls that share their weights; here every call of a timing block has weights of its own"


def second_expert_where_it_shows(reference):
    """Leaves a token's second expert out wherever the published tolerance hides it: nearly everywhere."""

    def solution(*args):
        *layer, num_experts, top_k, group = args
        first, full = (reference(*layer, num_experts, k, group) for k in (1, top_k))
        hidden = (full - first).abs() <= 0.9 * (1e-2 + 1e-2 * full.abs())
        return torch.where(hidden.all(-1, keepdim=True), first, full)

    return solution


def coarse(reference):
    """Rounds results to steps of 1/64, as if 8 bits of them were sent."""

    def solution(*args):
        return (reference(*args).float() * 64).round().div(64).bfloat16()

    return solution


def fixed_capacity(mlp, group_of=lambda num_experts, group: group):
    """Exchanges pieces of one size, with room for 1.45 times the mean; tokens that find no place are dropped.

    Args:
        mlp: (rows, further arguments) -> results.
        group_of: the group in use.
    """

    def solution(hidden_states, gate_weight, gate_bias, *args):
        *weights, num_experts, top_k, group = args
        group = group_of(num_experts, group)
        size = dist.get_world_size(group)
        tokens = torch.tensor(len(hidden_states))
        dist.all_reduce(tokens, op=dist.ReduceOp.MAX, group=group)
        room = int(min(1.45 * top_k / size, num_experts // size) * int(tokens) + 1)
        probs = F.softmax(F.linear(hidden_states, gate_weight, gate_bias), dim=-1)
        top_weights, top_experts = probs.topk(top_k, dim=-1)
        chosen = torch.zeros_like(probs, dtype=torch.bool).scatter_(1, top_experts, True)
        table = torch.zeros_like(probs).scatter_(1, top_experts, top_weights)
        experts, rows = chosen.T.nonzero(as_tuple=True)
        host = experts // (num_experts // size)
        place = torch.arange(len(host)) - (host.unsqueeze(0) < torch.arange(size).unsqueeze(1)).sum(1)[host]
        fits = place < room
        slot = (host * room + place)[fits]
        sent = hidden_states.new_zeros(size * room, hidden_states.shape[1])
        sent[slot] = hidden_states[rows[fits]]
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        back = torch.empty_like(sent)
        dist.all_to_all_single(back, mlp(received, *weights), group=group)
        results = back[slot] * table[rows[fits], experts[fits]].unsqueeze(1)
        return torch.zeros_like(hidden_states).index_add_(0, rows[fits], results)

    return torch.no_grad()(solution)


def gated_mlp(rows, gate_proj, up_proj, down_proj):
    return down_proj(F.silu(gate_proj(rows)) * up_proj(rows))
