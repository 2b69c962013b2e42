"""Broadcast and ReduceScatter in CUDA."""

from __future__ import annotations

from functools import partial

from pkb_gym.corpus.families.family import Family, Knobs
from pkb_gym.corpus.families.rooted import CUDA_CHOICES, cuda_handed_out, cuda_makes_sense
from pkb_gym.corpus.families.sums_cuda import CUDA_REDUCE_SCATTER_CHOICES, cuda_reduce_scatter
from pkb_gym.corpus.families.sums_cuda import cuda_makes_sense as sum_makes_sense


def broadcast(knobs: Knobs) -> str:
    """The source pushes its tensor to every rank, or every rank pulls it."""
    return cuda_handed_out(knobs, "send", lambda source, target: (target, source))


FAMILIES = (
    Family("Broadcast", "cuda", CUDA_CHOICES, broadcast, partial(cuda_makes_sense, loops_when="push")),
    Family("ReduceScatter", "cuda", CUDA_REDUCE_SCATTER_CHOICES, cuda_reduce_scatter, sum_makes_sense),
)
