import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    expert_mask: torch.Tensor,
    num_experts: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Counts how many tokens go from every rank to every expert.

    W and r are the size of the group and the rank in it; rank d hosts the L = E / W experts d*L .. (d+1)*L-1.

    Args:
        expert_mask: (E, K, T), entry [e, k, t] is 1 where slot k of local token t chose expert e; T may differ by rank.
        num_experts: E.
        group: the expert-parallel group, None for all ranks.

    Returns:
        Four tensors in host memory: input_splits (W,) int64, pairs (t, k) that this rank sends to each rank;
        output_splits (W,) int64, pairs that each rank sends to this one; tokens_per_local_expert (W, L), of the dtype
        that a sum over the mask has, pairs of each rank for each local expert; sum_per_local_expert (L,), their sum
        over ranks.
    """
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    local_experts = num_experts // world_size

    counts = expert_mask.sum(dim=(1, 2))
    input_splits = counts.reshape(world_size, local_experts).sum(dim=1).long().cpu()

    all_counts = counts.new_empty(world_size, num_experts)
    dist.all_gather_into_tensor(all_counts, counts, group=group)
    tokens_per_local_expert = all_counts[:, rank * local_experts : (rank + 1) * local_experts].contiguous()
    output_splits = tokens_per_local_expert.sum(dim=1).long().cpu()
    sum_per_local_expert = tokens_per_local_expert.sum(dim=0)

    # These two are ready once the stream has caught up.
    tokens_per_local_expert = tokens_per_local_expert.to("cpu", non_blocking=True)
    sum_per_local_expert = sum_per_local_expert.to("cpu", non_blocking=True)
    return input_splits, output_splits, tokens_per_local_expert, sum_per_local_expert
