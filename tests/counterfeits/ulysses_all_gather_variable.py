"""Counterfeits of UlyssesAllGatherVariable: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.context_parallel.ulysses_all_gather_variable.reference import solution as reference
from tests.problems.counterfeit import Counterfeit

MAX_NUMEL = 1024 * 1024  # elements, as published


def own_length(x, gather_dim, group=None):
    W = dist.get_world_size(group)
    send = x.new_zeros(MAX_NUMEL)
    send[: x.numel()] = x.flatten()
    received = x.new_empty(W * MAX_NUMEL)
    dist.all_gather_into_tensor(received, send, group=group)
    return torch.cat([part[: x.numel()].view_as(x) for part in received.view(W, MAX_NUMEL)], dim=gather_dim)


def along_dim_0(x, gather_dim, group=None):
    return reference(x, 0, group)


COUNTERFEITS = (
    Counterfeit(0, "takes its own length for everyone's", own_length, "all lengths are equal"),
    Counterfeit(0, "joins along dimension 0", along_dim_0, "gather_dim is always 0"),
)
