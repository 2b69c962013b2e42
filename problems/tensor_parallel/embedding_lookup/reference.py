import torch
import torch.distributed as dist


@torch.no_grad()
def solution(indices: torch.Tensor, local_shard: torch.Tensor) -> torch.Tensor:
    """Looks up rows of an embedding table that is cut by rows over the ranks.

    Args:
        indices: (L,) int64, global row ids in [0, W * Vs) in any order, repeats allowed; L may differ by rank.
        local_shard: (Vs, E), global rows r*Vs .. (r+1)*Vs-1 of the table.

    Returns:
        (L, E), the rows of `indices` grouped by owner: first all that rank 0 owns, then rank 1, and so on, inside a
        group in the order in which the ids stand in `indices`.
    """
    world_size, rank = dist.get_world_size(), dist.get_rank()
    Vs, E = local_shard.shape

    owner = indices // Vs
    wanted = indices[torch.argsort(owner, stable=True)]
    send_counts = torch.bincount(owner, minlength=world_size)
    recv_counts = torch.empty_like(send_counts)
    dist.all_to_all_single(recv_counts, send_counts)
    send, recv = send_counts.tolist(), recv_counts.tolist()

    asked = indices.new_empty(sum(recv))
    dist.all_to_all_single(asked, wanted, recv, send)
    rows = local_shard[asked - rank * Vs]
    out = local_shard.new_empty(len(indices), E)
    dist.all_to_all_single(out, rows, send, recv)
    return out
