"""Programs in which one process drives several GPUs, by one thread or by a thread for each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from emulator.tests.whole_tables import IS_WHOLE
from rank_emulator import Outcome, Schedule
from rank_emulator.checking.command import main
from rank_emulator.checking.runs import of_gpus

SOURCES = Path(__file__).resolve().parent.parent / "several_gpus"
GPUS = 3
SCHEDULES = (
    Schedule(),
    Schedule("one_ahead", 1),
    Schedule("late_stores", 2),
    Schedule("priorities", 3),
    Schedule("priorities", 4),
)
ONE_THREAD = ("stencil", "ping_pong", "flags", "pool", "cooperative", "nccl")
THREADS = ("openmp", "condition", "posix", "standard", "joined", "callback", "nccl", "pthreads", "loops")


def under_schedules(modes: Sequence[str]) -> list[tuple[str, Schedule]]:
    """Modes with schedules: a sample has each mode under one or two schedules, and each schedule."""
    return list(itertools.product(modes, SCHEDULES))[:: 1 if IS_WHOLE else 3]


def schedule_id(value: str | Schedule) -> str:
    return value if isinstance(value, str) else f"{value.policy}-{value.seed}"


def test_samples_have_each_mode_and_each_schedule() -> None:
    for modes in (ONE_THREAD, THREADS):
        sampled = under_schedules(modes)
        assert {mode for mode, _ in sampled} == set(modes)
        assert {schedule for _, schedule in sampled} == set(SCHEDULES)


@pytest.fixture(scope="module")
def one_thread(emulator_path: Path | None) -> MainProgram:
    return MainProgram.of_one_process(SOURCES / "one_thread.cu", GPUS, emulator_path)


@pytest.fixture(scope="module")
def threads(emulator_path: Path | None) -> MainProgram:
    flags = ("-std=c++20", "-Xcompiler=-fopenmp")
    return MainProgram.of_one_process(SOURCES / "threads.cu", GPUS, emulator_path, *flags)


@pytest.mark.parametrize(("mode", "schedule"), under_schedules(ONE_THREAD), ids=schedule_id)
def test_one_thread_drives_all_gpus(one_thread: MainProgram, mode: str, schedule: Schedule) -> None:
    ended = one_thread.run_apart(mode, "right", schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings, ended.printed) == (Outcome.OK, "", (), "")


@pytest.mark.parametrize(("mode", "schedule"), under_schedules(THREADS), ids=schedule_id)
def test_a_thread_drives_each_gpu(threads: MainProgram, mode: str, schedule: Schedule) -> None:
    ended = threads.run_apart(mode, "right", schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings, ended.printed) == (Outcome.OK, "", (), "")


@pytest.mark.parametrize(
    ("mode", "mistake", "accesses"),
    [
        ("stencil", "event", {"cudaMemcpyAsync", "ld.global.f32"}),
        ("stencil", "stream", {"cudaMemcpyPeerAsync", "st.global.f32"}),
        ("ping_pong", "copy", {"cudaMemcpyPeerAsync", "st.global.u32"}),
        ("ping_pong", "synchronize", {"st.global.u32", "ld.global.u32"}),
        ("flags", "flag", {"st.global.u32", "ld.global.u32"}),
        ("pool", "event", {"st.global.u32", "ld.global.u32"}),
        ("cooperative", "meeting", {"st.global.u32", "ld.global.u32"}),
        ("nccl", "stream", {"st.global.u32", "ld.u32"}),
    ],
)
def test_work_of_gpus_that_nothing_orders_is_a_race(
    one_thread: MainProgram, mode: str, mistake: str, accesses: set[str]
) -> None:
    ended = one_thread.run_apart(mode, mistake)
    assert ended.outcome is Outcome.OK
    assert {each.finding_class for each in ended.findings} == {"unsynchronised"}
    assert accesses <= {side.what for each in ended.findings for side in (each.first, each.second) if side}
    assert all("GPU 0's" in each.message or "GPU 1's" in each.message for each in ended.findings[:1])


def test_copies_have_the_line_of_their_call(one_thread: MainProgram) -> None:
    ended = one_thread.run_apart("stencil", "stream")
    sides = [side for each in ended.findings for side in (each.first, each.second) if side]
    copies = [side for side in sides if side.what.startswith("cudaMemcpy")]
    lines = (SOURCES / "one_thread.cu").read_text().splitlines()
    assert {side.what for side in copies} == {"cudaMemcpyAsync", "cudaMemcpyPeerAsync"}
    assert all(side.line and f"{side.what}(" in lines[side.line - 1] for side in copies)
    assert f"`{copies[0].what}` (one_thread.cu:{copies[0].line})" in ended.findings[0].message


@pytest.mark.parametrize("mistake", ["synchronize", "wait"])
@pytest.mark.parametrize("mode", ["condition", "posix", "standard"])
def test_a_copy_that_no_host_has_waited_for_is_a_race(threads: MainProgram, mode: str, mistake: str) -> None:
    """Neither the wait for the stream nor that of the threads alone orders two GPUs."""
    ended = threads.run_apart(mode, mistake)
    found = {(each.finding_class, each.first.what, each.second.what) for each in ended.findings if each.first}
    (race,) = found
    assert race[0] == "unsynchronised" and set(race[1:]) == {"st.global.u32", "cudaMemcpyPeerAsync"}


@pytest.mark.parametrize(
    ("mode", "mistake"),
    [
        ("openmp", "synchronize"),
        ("openmp", "barrier"),
        ("joined", "synchronize"),
        ("joined", "future"),
        ("callback", "early"),
    ],
)
def test_kernels_of_two_threads_that_nothing_orders_race(threads: MainProgram, mode: str, mistake: str) -> None:
    ended = threads.run_apart(mode, mistake)
    assert ended.outcome is Outcome.OK and "unsynchronised" in {each.finding_class for each in ended.findings}


@pytest.mark.parametrize(
    ("mode", "mistake", "words"),
    [
        ("ping_pong", "peer", "GPU 0 has no access to: call cudaDeviceEnablePeerAccess(1, 0) with GPU 0"),
        ("pool", "access", "GPU 1 has no access to"),
    ],
)
def test_memory_of_a_peer_without_access_is_an_illegal_address(
    one_thread: MainProgram, mode: str, mistake: str, words: str
) -> None:
    ended = one_thread.run_apart(mode, mistake)
    assert ended.outcome is Outcome.ILLEGAL_ADDRESS
    assert "kernel twice" in ended.message and "one_thread.cu:" in ended.message and words in ended.message


def test_what_belongs_to_one_gpu_is_refused_on_another(one_thread: MainProgram) -> None:
    ended = one_thread.run_apart("refused", "right")
    assert (ended.outcome, ended.message) == (Outcome.OK, "")


def test_each_gpu_of_a_thread_needs_access_of_its_own(threads: MainProgram) -> None:
    ended = threads.run_apart("openmp", "peer")
    assert ended.outcome is Outcome.ILLEGAL_ADDRESS and "which GPU 1 has no access to" in ended.message


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("init", "the main thread: waits for ncclCommInitRank"),
        ("group", "the main thread: waits for all ranks of a communicator, in a collective outside of a group"),
    ],
)
def test_one_thread_needs_groups_of_nccl(one_thread: MainProgram, mistake: str, words: str) -> None:
    ended = one_thread.run_apart("nccl", mistake)
    assert ended.outcome is Outcome.DEADLOCK and words in ended.message


def test_a_thread_that_lacks_a_collective_is_a_deadlock(threads: MainProgram) -> None:
    ended = threads.run_apart("nccl", "lacking")
    assert ended.outcome is Outcome.DEADLOCK and "kernel pkb_nccl::nccl_collective" in ended.message


@pytest.mark.parametrize(
    ("mistake", "outcome", "words"),
    [
        ("exit", Outcome.BODY_FAILED, "thread 1 has called exit(9)"),
        ("touch", Outcome.ILLEGAL_ADDRESS, "thread 1: host code touched device memory"),
        ("condition", Outcome.DEADLOCK, "\n  thread 1: waits for a condition variable"),
        ("mutex", Outcome.DEADLOCK, "the main thread: waits for the end of thread 1\n  thread 1: waits for a mutex"),
    ],
)
def test_a_thread_that_ends_the_run_says_why(threads: MainProgram, mistake: str, outcome: Outcome, words: str) -> None:
    ended = threads.run_apart("ends", mistake)
    assert ended.outcome is outcome and words in ended.message


def test_a_wait_with_a_limit_ends_where_nobody_can_go_on(threads: MainProgram) -> None:
    ended = threads.run_apart("ends", "limit")
    assert (ended.outcome, ended.message) == (Outcome.OK, "")


def test_threads_of_posix_are_ordered_by_what_they_wait_for_alone(threads: MainProgram) -> None:
    (found,) = threads.run_apart("pthreads", "synchronize").findings
    assert {side.what for side in (found.first, found.second) if side} == {"st.global.u32", "cudaMemcpyAsync"}


COMMAND = """
#include <cstdio>
__global__ void store(int* to) { *to = 1; printf("stored\\n"); }
int main() {
  int gpus, *memory;
  cudaGetDeviceCount(&gpus);
  if (gpus != 2 || getenv("RANK")) return 3;
  cudaSetDevice(1);
  cudaMalloc(&memory, 4);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    cudaSetDevice(gpu);
    cudaDeviceEnablePeerAccess(1 - gpu, 0);
    store<<<1, 1>>>(memory);
#ifdef LOOP
#pragma omp parallel for schedule(runtime)
    for (int i = 0; i < 4; ++i) std::printf("%d", i);
#endif
  }
  std::printf("gpus: %d\\n", gpus);
  return cudaDeviceSynchronize();
}
"""


def test_the_command_gives_one_process_several_gpus(
    emulator_path: Path | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    source = tmp_path / "program.cu"
    source.write_text(COMMAND)
    words = [str(source), "--gpus", "2", "--emulator", str(emulator_path), "--schedules", "1"]
    assert main([*words, "--output", "--json", str(tmp_path / "report.json")]) == 0
    printed = capsys.readouterr()
    assert printed.out == "no problem found in 1 runs of 2 GPUs\n"  # both store the same
    assert sorted(printed.err.splitlines()) == ["GPU 0: stored", "GPU 1: stored", "gpus: 2"]
    assert '"one_process": true' in (tmp_path / "report.json").read_text()
    assert main([*words, "-Xcompiler=-fopenmp", "-DLOOP"]) == 2
    refused = capsys.readouterr().err
    assert "not among the functions of OpenMP that the emulator models" in refused and "GOMP_parallel_loop" in refused


def test_calls_have_a_process_for_each_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "k.cu"
    source.write_text("int f() { return 0; }\n")
    assert main([str(source), "--call", "f()", "--gpus", "2", "--emulator", "/nowhere.so"]) == 2
    assert "one process with several GPUs runs a main" in capsys.readouterr().err


def test_messages_of_one_process_speak_of_gpus() -> None:
    text = (
        "rank 1's read, in two streams of one rank (rank.cu:3); no memory of any rank; no flag or barrier leads to it"
    )
    assert of_gpus(text) == (
        "GPU 1's read, in two streams of one GPU (rank.cu:3); no memory of any GPU; "
        "no event, wait of a host, flag or barrier leads to it"
    )
