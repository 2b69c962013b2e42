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

    A rank's loss is E * sum over j < k and experts e of f[j, e] P[e], where f[j, e] is the share of tokens whose j-th
    choice is e, and P[e] the mean probability of e. All layers count as so many more tokens.

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
    selected_experts = torch.topk(routing_weights, top_k, dim=-1).indices
    expert_mask = F.one_hot(selected_experts, num_experts).float()

    if attention_mask is None:
        tokens_per_expert = expert_mask.mean(dim=0)
        prob_per_expert = routing_weights.mean(dim=0)
    else:
        layers = gate_logits.shape[0] // attention_mask.numel()
        weight = attention_mask.reshape(-1).repeat(layers)
        tokens_per_expert = (expert_mask * weight[:, None, None]).sum(dim=0) / weight.sum()
        prob_per_expert = (routing_weights * weight[:, None]).sum(dim=0) / weight.sum()

    loss = num_experts * (tokens_per_expert * prob_per_expert).sum()
    if dist.is_initialized():
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        loss = loss / dist.get_world_size()
    return loss
