from functools import cache

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


@cache
def own_subgroup(num_experts: int) -> dist.ProcessGroup:
    """The subgroup of num_experts consecutive ranks that this rank is in; all ranks make all of them, once."""
    world_size = dist.get_world_size()
    if world_size % num_experts != 0:
        raise ValueError(f"{world_size} ranks cannot be cut into subgroups of {num_experts}")
    subgroups = [dist.new_group(list(range(first, first + num_experts))) for first in range(0, world_size, num_experts)]
    return subgroups[dist.get_rank() // num_experts]


@torch.no_grad()
def solution(
    hidden_states: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_bias: torch.Tensor | None,
    gate_proj: nn.Linear,
    up_proj: nn.Linear,
    down_proj: nn.Linear,
    num_experts: int,
    top_k: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """A mixture-of-experts layer with its experts spread over the ranks of a group.

    Fewer experts than ranks make several groups of consecutive ranks, each a complete, independent set of experts.
    W and r are the size of the group and the rank in it. Rank d hosts the L = E / W experts d*L .. (d+1)*L-1, which
    share one gated MLP, MLP_d(a) = down(silu(gate(a)) * up(a)). With p = softmax(gate_weight x + gate_bias) and s the
    ids of the K largest p, a token's result is the sum over k of p[s_k] MLP_{s_k // L}(x).

    Args:
        hidden_states: (T, H) or (..., H), this rank's tokens; T may differ by rank.
        gate_weight: (E, H), the router of this rank's tokens; differs by rank.
        gate_bias: (E,) or None.
        gate_proj: weight (I, H), bias (I,), of this rank's experts.
        up_proj: weight (I, H), bias (I,).
        down_proj: weight (H, I), bias (H,).
        num_experts: E, experts in the whole group.
        top_k: K, experts of one token.
        group: the expert-parallel group; None for all ranks or, with fewer experts than ranks, this rank's subgroup.

    Returns:
        (T, H), the layer's output for this rank's tokens, in their order.
    """
    if group is None and num_experts < dist.get_world_size():
        group = own_subgroup(num_experts)
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    local_experts = num_experts // world_size
    hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
    num_tokens, hidden_dim = hidden_states.shape

    # Route: the K largest probabilities of each token; pairs (expert, token) in ascending order.
    router_probs = F.softmax(F.linear(hidden_states, gate_weight, gate_bias), dim=-1)
    top_weights, top_experts = torch.topk(router_probs, top_k, dim=-1)
    weights = torch.zeros_like(router_probs).scatter_(1, top_experts, top_weights)
    chosen = torch.zeros_like(router_probs, dtype=torch.bool).scatter_(1, top_experts, True)
    pair_experts, pair_tokens = chosen.T.nonzero(as_tuple=True)

    # Exchange counts: the sizes of all pieces must be known on the host.
    counts = chosen.sum(dim=0)
    all_counts = counts.new_empty(world_size, num_experts)
    dist.all_gather_into_tensor(all_counts, counts, group=group)
    local_counts = all_counts[:, rank * local_experts : (rank + 1) * local_experts].cpu()
    input_splits = counts.reshape(world_size, local_experts).sum(dim=1).tolist()
    output_splits = local_counts.sum(dim=1).tolist()

    # Send tokens to their experts; sort what arrives from (source, expert) to (expert, source) order.
    rows = hidden_states[pair_tokens]
    if world_size > 1:
        received = rows.new_empty(sum(output_splits), hidden_dim)
        dist.all_to_all_single(received, rows, output_splits, input_splits, group=group)
        rows = received
    pieces = rows.split(local_counts.flatten().tolist())
    rows = torch.cat([pieces[s * local_experts + e] for e in range(local_experts) for s in range(world_size)])

    rows = down_proj(F.silu(gate_proj(rows)) * up_proj(rows))

    # Undo the sorting and send the results back.
    pieces = rows.split(local_counts.T.flatten().tolist())
    rows = torch.cat([pieces[e * world_size + s] for s in range(world_size) for e in range(local_experts)])
    if world_size > 1:
        returned = rows.new_empty(len(pair_tokens), hidden_dim)
        dist.all_to_all_single(returned, rows, input_splits, output_splits, group=group)
        rows = returned

    # Weigh each result and add it to its token.
    rows = rows * weights[pair_tokens, pair_experts].unsqueeze(1)
    out = rows.new_zeros(num_tokens, hidden_dim)
    return out.scatter_add_(0, pair_tokens.unsqueeze(1).expand(-1, hidden_dim), rows)
