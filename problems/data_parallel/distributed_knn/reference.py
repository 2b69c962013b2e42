import torch
import torch.distributed as dist


@torch.no_grad()
def solution(
    test_features_rank: torch.Tensor,
    train_features_rank_T: torch.Tensor,
    train_labels_rank: torch.Tensor,
    max_k: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each query of this rank, the k most similar training samples of all ranks.

    The similarity is the dot product, rounded to the features' dtype. Among equal ones any may be chosen, in any order.

    Args:
        test_features_rank: (Q, F), this rank's queries; Q may differ by rank and be 0.
        train_features_rank_T: (F, n), this rank's training samples as columns.
        train_labels_rank: (1, n) int64, their labels.
        max_k: k, at most n on every rank.
        group: None means all ranks; its ranks must be numbered as in the world.

    Returns:
        sims: (Q, k), the largest similarities, descending.
        labels: (Q, k) int64, the labels of their samples.

    Raises:
        ValueError: k is larger than n.
    """
    if max_k > train_labels_rank.shape[1]:
        raise ValueError(f"max_k={max_k} must be at most the {train_labels_rank.shape[1]} training samples of a rank")
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)

    for owner in range(world_size):
        # The owner's queries go to all ranks.
        shape = torch.tensor(test_features_rank.shape, device=test_features_rank.device)
        dist.broadcast(shape, src=owner, group=group)
        queries = test_features_rank if rank == owner else test_features_rank.new_empty(shape.tolist())
        dist.broadcast(queries, src=owner, group=group)

        # Each rank's best candidates come back.
        sims, indices = torch.topk(queries @ train_features_rank_T, max_k, dim=1)
        labels = train_labels_rank.expand(len(queries), -1).gather(1, indices)
        all_sims = [torch.empty_like(sims) for _ in range(world_size if rank == owner else 0)]
        dist.gather(sims, all_sims or None, dst=owner, group=group)
        all_labels = [torch.empty_like(labels) for _ in range(world_size if rank == owner else 0)]
        dist.gather(labels, all_labels or None, dst=owner, group=group)

        if rank == owner:
            best_sims, indices = torch.topk(torch.cat(all_sims, dim=1), max_k, dim=1)
            best_labels = torch.cat(all_labels, dim=1).gather(1, indices)
    return best_sims, best_labels
