"""The division of a machine's processors between what is timed and what works beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from pkb_gym.engine.hardware import gpus

TIMED_PER_RANK = 3
"""Processors of a rank while a block runs: two for its threads, one for its server of handovers."""

MIN_WORKING_SHARE = 1 / 2
"""Share of the processors that work must keep; on a machine with fewer, all processors are shared."""


@dataclass(frozen=True)
class Division:
    """The processors of a machine with GPUs.

    Attributes:
        timed: Processors that nothing but ranks and the evaluator runs on. Each rank has some of its own share, so that
            it finds fast ones whatever the others do.
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
    timed = frozenset(
        processor for rank in range(ranks) for processor in ordered[rank * share : rank * share + TIMED_PER_RANK]
    )
    working = frozenset(ordered) - timed
    if share < TIMED_PER_RANK or len(working) < MIN_WORKING_SHARE * len(ordered):
        return Division(frozenset(), frozenset())
    return Division(timed, working)


def working_processors() -> frozenset[int]:
    """The processors of this machine for compilers and race detectors; empty where these may use all."""
    return divide(sorted(os.sched_getaffinity(os.getpid())), len(gpus.names())).working
