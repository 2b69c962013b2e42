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


class Roofline(Record):
    """The bound of one problem at one size on one machine, and how near baseline and candidate come to it."""

    bound_us: float
    """No correct kernel is faster than this."""
    binds: Resource | None
    """The resource whose time is the bound; None where there is no work."""
    times: ResourceTimes
    """Of each resource alone."""
    latency_floor_us: float | None
    """One link latency where anything crosses a link, else 0; None where unknown. Not part of the bound."""
    peaks: Rates
    """One rank's share of the hardware; memory is the mean over the tiers that hold this much data."""
    peaks_source: str
    """Where the peaks come from."""
    baseline_utilisation: float | None
    """bound / baseline's time; None where it was not timed."""
    candidate_utilisation: float | None
    """bound / candidate's time; None where it was not timed."""
    baseline_achieved: Rates | None
    """The least work over the baseline's time."""
    candidate_achieved: Rates | None
    """The least work over the candidate's time."""
