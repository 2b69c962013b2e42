"""Findings on emulated ranks, beside their outputs."""

from __future__ import annotations

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


class Emulation(Record):
    """How a candidate ran on emulated GPUs; nothing of it is a time."""

    schedules: tuple[str, ...]
    """Orders of execution of the checked calls, as "policy, seed"; they repeat with the same seed and key."""
    calls: int
    """Calls of each rank, under all schedules."""
    warp_instructions: int
    """Warp instructions that were executed, on all ranks."""
    findings: tuple[str, ...] = ()
    """Findings of the detector, a line each; with `config.detect_races` alone, as all that follows."""
    advice: tuple[str, ...] = ()
    """Accesses that move more than they need, by line of the source."""
    links: tuple[LinkTraffic, ...] = ()
    """Traffic of each pair of ranks."""
