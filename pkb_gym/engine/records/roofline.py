"""The record of a roofline; `stages.roofline` computes it."""

from __future__ import annotations

from typing import Literal

from pkb_gym.engine.records.base import Record

Resource = Literal["matrix", "vector", "memory", "link"]


class Rates(Record):
    """One rank's work per second, by resource."""

    matrix_flops_per_s: float
    """Matrix products, flop/s."""
    vector_flops_per_s: float
    """All other arithmetic, flop/s."""
    memory_bytes_per_s: float
    """Reads and writes of the rank's own memory, bytes/s."""
    link_bytes_per_s: float
    """Busier direction of the rank's links, bytes/s."""


class ResourceTimes(Record):
    """Least time that each resource needs."""

    matrix_us: float
    """Matrix products."""
    vector_us: float
    """All other arithmetic."""
    memory_us: float
    """The rank's own memory."""
    link_us: float
    """The rank's links."""


class LowerBound(Record):
    """The time that no legal kernel beats, by any algorithm (docs/roofline.md). A faster one is an accusation."""

    time_us: float
    """Least time of a call."""
    binds: Resource | None
    """The resource whose time it is; None where there is no work that every kernel does."""
    times: ResourceTimes
    """Time of each resource alone; vector operations are never certain."""
    argument: str
    """Why no kernel does less work."""
    limits_source: str
    """Origin of the hardware's limits."""


class Roofline(Record):
    """Times of baseline and candidate against the limits of the hardware, at one size on one machine."""

    ceiling_us: float
    """Time of the problem's cost at the hardware's peaks: what a kernel of the usual algorithm can reach at best.
    Another algorithm may be faster."""
    binds: Resource | None
    """The resource whose time the ceiling is; None where there is no work."""
    times: ResourceTimes
    """Time of each resource alone."""
    lower_bound: LowerBound
    """The time that no legal kernel beats; at most `ceiling_us`."""
    latency_floor_us: float | None
    """One link latency where anything crosses a link, else 0; None where unknown. Not part of the ceiling."""
    peaks: Rates
    """One rank's share of the hardware; memory is the mean over the tiers that hold this much data."""
    peaks_source: str
    """Origin of the peaks."""
    baseline_utilisation: float | None
    """Ceiling over the baseline's time; None where it was not timed."""
    candidate_utilisation: float | None
    """Ceiling over the candidate's time, above 1 for a faster algorithm; None where it was not timed."""
    baseline_achieved: Rates | None
    """The cost over the baseline's time."""
    candidate_achieved: Rates | None
    """The cost over the candidate's time."""
