"""Counterfeits of UlyssesGatherHeadsScatterSeq: what the published check takes for right."""

import torch
import torch.distributed as dist

from pkb_gym.problems.context_parallel.ulysses_gather_heads_scatter_seq.reference import solution as reference
from tests.problems.counterfeit import Counterfeit


def fixed_dims(x, seq_dim, head_dim, group=None):
    return reference(x, *((1, 2) if x.ndim == 4 else (0, 1)), group)


def pads_with_the_last_position(x, seq_dim, head_dim, group=None):
    missing = -x.shape[seq_dim] % dist.get_world_size(group)
    last = x.narrow(seq_dim, x.shape[seq_dim] - 1, 1)
    return reference(torch.cat([x, *[last] * missing], dim=seq_dim), seq_dim, head_dim, group)


COUNTERFEITS = (
    Counterfeit(0, "sequence before heads", fixed_dims, "the dimensions are always 1 and 2"),
    Counterfeit(0, "pads with data", pads_with_the_last_position, "every legal W divides the sequence"),
)
