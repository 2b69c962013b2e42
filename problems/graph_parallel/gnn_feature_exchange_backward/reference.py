import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    grad_output: torch.Tensor,
    seed_inverse_ids: torch.Tensor,
    seed_size: int,
    counts_sent: list[int],
    counts_received: list[int],
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Sends gradient rows back to the ranks that own their seeds, and adds up the rows of each seed.

    Both lists are rotated: entry i belongs to rank (r + i) mod n, entry 0 to this rank itself.

    Args:
        grad_output: (sum of counts_sent, D), gradients of the rows that this rank had received, in order of i.
        seed_inverse_ids: (sum of counts_received,), seed of each row that arrives, in 0 .. seed_size - 1.
        seed_size: rows of the result (S); may differ by rank.
        counts_sent: n numbers, rows sent to rank (r + i) mod n.
        counts_received: n numbers, rows received from rank (r + i) mod n.
        group: None means all ranks.

    Returns:
        (S, D), row s is the sum of the arriving rows t with seed_inverse_ids[t] = s, 0 where there are none.
    """
    n, r = dist.get_world_size(group), dist.get_rank(group)
    D = grad_output.shape[1]
    G = grad_output.new_empty(sum(counts_received), D)

    # Chunk i belongs to rank (r + i) mod n, so rank p's chunk is number (p - r) mod n.
    rotated = [(p - r) % n for p in range(n)]
    sent, received = grad_output.split(counts_sent), G.split(counts_received)
    if G.is_cuda:
        dist.all_to_all([received[i] for i in rotated], [sent[i] for i in rotated], group=group)
    else:  # gloo has no list form
        flat = torch.empty_like(G)
        splits_in, splits_out = [counts_received[i] for i in rotated], [counts_sent[i] for i in rotated]
        dist.all_to_all_single(flat, torch.cat([sent[i] for i in rotated]), splits_in, splits_out, group=group)
        for i, chunk in zip(rotated, flat.split(splits_in), strict=True):
            received[i].copy_(chunk)

    result = grad_output.new_zeros(seed_size, D)
    return result.index_add_(0, seed_inverse_ids, G)
