import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    hidden_states: torch.Tensor,
    expert_mask: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Size]:
    """Sends a copy of every token to each rank that hosts one of its experts, once for each such expert.

    W is the size of the group; rank d hosts the L = E / W experts d*L .. (d+1)*L-1.

    Args:
        hidden_states: (T, H) or (..., H), this rank's tokens; T may differ by rank.
        expert_mask: (E, K, T), entry [e, k, t] is 1 where slot k of local token t chose expert e.
        num_experts: E.
        input_splits: W numbers, rows for each rank, P in all.
        output_splits: W numbers, rows from each rank, R in all.
        num_global_tokens_per_local_expert: (W, L) int64, received rows of each rank for each local expert.
        group: the expert-parallel group, None for all ranks.

    Returns:
        The received rows (R, H) by local expert, then source rank; the routing map (E, T), slots summed; the token of
        each sent row (P,) int64; the shape (T, H).
    """
    world_size = dist.get_world_size(group)
    local_experts = num_experts // world_size
    hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
    flat_shape = hidden_states.shape

    # One row for each pair (expert, token), in ascending order; a token that names an expert twice goes there once.
    routing_map = expert_mask.sum(dim=1)
    num_rows = sum(input_splits)
    torch._assert_async(
        routing_map.count_nonzero() == num_rows, f"input_splits add up to {num_rows}, not to the rows to send"
    )
    permutation = routing_map.nonzero_static(size=num_rows)[:, 1]
    rows = hidden_states[permutation]

    if world_size > 1:
        received = rows.new_empty(sum(output_splits), rows.shape[1])
        dist.all_to_all_single(received, rows, output_splits, input_splits, group=group)
        rows = received

    # Sort what arrives from (source, expert) to (expert, source) order.
    experts = torch.arange(local_experts, device=rows.device).repeat(world_size)
    expert_of_row = experts.repeat_interleave(num_global_tokens_per_local_expert.flatten(), output_size=len(rows))
    dispatched = rows[expert_of_row.argsort(stable=True)]
    return dispatched, routing_map, permutation, flat_shape
