"""Counterfeits of VocabParallelLogProbChunked: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.vocab_parallel.vocab_parallel_log_prob_chunked.reference import filter_logits, solution
from tests.problems.counterfeit import Counterfeit


def likeliest_token(vocab_parallel_logits, target, tp_group=None, top_k=None, top_p=1.0, chunk_size=1):
    parts = [torch.empty_like(vocab_parallel_logits) for _ in range(dist.get_world_size(tp_group))]
    dist.all_gather(parts, vocab_parallel_logits.contiguous(), group=tp_group)
    logits = torch.cat(parts, dim=2).flatten(0, 1)
    return filter_logits(logits, top_k, top_p).float().log_softmax(dim=1).amax(dim=1).view_as(target)


def both_filters(vocab_parallel_logits, target, tp_group=None, top_k=None, top_p=1.0, chunk_size=1):
    return solution(vocab_parallel_logits, target, tp_group, 10, 0.9, chunk_size)


COUNTERFEITS = (
    Counterfeit(0, "likeliest token", likeliest_token, "the target always has the largest logit"),
    Counterfeit(1, "both filters, always", both_filters, "k = 10 and p = 0.9 never change"),
)
NOT_SHOWN = {2: "chunks change messages alone, and the tiny size has a short last chunk itself"}
