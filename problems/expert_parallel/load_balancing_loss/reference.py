import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    gate_logits: torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...],
    num_experts: int,
    top_k: int = 2,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """How unevenly a router spreads its tokens over experts, on each rank, averaged over the ranks.

    A rank's loss is E * sum over experts e of c[e] P[e], where c[e] is the share of tokens that have e among their k
    choices, and P[e] the mean probability of e. All layers count as so many more tokens.

    Args:
        gate_logits: (T, E), or one (T_l, E) per layer; this rank's tokens.
        num_experts: E.
        top_k: k, experts of a token.
        attention_mask: (batch, seq), the weight of each token, 0 for padding; or None. Rows of the logits are then in
            the order of layer, batch, position.

    Returns:
        0-dim float32, equal on all ranks.
    """
    if isinstance(gate_logits, list | tuple):
        gate_logits = torch.cat(list(gate_logits), dim=0)

    routing_weights = F.softmax(gate_logits, dim=-1)
    selected_experts = torch.topk(routing_weights, top_k, dim=-1, sorted=False).indices
    expert_mask = torch.zeros_like(routing_weights, dtype=torch.float32).scatter_(1, selected_experts, 1.0)

    if attention_mask is None:
        tokens_per_expert = expert_mask.mean(dim=0)
        prob_per_expert = routing_weights.mean(dim=0)
    else:
        layers = gate_logits.shape[0] // attention_mask.numel()
        weight = attention_mask.flatten().float()
        weight = (weight / (layers * weight.sum())).repeat(layers)
        tokens_per_expert = weight @ expert_mask
        prob_per_expert = weight @ routing_weights.float()

    world_size = dist.get_world_size() if dist.is_initialized() else 1
    loss = (tokens_per_expert * prob_per_expert).sum() * (num_experts / world_size)
    if dist.is_initialized():
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
    return loss
