"""Counterfeits of DDP: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.data_parallel.ddp.reference import solution as right
from tests.problems.counterfeit import Counterfeit


def unchanged_parameters(X, y, *rest):
    state, constants = list(rest[:12]), rest[12:]
    outputs = right(X, y, *state, *constants)
    parameters = [p.clone() for p in state[:4]]
    for p in parameters:
        dist.broadcast(p, src=0)
    return *parameters, *outputs[4:]


def moments_from_nothing(X, y, *rest):
    state, constants = list(rest[:12]), rest[12:]
    return right(X, y, *state[:4], *(torch.zeros_like(m) for m in state[4:]), *constants)


def sign_update(X, y, *rest):
    """A step of lr against the sign of the gradient, which is that of the first moment, at most steps."""
    state, (lr, *constants) = list(rest[:12]), rest[12:]
    outputs = right(X, y, *state, lr, *constants)
    parameters = [p.clone() for p in state[:4]]
    for p in parameters:
        dist.broadcast(p, src=0)
    return *(p - lr * m.sign() for p, m in zip(parameters, outputs[4:8], strict=True)), *outputs[4:]


def small_second_moments_lost(X, y, *rest):
    outputs = right(X, y, *rest)
    return *outputs[:8], *(torch.where(v < 1e-2, 0.0, v) for v in outputs[8:])


COUNTERFEITS = (
    Counterfeit(0, "unchanged parameters", unchanged_parameters, "they move by at most 0.002, below 1e-2"),
    Counterfeit(1, "moments from zero", moments_from_nothing, "all moments are zero before the step"),
    Counterfeit(1, "sign of the gradient", sign_update, "m / sqrt(v) is a constant times sign(g) from zero moments"),
    Counterfeit(2, "small second moments lost", small_second_moments_lost, "0.001 g^2 is often below the tolerance"),
)
