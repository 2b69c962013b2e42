"""Counterfeits of QuantizedGradAllReduce: what the published check takes for right."""

import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def plain_mean(flat_grad, block_size):
    total = flat_grad.float()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).to(flat_grad.dtype)


COUNTERFEITS = (
    Counterfeit(0, "no quantisation", plain_mean, "half a step of the codes is about the absolute tolerance of 0.01"),
)
