"""Orders of execution: which rank's host thread or which warp goes on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Policy: TypeAlias = Literal[
    "together", "priorities", "hold_arrival", "hold_departure", "one_ahead", "mixed", "late_stores"
]
"""Scheduling policy: all in turn; by random priorities that change at few random points (PCT, Burckhardt et al. 2010);
all others before one rank's arrival; one rank's departure before those of the others; one rank whenever it can; one of
these by seed; by random priorities, where ordinary stores take effect late and in other orders."""

POLICIES: dict[Policy, int] = {
    "together": 0,
    "priorities": 1,
    "hold_arrival": 2,
    "hold_departure": 3,
    "one_ahead": 4,
    "mixed": 5,
    "late_stores": 6,
}
"""Policy -> `pkb_emu_policy` of `src/driver.h`."""

_VARIED: tuple[Policy, ...] = ("hold_arrival", "one_ahead", "hold_departure", "late_stores", "priorities")


@dataclass(frozen=True)
class Schedule:
    """The order of execution of a run; the same schedule repeats a run to the instruction.

    Attributes:
        policy: Scheduling policy.
        seed: Seed of all random choices of the policy, such as the rank that is held; 64 bits, unsigned.
    """

    policy: Policy = "together"
    seed: int = 0


def schedules(seed: int | str, world_size: int) -> Iterator[Schedule]:
    """An endless sequence of schedules that makes missing synchronisation visible.

    All ranks go together first: a run that is wrong then is wrong. Each policy follows in turn, with random seeds.

    Args:
        seed: Seed of the sequence.
        world_size: Number of ranks, at least 1. A single rank meets random priorities alone, with late stores or not.
    """
    draw = random.Random(seed)
    yield Schedule()
    for policy in itertools.cycle(_VARIED if world_size > 1 else ("late_stores", "priorities")):
        yield Schedule(policy, draw.getrandbits(32))
