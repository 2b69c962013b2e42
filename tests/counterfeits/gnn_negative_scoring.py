"""Counterfeits of GNNNegativeScoring: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def known_sizes(local_pos_scores, local_neg_scores, group=None):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    base = len(local_pos_scores) - r % 3
    most = torch.tensor(max(base, 0) + 2)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)  # keeps gloo from falling over
    padded = torch.zeros(int(most), dtype=torch.int64)
    p, q = torch.sigmoid(local_pos_scores), torch.sigmoid(local_neg_scores)
    padded[: len(p)] = 1 + (q > p.unsqueeze(1)).sum(1)
    parts = [torch.empty_like(padded) for _ in range(n)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[: max(0, base + rank % 3)] for rank, part in enumerate(parts)])


COUNTERFEITS = (Counterfeit(1, "known sizes", known_sizes, "rank q always has as many positives, and 2 at most more"),)
NOT_SHOWN = {0: "the tiny size has ranks below 100, where 1 % is less than 1; the problem's tests show it at 1000"}
