"""Runs host functions of CUDA libraries on emulated GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rank_emulator import Finding, Outcome, Schedule, World, compile_cuda

SEGMENT_BYTES = 1 << 16


@dataclass(frozen=True)
class Called:
    """How calls of a host function on all ranks ended.

    Attributes:
        outcome: Outcome of the run, as in `Run`.
        message: Description of the fault, "" after `Outcome.OK`.
        returned: Value that each rank's function returned.
        words: Content of each rank's segment, as 32-bit integers.
        findings: Findings of the race detector.
    """

    outcome: Outcome
    message: str
    returned: list[int]
    words: list[np.ndarray]
    findings: list[Finding]


class Library:
    """A CUDA library for emulated GPUs.

    Args:
        emulator: Path of the emulator.
        source: CUDA source. Its functions are called as `int name(int* out, int* peer, int rank, cudaStream_t stream)`,
            where `out` is the rank's segment and `peer` that of the next rank.
        flags: Further options of nvcc.
    """

    def __init__(self, emulator: Path, source: str, flags: Sequence[str] = ()) -> None:
        self._emulator = emulator
        self._content = compile_cuda(source, flags)

    def call(
        self, name: str, *, ranks: int = 1, policy: str = "together", seed: int = 1, detect_races: bool = True
    ) -> Called:
        """Calls a host function once on each rank, and waits for its work."""
        returned = [-1] * ranks
        with World(
            self._emulator,
            ranks,
            segment_bytes=SEGMENT_BYTES,
            schedule=Schedule(policy, seed),
            detect_races=detect_races,
            max_seconds=60,
        ) as world:

            def body(rank: int) -> None:
                function = getattr(world.load(self._content), name)
                function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
                peer = world.segments[(rank + 1) % ranks]
                returned[rank] = function(world.segments[rank], peer, rank, world.stream())
                world.synchronize()

            ended = world.run(body)
            assert not ended.errors, ended.errors
            words = [np.frombuffer(world.memory(rank), np.int32).copy() for rank in range(ranks)]
            return Called(ended.outcome, ended.message, returned, words, list(world.findings().findings))
