"""Levels of memory, and the least time that traffic through them takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Something per second."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MemoryTier:
    """One level of memory.

    Attributes:
        name: Name of the tier, such as "L2" or "HBM".
        capacity_bytes: Capacity in bytes; None where it holds everything (the last tier).
        bytes_per_s: Bandwidth of reads and writes together.
    """

    name: str
    capacity_bytes: Annotated[float, Field(gt=0)] | None
    bytes_per_s: Rate


def check_tiers(tiers: Sequence[MemoryTier]) -> None:
    """Raises ValueError unless the last tier, and it alone, holds everything."""
    endless = [tier.capacity_bytes is None for tier in tiers]
    if not endless or any(endless[:-1]) or not endless[-1]:
        raise ValueError(f"the last memory tier, and it alone, must have no capacity; got {tiers}")


def memory_s(tiers: Sequence[MemoryTier], size_bytes: float) -> float:
    """Least seconds for that much traffic: what fits a faster tier is counted at its rate, the rest at the next.

    So it stays a bound at the edge of a cache, where most, though not all, of the data may still lie in it. Tiers add
    up, as those of exclusive caches do; for inclusive ones that is generous.
    """
    seconds, left = 0.0, size_bytes
    for tier in tiers:
        here = left if tier.capacity_bytes is None else min(left, tier.capacity_bytes)
        seconds += here / tier.bytes_per_s
        left -= here
    return seconds


def shared_tiers(tiers: Sequence[MemoryTier], ranks: int) -> tuple[MemoryTier, ...]:
    """The share of each of so many ranks."""
    return tuple(
        MemoryTier(
            tier.name,
            None if tier.capacity_bytes is None else tier.capacity_bytes / ranks,
            tier.bytes_per_s / ranks,
        )
        for tier in tiers
    )
