import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    expert_outputs: torch.Tensor,
    routing_weights: torch.Tensor,
    selected_experts: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    routing_map: torch.Tensor,
    local_input_permutation_mapping: torch.Tensor,
    org_hidden_states_shape: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Sends the experts' outputs back to the ranks that own the tokens and adds them up there, weighted.

    W is the size of the group; rank d hosts the L = E / W experts d*L .. (d+1)*L-1. Splits are named as in the
    dispatch, whose way the rows go back.

    Args:
        expert_outputs: (R, H), rows by local expert, then source rank, then token.
        routing_weights: (T, K), of this rank's tokens; T may differ by rank.
        selected_experts: (T, K) int64, expert of each slot.
        num_experts: E.
        input_splits: W numbers, rows that come back from each rank, P in all.
        output_splits: W numbers, rows that go back to each rank, R in all.
        num_global_tokens_per_local_expert: (W, L) int64, rows of each rank for each local expert.
        routing_map: (E, T), nonzero where expert e was sent local token t.
        local_input_permutation_mapping: (P,) int64, token of each row that was sent.
        org_hidden_states_shape: T and H.
        group: the expert-parallel group, None for all ranks.

    Returns:
        (T, H), each token's rows, weighted and added.
    """
    world_size = dist.get_world_size(group)
    local_experts = num_experts // world_size

    # Sort from (expert, source) to (source, expert) order and send back.
    sources = torch.arange(world_size, device=expert_outputs.device).repeat(local_experts)
    counts = num_global_tokens_per_local_expert.T.flatten()
    source_of_row = sources.repeat_interleave(counts, output_size=len(expert_outputs))
    rows = expert_outputs[source_of_row.argsort(stable=True)]
    if world_size > 1:
        returned = rows.new_empty(sum(input_splits), rows.shape[1])
        dist.all_to_all_single(returned, rows, input_splits, output_splits, group=group)
        rows = returned

    # The weight of each row: pairs (expert, token) in ascending order.
    num_tokens, hidden_dim = org_hidden_states_shape
    weights = routing_weights.new_zeros(num_tokens, num_experts)
    weights.scatter_add_(1, selected_experts, routing_weights)
    experts, tokens = routing_map.nonzero_static(size=len(rows)).unbind(1)
    rows = rows * weights[tokens, experts].unsqueeze(1)

    out = rows.new_zeros(num_tokens, hidden_dim)
    return out.scatter_add_(0, local_input_permutation_mapping.unsqueeze(1).expand(-1, hidden_dim), rows)
