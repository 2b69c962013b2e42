"""Findings on emulated ranks, beside their outputs."""

from __future__ import annotations

from typing import Literal

from pkb_gym.engine.records.base import Record


class LinkTraffic(Record):
    """Bytes that the threads of one rank moved to and from the memory of another."""

    rank: int
    """Rank of the threads."""
    owner: int
    """Rank of the memory."""
    read_bytes_per_call: float
    """Bytes of loads, copies and atomics in a call, on average."""
    written_bytes_per_call: float
    """Bytes of stores, copies and atomics in a call, on average."""


class DetectedError(Record):
    """A finding of the detector."""

    kind: str
    """Such as "race", "out_of_bounds" or "uninitialised_read"."""
    finding_class: Literal["unsynchronised", "weak_order", "benign"] | None = None
    """Class of a race: no flag or barrier leads from one access to the other ("unsynchronised", which fails); a flag
    does, without the release, acquire, scope or proxy that PTX asks for ("weak_order", which fails where a schedule
    shows wrong outputs, and where races are detected strictly); both store the same value ("benign"). None for
    others."""
    first: str | None = None
    """Line of the earlier access, such as "kernel.cu:12"; None where it is unknown or there is one access."""
    second: str | None = None
    """Line of the later access, or of the only one; None where it is unknown."""
    text: str
    """One line: both accesses, what is missing between them, and the remedy."""
    exposure: str | None = None
    """What a GPU would have to do for outputs to show the race; None for other findings."""

    def __str__(self) -> str:
        """The line, and behind it what would show the race."""
        return self.text if self.exposure is None else f"{self.text}. To show it, {self.exposure}"


class Emulation(Record):
    """The run of a candidate on emulated GPUs, without any times."""

    schedules: tuple[str, ...]
    """Orders of execution of the checked calls, as "policy, seed"; they repeat with the same seed and key."""
    calls: int
    """Calls of each rank, under all schedules."""
    warp_instructions: int
    """Warp instructions that were executed, on all ranks."""
    findings: tuple[DetectedError, ...] = ()
    """Findings of the detector, the worst first; unless `config.race_check` is "off", as all that follows."""
    advice: tuple[str, ...] = ()
    """Accesses that move more than they need, by line of the source."""
    links: tuple[LinkTraffic, ...] = ()
    """Traffic of each pair of ranks."""
