"""Counterfeits of FusedAdamAllGather: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.fsdp_zero.fused_adam_all_gather.reference import solution as right
from tests.problems.counterfeit import Counterfeit


def gathered(shard):
    out = shard.new_empty(dist.get_world_size() * shard.numel())
    dist.all_gather_into_tensor(out, shard)
    return out


def no_adam(g, w, m, v, lr, beta1, beta2, eps, step):
    return gathered(w)


def sign_of_gradient(g, w, m, v, lr, beta1, beta2, eps, step):
    return gathered(w - lr * g.sign())


def moments_from_zero(g, w, m, v, *constants):
    return right(g, w, torch.zeros_like(m), torch.zeros_like(v), *constants)


COUNTERFEITS = (
    Counterfeit(0, "no Adam", no_adam, "the update is at most 0.002, below 1e-2"),
    Counterfeit(0, "sign of the gradient", sign_of_gradient, "m / sqrt(v) is a constant times sign(g) from zero"),
    Counterfeit(1, "moments from zero", moments_from_zero, "both moments are zero before the step"),
)
