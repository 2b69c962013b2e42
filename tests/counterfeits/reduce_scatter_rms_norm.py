"""Counterfeits of ReduceScatterRMSNorm: what the published check takes for right."""

import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def sum_without_eps(rs_input_1d, gamma, eps):
    shard = rs_input_1d.new_empty(rs_input_1d.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(shard, rs_input_1d)
    rows = shard.view(-1, gamma.numel()).float()
    return (rows * rows.square().mean(-1, keepdim=True).rsqrt() * gamma.float()).to(rs_input_1d.dtype)


COUNTERFEITS = (
    Counterfeit(0, "no division, no eps", sum_without_eps, "a scale changes nothing where eps is far below the rows"),
)
