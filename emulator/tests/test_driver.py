"""Copies, fills, pointers and contexts of the driver, and default streams of threads: programs of `driver.cu`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from rank_emulator import Ended, Findings, Outcome, RegionKind, Schedule, World, compile_cuda

SOURCE = Path(__file__).with_name("driver.cu")
BOTH = ("copies_of_all_kinds", "copies_between_contexts", "fills_of_words", "attributes_of_pointers", "null_stream")
BEHIND = "null_stream_behind_a_blocking_one"


def library(path: Path | None, *, per_thread: bool) -> bytes:
    if path is None:
        pytest.skip("needs the CUDA toolkit")
    return compile_cuda(SOURCE.read_text(), ["--default-stream", "per-thread"] if per_thread else [])


@pytest.fixture(scope="module")
def legacy(emulator_path: Path | None) -> bytes:
    return library(emulator_path, per_thread=False)


@pytest.fixture(scope="module")
def per_thread(emulator_path: Path | None) -> bytes:
    return library(emulator_path, per_thread=True)


def run(path: Path | None, library: bytes, name: str, seed: int = 0) -> tuple[Ended, Findings]:
    """Runs a program on two ranks."""
    assert path is not None
    schedule = Schedule("mixed", seed) if seed else Schedule()
    with World(path, 2, schedule=schedule, detect_races=True, max_seconds=60) as world:
        for rank, segment in enumerate(world.segments):
            world.add_region(rank, RegionKind.SCRATCH, "words", segment, 1 << 16, element_bytes=4)

        def body(rank: int) -> None:
            program = world.load(library)[name]
            program.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            failed = program(world.segments[rank], world.segments[1 - rank], rank, world.stream())
            assert not failed, f"driver.cu:{failed}"
            world.synchronize()

        return world.run(body), world.findings()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", [*BOTH, BEHIND])
def test_a_right_program_passes_in_silence(emulator_path: Path | None, legacy: bytes, name: str, seed: int) -> None:
    ended, found = run(emulator_path, legacy, name, seed)
    assert ended.outcome == Outcome.OK, (ended.message, ended.errors)
    assert [finding.message for finding in found.findings] == []


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", [*BOTH, "functions_by_name"])
def test_so_it_does_with_default_streams_of_threads(
    emulator_path: Path | None, per_thread: bytes, name: str, seed: int
) -> None:
    ended, found = run(emulator_path, per_thread, name, seed)
    assert ended.outcome == Outcome.OK, (ended.message, ended.errors)
    assert [finding.message for finding in found.findings] == []


def test_the_stream_of_a_thread_waits_for_no_other(emulator_path: Path | None, per_thread: bytes) -> None:
    ended, found = run(emulator_path, per_thread, BEHIND)
    assert ended.outcome == Outcome.OK, (ended.message, ended.errors)
    assert [finding.missing for finding in found.findings] == ["stream_order"]
