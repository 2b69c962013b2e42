"""Counterfeits of ClipGradNormEP: what the published check takes for right."""

import torch
import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def clip(grads, coef):
    for g in grads:
        if g is not None:
            g.mul_(coef)


def constant(dense, expert, max_norm, norm_type=2.0, ep_size=1, *groups):
    count = sum(g.numel() for g in dense if g is not None)
    scaled = sum(g.numel() for g in expert if g is not None) / ep_size**2
    # At the tiny size the norm spreads by 0.8 %; the 0.3 holds a few trials there and is nothing at the published one.
    total_norm = torch.tensor((dist.get_world_size() * (count + scaled)) ** 0.5 + 0.3)
    clip(expert, 1 / ep_size)
    clip([*dense, *expert], max_norm / total_norm)
    return total_norm


def untouched(dense, expert, max_norm, norm_type=2.0, ep_size=1, fsdp_group=None, ep_fsdp_group=None, ep_group=None):
    total = torch.zeros(2)
    for i, (grads, factor) in enumerate(((dense, 1.0), (expert, 1.0 / ep_size))):
        for g in grads:
            if g is not None:
                total[i] += (factor * g.float()).norm(norm_type) ** norm_type
    dist.all_reduce(total)
    return total.sum() ** (1 / norm_type)


COUNTERFEITS = (
    Counterfeit(0, "constant norm", constant, "gradients are standard normal: the norm follows from their number"),
    Counterfeit(1, "gradients untouched", untouched, "the gradients are not compared, the returned norm alone is"),
)
NOT_SHOWN = {2: "which branch a repeated call takes changes times, not results; timed calls get fresh gradients"}
