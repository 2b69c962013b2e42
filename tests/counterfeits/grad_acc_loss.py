"""Counterfeits of GradAccLoss: what the published check takes for right."""

import torch.distributed as dist

from tests.problems.counterfeit import Counterfeit


def share_of_the_tokens(loss, local_valid_tokens, global_valid_tokens, grad_normalized_loss, grad_loss_sum=None):
    loss_sum = loss * local_valid_tokens
    dist.all_reduce(loss_sum)
    share = local_valid_tokens / global_valid_tokens
    return loss_sum / global_valid_tokens, loss_sum, share.to(loss.dtype)


COUNTERFEITS = (
    Counterfeit(0, "constant gradients", share_of_the_tokens, "the incoming gradients are 1 and 0 in every trial"),
)
NOT_SHOWN: dict[int, str] = {}
