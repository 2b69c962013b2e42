"""Streams, events, memory of the host, dependent launches and words in a stream's order: programs of `streams.cu`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from emulator.tests.two_ranks import run
from rank_emulator import Outcome, World, compile_cuda

SOURCE = Path(__file__).with_name("streams.cu")
NO_ORDER = "two streams of one rank, which nothing orders: wait for an event"
DEFAULT_STREAM = "was launched on the default stream: use the call's stream"
HOST = "host code touches the memory of work that it has enqueued"
OVERLAP = "lets it overlap the kernels before it: call cudaGridDependencySynchronize()"
RELEASE = "is stored without release order"

RIGHT = [
    "pageable_source_is_reused",
    "large_pageable_source_is_reused",
    "rows_of_pageable_source_are_reused",
    "pageable_target_is_complete",
    "kernels_read_what_the_host_has_written",
    "synchronous_copies_to_the_host_wait",
    "pointers_have_kinds",
    "fill_ahead_of_other_streams",
    "device_copy_and_a_wait",
    "blocking_stream_and_default_stream",
    "default_stream_after_a_wait",
    "waits_for_the_default_stream",
    "event_recorded_again_elsewhere",
    "event_never_recorded",
    "fork_and_join_in_a_graph",
    "fork_that_is_not_joined",
    "stream_beside_a_capture",
    "host_sees_an_event_by_query",
    "dependent_with_wait",
    "dependent_whose_first_thread_waits",
    "dependent_reads_what_came_before_both",
    "kernel_after_dependents",
    "dependent_after_a_copy",
    "dependent_begins_at_the_trigger",
    "written_word_is_a_flag",
    "stream_waits_for_a_word",
    "stream_waits_in_a_circle",
    "released_flag_of_a_later_kernel",
    "errors_have_texts",
    "functions_by_name_are_those_of_the_table",
    "pools_count_bytes",
    "hints_change_nothing",
]
"""They pass their own checks, and the detector finds nothing, even if it is strict."""

WRONG = {
    "pinned_source_is_read_later": HOST,
    "pinned_target_needs_a_wait": HOST,
    "registered_memory_is_pinned": HOST,
    "device_copy_does_not_wait": NO_ORDER,
    "default_stream_beside_that_of_the_call": DEFAULT_STREAM,
    "event_of_the_wrong_record": NO_ORDER,
    "graph_reads_beside_its_branch": NO_ORDER,
    "dependent_without_wait": OVERLAP,
    "dependent_of_a_kernel_without_trigger": OVERLAP,
    "dependent_that_waits_too_late": OVERLAP,
    "dependent_of_a_dependent_reads_the_first": OVERLAP,
    "written_word_before_the_data": "no flag or barrier leads from",
    "written_word_without_barrier": RELEASE,
}
"""Program -> words of the finding."""

STRICTLY_WRONG = {
    "relaxed_flag_of_a_later_kernel": RELEASE,
}
"""Right by what GPUs do at the end of a kernel, and wrong to the letter of PTX's memory model."""

ENDLESS = {
    "stream_waits_for_ever": "rank 0, stream: waits in cuStreamWaitValue32",
    "dependent_without_trigger_begins_at_the_end": "kernel waits_for_its_dependent",
}
"""Program -> words of the deadlock's message."""


@pytest.fixture(scope="module")
def library(emulator_path: Path | None) -> bytes:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return compile_cuda(SOURCE.read_text())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes_in_silence(emulator_path: Path | None, library: bytes, name: str, seed: int) -> None:
    ended, found = run(emulator_path, library, name, seed, strict=True)
    assert ended.outcome == Outcome.OK, (ended.message, ended.errors)
    assert [finding.message for finding in found.findings] == []


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_found(emulator_path: Path | None, library: bytes, name: str, seed: int) -> None:
    ended, found = run(emulator_path, library, name, seed)
    assert ended.outcome == Outcome.OK, (ended.message, ended.errors)
    assert any(WRONG[name] in finding.message for finding in found.findings), found.findings


@pytest.mark.parametrize("name", STRICTLY_WRONG)
def test_the_letter_of_the_model_is_an_option(emulator_path: Path | None, library: bytes, name: str) -> None:
    ended, found = run(emulator_path, library, name)
    assert ended.outcome == Outcome.OK and found.findings == (), (ended.errors, found.findings)
    _, found = run(emulator_path, library, name, strict=True)
    assert STRICTLY_WRONG[name] in found.findings[0].message


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_wait_is_a_deadlock(emulator_path: Path | None, library: bytes, name: str) -> None:
    ended, _ = run(emulator_path, library, name)
    assert ended.outcome == Outcome.DEADLOCK and ENDLESS[name] in ended.message, ended.message


def test_the_name_of_a_lacking_function_is_printed(
    emulator_path: Path | None, library: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, _ = run(emulator_path, library, "lacking_function_is_null")
    assert ended.outcome == Outcome.OK, ended.errors
    assert capfd.readouterr().err.count("the emulated driver has no cuTexObjectCreate: its address is null") == 1


def test_an_early_dependent_shows_old_data(emulator_path: Path | None, library: bytes) -> None:
    """The kernel after a trigger runs beside the one before: without the wait its outputs are wrong, too."""
    assert emulator_path is not None
    with World(emulator_path, 1) as world:

        def body(rank: int) -> None:
            program = world.load(library).dependent_without_wait
            program.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
            assert program(world.segments[0], world.segments[0], rank, world.stream()) == 0
            world.synchronize()

        assert world.run(body).outcome == Outcome.OK
        words = np.frombuffer(world.memory(0), np.int32)
        assert words[0] == 100 and 0 in words[256:320]
        del words
