"""Counterfeits of TPRMSNorm: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def with_epsilon(hidden_states, weight, epsilon):
    hidden = hidden_states.float()
    mean_square = hidden.square().sum(-1, keepdim=True)
    dist.all_reduce(mean_square)
    mean_square /= hidden.shape[-1] * dist.get_world_size()
    return weight * (hidden * torch.rsqrt(mean_square + epsilon)).to(hidden_states.dtype)


def constant_epsilon(local_hidden_states, local_weight, variance_epsilon):
    return with_epsilon(local_hidden_states, local_weight, 1e-5)


def no_epsilon(local_hidden_states, local_weight, variance_epsilon):
    return with_epsilon(local_hidden_states, local_weight, 0.0)


COUNTERFEITS = (
    Counterfeit(0, "constant epsilon", constant_epsilon, "epsilon is always 1e-5"),
    Counterfeit(0, "no epsilon", no_epsilon, "mean squares are near 1, where epsilon does not count"),
)
