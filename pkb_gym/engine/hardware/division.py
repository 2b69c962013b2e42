"""The division of a machine's processors between what is timed and what works beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pkb_gym.engine.hardware import gpus

FEWEST_TIMED, MOST_TIMED = 3, 6
"""Processors of a rank while a block runs: two for its threads, one for its server of handovers; further ones, so that
some are fast whatever other machines do on the same cores. At most half of them, so that work keeps as many; with fewer
all processors are shared."""


@dataclass(frozen=True)
class Division:
    """The processors of a machine with GPUs.

    Attributes:
        timed: Processors of ranks and of the evaluator, while a block runs; empty where these may use all. Each rank
            has some of its own share.
        working: Processors of compilers and of the race detector; empty where these may use all.
    """

    timed: frozenset[int]
    working: frozenset[int]


def divide(processors: Sequence[int], ranks: int) -> Division:
    """Divides processors; every evaluator of a machine finds the same.

    Args:
        processors: Numbers of the processors of this process.
        ranks: Number of ranks that are timed at once, which have the processors by neighbouring shares (`bind_rank`);
            0 for no division.
    """
    ordered = sorted(processors)
    share = len(ordered) // ranks if ranks else 0
    timed_of_share = min(MOST_TIMED, share // 2)
    if timed_of_share < FEWEST_TIMED:
        return Division(frozenset(), frozenset())
    timed = frozenset(
        processor for rank in range(ranks) for processor in ordered[rank * share : rank * share + timed_of_share]
    )
    return Division(timed, frozenset(ordered) - timed)


def division() -> Division:
    """The division of this machine's processors, as far as this process may use them; none without GPUs."""
    return divide(sorted(os.sched_getaffinity(os.getpid())), len(gpus.names()))
