"""Counterfeits of KalmanFilterOptimizer: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def no_filter(H, error, weights, P, kalman_lambda, kalman_nue=0.9987):
    """Gathers the weights as they are; no gain, no reduction, no product."""
    lengths = [[]] * dist.get_world_size()
    dist.all_gather_object(lengths, [w.numel() for w in weights])
    gathered = [torch.empty(sum(blocks), dtype=torch.float64) for blocks in lengths]
    dist.all_gather(gathered, torch.cat([w.flatten() for w in weights]))
    every = [w.view(-1, 1) for g, blocks in zip(gathered, lengths, strict=True) for w in g.split(blocks)]
    next_lambda = torch.tensor(kalman_nue * kalman_lambda + 1 - kalman_nue, dtype=torch.float64)
    return every, [p / kalman_lambda for p in P], next_lambda


COUNTERFEITS = (
    Counterfeit(0, "no filter", no_filter, "weights move by at most 1e-3 and covariances by 1e-4, below 1e-2"),
)
