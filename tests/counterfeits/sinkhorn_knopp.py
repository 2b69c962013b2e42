"""Counterfeits of SinkhornKnopp: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def flat(teacher_output, teacher_temp, n_masked, n_iterations=3, group=None):
    return torch.full(teacher_output.shape, 1 / teacher_output.shape[1])


def on_its_own(teacher_output, teacher_temp, n_masked, n_iterations=3, group=None):
    Q = torch.exp(teacher_output / teacher_temp)
    for _ in range(n_iterations):
        Q = Q / Q.sum(0)
        Q = Q / Q.sum(1, keepdim=True)
    return Q


def equal_batches(teacher_output, teacher_temp, n_masked, n_iterations=3, group=None):
    """Takes every rank to have as many samples as this one, so that N needs no exchange."""
    Q = torch.exp(teacher_output / teacher_temp)
    Z = Q.sum()
    dist.all_reduce(Z, group=group)
    Q = Q / Z * (dist.get_world_size(group) * len(teacher_output))
    for _ in range(n_iterations):
        u = Q.sum(0)
        dist.all_reduce(u, group=group)
        Q = Q / u
        Q = Q / Q.sum(1, keepdim=True)
    return Q


COUNTERFEITS = (
    Counterfeit(0, "constant 1 / K", flat, "every output is about 1 / K, and the absolute tolerance 1e-2"),
    Counterfeit(0, "no communication", on_its_own, "column sums of all ranks are about the same"),
    Counterfeit(1, "equal batches", equal_batches, "every rank has b samples, so that W * b is their number"),
)
NOT_SHOWN: dict[int, str] = {}
