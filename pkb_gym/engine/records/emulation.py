"""Findings on emulated ranks, beside their outputs."""

from __future__ import annotations

from pkb_gym.engine.records.base import Record


class LinkTraffic(Record):
    """Bytes that the threads of one rank moved to and from the memory of another."""

    rank: int
    """Whose threads."""
    owner: int
    """Whose memory it is."""
    read_bytes_per_call: float
    """By loads, copies and atomics."""
    written_bytes_per_call: float
    """By stores, copies and atomics."""


class Emulation(Record):
    """How a candidate ran on emulated GPUs; nothing of it is a time."""

    schedules: tuple[str, ...]
    """Orders of execution of the checked calls, as "policy, seed"; they repeat with the same seed and key."""
    calls: int
    """Of each rank, under all of them."""
    warp_instructions: int
    """That were executed, on all ranks."""
    findings: tuple[str, ...] = ()
    """Of the detector, a line each; with `config.detect_races` alone, as all that follows."""
    advice: tuple[str, ...] = ()
    """Accesses that move more than they need, by line of the source."""
    links: tuple[LinkTraffic, ...] = ()
    """Between each two ranks."""
