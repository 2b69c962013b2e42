"""Copies, fills, pointers and contexts of the driver, and default streams of threads: programs of `driver.cu`."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.two_ranks import run
from rank_emulator import Outcome, compile_cuda

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
