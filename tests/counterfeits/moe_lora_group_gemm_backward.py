"""Counterfeits of MoELoRAGroupGemmBackward: what the published check takes for right."""

import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def without_a_tail(*gradients_and_group):
    *gradients, group = gradients_and_group
    for gradient in gradients:
        whole = gradient.view(-1)[: gradient.numel() // 16 * 16]
        dist.all_reduce(whole, group=group)
    return tuple(gradients)


COUNTERFEITS = (Counterfeit(0, "vectors of 16 without a tail", without_a_tail, "all sizes are multiples of 16"),)
