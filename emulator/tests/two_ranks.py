"""Runs CUDA programs of two ranks, each of which has words of its own and its peer's."""

from __future__ import annotations

import ctypes
from pathlib import Path

from rank_emulator import Ended, Findings, RegionKind, Schedule, World


def run(path: Path | None, library: bytes, name: str, seed: int = 0, *, strict: bool = False) -> tuple[Ended, Findings]:
    """Runs a program on two ranks, with the race detector.

    Args:
        path: Path of the emulator.
        library: Compiled programs.
        name: Name of the program, a function of own words, the peer's, rank and stream; it returns a line that failed.
        seed: Seed of the schedule; 0 for the default one.
        strict: Whether weak orders are findings.
    """
    assert path is not None
    schedule = Schedule("mixed", seed) if seed else Schedule()
    with World(path, 2, schedule=schedule, detect_races=True, strict=strict, max_seconds=60) as world:
        for rank, segment in enumerate(world.segments):
            world.add_region(rank, RegionKind.SCRATCH, "words", segment, 1 << 16, element_bytes=4)

        def body(rank: int) -> None:
            program = world.load(library)[name]
            program.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            failed = program(world.segments[rank], world.segments[1 - rank], rank, world.stream())
            assert not failed, f"line {failed} of {name}"
            world.synchronize()

        return world.run(body), world.findings()
