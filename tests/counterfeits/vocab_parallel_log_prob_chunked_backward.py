"""Counterfeits of VocabParallelLogProbChunkedBackward: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.vocab_parallel.vocab_parallel_log_prob_chunked_backward.reference import solution
from tests.problems.counterfeit import Counterfeit


def likeliest_token(vocab_parallel_logits, target, grad_output, tp_group=None, top_k=None, top_p=1.0, chunk_size=1):
    parts = [torch.empty_like(vocab_parallel_logits) for _ in range(dist.get_world_size(tp_group))]
    dist.all_gather(parts, vocab_parallel_logits.contiguous(), group=tp_group)
    likeliest = torch.cat(parts, dim=2).argmax(dim=2)
    return solution(vocab_parallel_logits, likeliest, grad_output, tp_group, top_k, top_p, chunk_size)


def both_filters(vocab_parallel_logits, target, grad_output, tp_group=None, top_k=None, top_p=1.0, chunk_size=1):
    return solution(vocab_parallel_logits, target, grad_output, tp_group, 10, 0.9, chunk_size)


def stored_gradient(vocab_parallel_logits, target, grad_output, tp_group=None, top_k=None, top_p=1.0, chunk_size=1):
    stored = torch.linspace(-1, 1, target.numel()).to(grad_output.dtype).view_as(grad_output)
    return solution(vocab_parallel_logits, target, stored, tp_group, top_k, top_p, chunk_size)


COUNTERFEITS = (
    Counterfeit(0, "likeliest token", likeliest_token, "the target always has the largest logit"),
    Counterfeit(1, "both filters, always", both_filters, "k = 10 and p = 0.9 never change"),
    Counterfeit(2, "stored gradient", stored_gradient, "the incoming gradient never changes"),
)
