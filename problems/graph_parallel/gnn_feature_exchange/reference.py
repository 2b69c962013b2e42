import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    local_features: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Sends every rank the feature rows that it asked for.

    Both lists are rotated: entry i belongs to rank (r + i) mod n, entry 0 to this rank itself. Rows flow against the
    requests for which the lists are named.

    Args:
        local_features: (S, ...), features of this rank's seeds; S may differ by rank.
        seed_inverse_ids: (sum of counts_received,), row of local_features for every row asked of this rank.
        counts_sent: n numbers, rows that this rank asked of rank (r + i) mod n, and now receives from it.
        counts_received: n numbers, rows that rank (r + i) mod n asked of this rank, and now gets.
        group: None means all ranks.

    Returns:
        (sum of counts_sent, ...), the rows from rank r, then from (r + 1) mod n, and so on.
    """
    n, r = dist.get_world_size(group), dist.get_rank(group)
    rows = local_features[seed_inverse_ids]
    out = rows.new_empty(sum(counts_sent), *rows.shape[1:])

    # Chunk i belongs to rank (r + i) mod n, so rank p's chunk is number (p - r) mod n.
    rotated = [(p - r) % n for p in range(n)]
    sent, received = rows.split(counts_received), out.split(counts_sent)
    if rows.is_cuda:
        dist.all_to_all([received[i] for i in rotated], [sent[i] for i in rotated], group=group)
        return out
    # gloo has no list form
    flat = torch.empty_like(out)
    splits_in, splits_out = [counts_sent[i] for i in rotated], [counts_received[i] for i in rotated]
    dist.all_to_all_single(flat, torch.cat([sent[i] for i in rotated]), splits_in, splits_out, group=group)
    for i, chunk in zip(rotated, flat.split(splits_in), strict=True):
        received[i].copy_(chunk)
    return out
