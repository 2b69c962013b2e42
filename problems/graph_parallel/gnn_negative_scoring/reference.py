import torch
import torch.distributed as dist


def gather_rows(local: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Joins the rows of all ranks, (P_r, ...) on each, to (P, ...) in rank order."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if n == 1:
        return local
    sizes = torch.zeros(n, dtype=torch.int64, device=local.device)
    sizes[r] = len(local)
    dist.all_reduce(sizes, group=group)
    rows = sizes.tolist()
    out = local.new_empty(sum(rows), *local.shape[1:])
    copies = local.repeat(n, *[1] * (local.dim() - 1))
    dist.all_to_all_single(out, copies, rows, [len(local)] * n, group=group)
    return out


@torch.no_grad()
def solution(
    local_pos_scores: torch.Tensor,
    local_neg_scores: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Ranks the positives of all ranks, each among its own negatives.

    Scores are compared after a sigmoid that is rounded to their dtype, which makes ties of scores that differ.

    Args:
        local_pos_scores: (P_r,), score of each positive of this rank; P_r may differ by rank and be 0.
        local_neg_scores: (P_r, K), scores of its K negatives.
        group: None means all ranks.

    Returns:
        (P,) int64: for every positive, rank 0's first, 1 + the number of its negatives that are greater. A positive
        comes before the negatives that tie with it, though ties may be in any order; NaN counts as the greatest.
    """
    positives = gather_rows(local_pos_scores, group).view(-1, 1)
    negatives = gather_rows(local_neg_scores, group)
    scores = torch.sigmoid(torch.cat([positives, negatives], dim=1))
    order = scores.sort(dim=1, descending=True, stable=True).indices
    return (order == 0).int().argmax(dim=1) + 1
