# expect: passed
# problem: LoadBalancingLoss
# size: published
# The form of its origin: the mask meets each choice, and sums and quotients of probabilities are in the logits' dtype.
import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(gate_logits, num_experts, top_k=2, attention_mask=None):
    if isinstance(gate_logits, list | tuple):
        gate_logits = torch.cat(list(gate_logits))
    routing_weights = F.softmax(gate_logits, dim=-1)
    chosen = torch.topk(routing_weights, top_k, dim=-1).indices
    expert_mask = F.one_hot(chosen, num_experts).float()
    if attention_mask is None:
        tokens_per_expert = expert_mask.mean(0)
        prob_per_expert = routing_weights.sum(0) / len(routing_weights)
    else:
        layers = len(gate_logits) // attention_mask.numel()
        weight = attention_mask.flatten().repeat(layers)[:, None]
        tokens_per_expert = (expert_mask * weight[:, :, None]).sum(0) / weight.sum()
        prob_per_expert = (routing_weights * weight).sum(0) / weight.sum()
    loss = (tokens_per_expert * prob_per_expert).sum() * num_experts
    dist.all_reduce(loss)
    return loss / dist.get_world_size()
