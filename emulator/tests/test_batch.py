"""Batches: results in order, worlds that share nothing, and what one program can do to the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.tests.worlds import HEADER, entry
from rank_emulator import EmulatorError, Entry, Outcome, RegionKind, Schedule, World, batch, compile_cuda

SOURCE = """
#include <csignal>
#include <unistd.h>
#define PROGRAM(name) extern "C" int name(int** all, int rank, int size, cudaStream_t stream)
__device__ int counter;
int host_counter = 0;
__global__ void add(int* own) { own[0] += 1; own[1] = ++counter; }
__global__ void put(int* peer, int rank) { peer[2] = 10 + rank; }
__global__ void spin(volatile int* own) { while (own[3] == 0) {} }
PROGRAM(counts) {
  add<<<1, 1, 0, stream>>>(all[rank]);
  ++host_counter;
  return cudaMemcpyAsync(all[rank] + 4, &host_counter, 4, cudaMemcpyHostToDevice, stream);
}
PROGRAM(races) {
  put<<<1, 1, 0, stream>>>(all[0], rank);
  return 0;
}
PROGRAM(waits_for_ever) {
  spin<<<1, 1, 0, stream>>>(all[rank]);
  return 0;
}
PROGRAM(writes_beyond) {
  add<<<1, 1, 0, stream>>>(all[rank] + (1 << 28));
  return 0;
}
PROGRAM(crashes) {
  raise(SIGSEGV);
  return 0;
}
PROGRAM(leaves) { _exit(3); }
PROGRAM(sleeps) {
  if (rank) pause();
  return 0;
}
PROGRAM(refuses) { return 7 * rank; }
"""
NAMES = ["counts", "races", "waits_for_ever", "writes_beyond", "crashes", "leaves", "refuses", "missing", "counts"]


@pytest.fixture(scope="module")
def path(emulator_path: Path | None) -> Path:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return emulator_path


@pytest.fixture(scope="module")
def library(path: Path) -> bytes:
    return compile_cuda(SOURCE)


@pytest.fixture
def make_world(path: Path) -> Callable[[Schedule], World]:
    def make(schedule: Schedule) -> World:
        world = World(path, 2, schedule=schedule, detect_races=True)
        for rank, segment in enumerate(world.segments):
            world.add_region(rank, RegionKind.SCRATCH, "words", segment, 64, element_bytes=4)
        return world

    return make


def first_words(world: World) -> list[list[int]]:
    return [world.memory(rank).cast("i")[:5].tolist() for rank in range(world.world_size)]


def test_each_program_ends_by_itself(make_world: Callable[[Schedule], World], library: bytes) -> None:
    results = list(batch(make_world, library, NAMES, inspect=first_words))
    assert [result.name for result in results] == NAMES
    first, races, waits, beyond, crashes, leaves, refuses, missing, last = results
    for counts in (first, last):
        assert (counts.outcome, counts.message, counts.findings) == (Outcome.OK, "", ())
        assert counts.inspected == [[1, 1, 0, 0, 1]] * 2, "nothing is left of another world, or of another rank"
    assert races.outcome == Outcome.OK and races.inspected is not None and races.inspected[0][2] in (10, 11)
    assert [found.finding_class for found in races.findings] == ["unsynchronised"]
    assert waits.outcome == Outcome.DEADLOCK and "spin" in waits.message
    assert beyond.outcome == Outcome.ILLEGAL_ADDRESS and "add" in beyond.message
    assert (crashes.outcome, crashes.inspected) == (Outcome.CRASHED, None)
    assert crashes.message == "the process of all ranks has ended by SIGSEGV"
    assert (leaves.outcome, leaves.message) == (Outcome.CRASHED, "the process of all ranks has ended with status 3")
    assert refuses.outcome == Outcome.BODY_FAILED and "refuses returned 7 on rank 1" in refuses.message
    assert missing.outcome == Outcome.BODY_FAILED and "undefined symbol: missing" in missing.message


def test_host_code_that_does_not_return_costs_its_run_alone(
    make_world: Callable[[Schedule], World], library: bytes
) -> None:
    sleeps, counts = batch(make_world, library, ["sleeps", "counts"], timeout_s=2)
    assert (sleeps.outcome, sleeps.message) == (Outcome.STOPPED, "the run has not ended within 2 s")
    assert counts.outcome == Outcome.OK


def test_entries_have_schedules_and_repeat(make_world: Callable[[Schedule], World], library: bytes) -> None:
    drawn = [Schedule("priorities", seed) for seed in range(6)]
    entries = [Entry("counts", [Schedule()]), "races"]
    results = list(batch(make_world, library, entries, schedules=drawn, inspect=first_words))
    assert [(result.name, result.schedule) for result in results] == [
        ("counts", Schedule()),
        *(("races", schedule) for schedule in drawn),
    ]
    stored = [result.inspected[0][2] for result in results[1:] if result.inspected]
    assert set(stored) == {10, 11}, "the last writer depends on the schedule"
    again = batch(make_world, library, entries, schedules=drawn, inspect=first_words)
    assert [result.inspected for result in again] == [result.inspected for result in results]


def test_entries_of_ptx(make_world: Callable[[Schedule], World]) -> None:
    """Each has its shape, and the parameters are the segments and the rank."""
    kernel = entry("atom.global.add.u32 %r3, [%rd0], 1;\nst.global.u32 [%rd1+4], %r0;", ranks=2)
    module = HEADER + kernel + kernel.replace("kernel(", "other(")
    entries = [Entry("kernel", grid=(3, 1, 1), block=(32, 1, 1)), Entry("other", block=(1, 1, 1)), "none"]
    wide, narrow, none = batch(make_world, module, entries, inspect=first_words)
    assert wide.inspected is not None and wide.inspected[0][0] == 2 * 3 * 32
    assert narrow.inspected is not None and narrow.inspected[0][0] == 2 and narrow.inspected[1][1] in (0, 1)
    assert none.outcome == Outcome.BODY_FAILED and "no PTX that was loaded has a kernel 'none'" in none.message
    assert {found.kind for found in narrow.findings} == {"race"}


def test_what_the_caller_gives_may_not_raise(make_world: Callable[[Schedule], World], library: bytes) -> None:
    def inspect(world: World) -> int:
        raise LookupError(f"{world.world_size} ranks")

    with pytest.raises(EmulatorError, match=r"counts: (?s:.*)LookupError: 2 ranks"):
        list(batch(make_world, library, ["counts"], inspect=inspect))


def test_a_caller_that_stops_reading_leaves_no_process(make_world: Callable[[Schedule], World], library: bytes) -> None:
    results = batch(make_world, library, ["counts"] * 3, inspect=lambda world: os.getpid())
    process = next(results).inspected
    assert process is not None and process != os.getpid()
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_process_has_a_bounded_number_of_worlds(
    make_world: Callable[[Schedule], World], library: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries stay loaded until it ends."""
    monkeypatch.setattr("rank_emulator.children._MAX_JOBS", 2)
    results = list(batch(make_world, library, ["counts"] * 5, inspect=lambda world: os.getpid()))
    processes = [result.inspected for result in results]
    assert [processes.count(process) for process in dict.fromkeys(processes)] == [2, 2, 1]
