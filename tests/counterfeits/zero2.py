"""Counterfeits of ZeRO2: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.fsdp_zero.zero2.reference import solution as right
from tests.problems.counterfeit import Counterfeit


def unchanged_parameters(X, y, W1, b1, W2, b2, *rest):
    outputs = right(X, y, W1, b1, W2, b2, *rest)
    parameters = [p.clone() for p in (W1, b1, W2, b2)]
    for p in parameters:
        dist.broadcast(p, src=0)
    return *parameters, *outputs[4:]


def moments_from_zero(X, y, W1, b1, W2, b2, m, v, *constants):
    return right(X, y, W1, b1, W2, b2, torch.zeros_like(m), torch.zeros_like(v), *constants)


COUNTERFEITS = (
    Counterfeit(0, "unchanged parameters", unchanged_parameters, "they move by at most 0.002, below 1e-2"),
    Counterfeit(1, "moments from zero", moments_from_zero, "both moments are zero before the step"),
)
