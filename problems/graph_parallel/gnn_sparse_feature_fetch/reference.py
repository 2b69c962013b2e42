import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    local_embedding_shard: torch.Tensor,
    input_node_ids: torch.Tensor,
    proj_matrix: torch.Tensor,
    num_total_nodes: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Fetches rows of a table that is cut by rows over the ranks, and projects them.

    Args:
        local_embedding_shard: (min(S, T - r * S) or 0, D), global rows r * S and on, with S = ceil(T / n).
        input_node_ids: (Q,), global ids in 0 .. T - 1, repeats allowed; Q may differ by rank.
        proj_matrix: (D, O), this rank's own; the matrices of the ranks have nothing to do with each other.
        num_total_nodes: rows of the whole table (T).
        group: None means all ranks.

    Returns:
        (Q, O), row j is the table's row input_node_ids[j] times proj_matrix.
    """
    n, r = dist.get_world_size(group), dist.get_rank(group)
    D = local_embedding_shard.shape[1]
    S = -(-num_total_nodes // n)

    owner = input_node_ids // S
    order = torch.argsort(owner, stable=True)
    send_counts = torch.bincount(owner, minlength=n)
    recv_counts = torch.empty_like(send_counts)
    dist.all_to_all_single(recv_counts, send_counts, group=group)
    send, recv = send_counts.tolist(), recv_counts.tolist()

    asked = input_node_ids.new_empty(sum(recv))
    dist.all_to_all_single(asked, input_node_ids[order], recv, send, group=group)
    fetched = local_embedding_shard.new_empty(len(input_node_ids), D)
    dist.all_to_all_single(fetched, local_embedding_shard[asked - r * S], send, recv, group=group)
    rows = fetched[torch.argsort(order)]  # back in query order
    return rows @ proj_matrix
