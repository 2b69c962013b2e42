"""Graphs and their nodes, copies of boxes, the driver, and what programs ask of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = Path(__file__).resolve().parent.parent / "several_gpus" / "graphs.cu"
SCHEDULES = (Schedule(), Schedule("one_ahead", 1), Schedule("priorities", 2))
MODES = ("capture", "captures", "nodes", "captured", "memory", "external", "boxes", "driver", "questions")


@pytest.fixture(scope="module")
def program(emulator_path: Path | None) -> MainProgram:
    return MainProgram.of_one_process(SOURCE, 2, emulator_path)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: f"{schedule.policy}-{schedule.seed}")
@pytest.mark.parametrize("mode", MODES)
def test_a_right_program_ends_without_a_finding(program: MainProgram, mode: str, schedule: Schedule) -> None:
    ended = program.run(mode, "right", schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings, ended.printed) == (Outcome.OK, "", (), "")


@pytest.mark.parametrize(
    ("mode", "mistake", "accesses"),
    [
        ("capture", "event", {"st.global.u32", "ld.global.u32"}),
        ("nodes", "edge", {"st.global.u32", "ld.global.u32"}),
        ("external", "event", {"st.global.u32", "ld.global.u32"}),
        ("driver", "event", {"st.global.u32", "cuMemcpyDtoH"}),
    ],
)
def test_work_that_nothing_orders_is_a_race(program: MainProgram, mode: str, mistake: str, accesses: set[str]) -> None:
    found = [each for each in program.run(mode, mistake).findings if each.finding_class == "unsynchronised"]
    assert accesses <= {side.what for each in found for side in (each.first, each.second) if side}


def test_memory_of_a_graph_has_no_content_when_it_is_allocated(program: MainProgram) -> None:
    (found,) = program.run("memory", "unfilled").findings
    assert "ld.global" in found.message and "which nobody has written" in found.message


MPI = r"""
#include <mpi.h>
#include <cstring>
constexpr int kCount = 32;
__global__ void fill(int* to, int value) { to[threadIdx.x] = value + int(threadIdx.x); }
__global__ void add(const int* from, int* to) { to[threadIdx.x] += from[threadIdx.x]; }
int main(int argc, char** argv) {
  const bool waits = !strcmp(argv[1], "right");
  int rank, size, *memory, *halo, *all, host[kCount], sums[kCount];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaMalloc(&memory, sizeof host);
  cudaMalloc(&halo, sizeof host);
  cudaMalloc(&all, size * sizeof host);
  fill<<<1, kCount, 0, stream>>>(memory, 100 * rank);
  if (waits) cudaStreamSynchronize(stream);
  MPI_Sendrecv(memory, kCount, MPI_INT, (rank + 1) % size, 0, halo, kCount, MPI_INT, (rank + size - 1) % size, 0,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  add<<<1, kCount, 0, stream>>>(halo, memory);
  cudaMemcpyAsync(host, memory, sizeof host, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  if (waits && host[3] != 100 * rank + 100 * ((rank + size - 1) % size) + 6) return 2;
  MPI_Allreduce(MPI_IN_PLACE, memory, kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allgather(memory, kCount, MPI_INT, all, kCount, MPI_INT, MPI_COMM_WORLD);
  MPI_Bcast(halo, kCount, MPI_INT, 1, MPI_COMM_WORLD);
  cudaMemcpy(sums, all + (size - 1) * kCount, sizeof sums, cudaMemcpyDeviceToHost);
  cudaMemcpy(host, halo, sizeof host, cudaMemcpyDeviceToHost);
  if (waits && (sums[1] != 100 * size * (size - 1) + 2 * size || host[1] != 1)) return 3;
  return MPI_Finalize();
}
"""


@pytest.mark.parametrize("mistake", ["right", "wait"])
def test_mpi_takes_memory_of_gpus(emulator_path: Path | None, tmp_path: Path, mistake: str) -> None:
    ended = MainProgram.of(MPI, 3, emulator_path, tmp_path).run(mistake)
    accesses = {side.what for each in ended.findings for side in (each.first, each.second) if side}
    if mistake == "right":
        assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())
    else:
        assert {"st.global.u32", "cudaMemcpyAsync"} <= accesses


IPC_EVENT = r"""
#include <mpi.h>
#include <cstring>
__global__ void fill(int* to) { to[threadIdx.x] = 5; }
__global__ void add(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x] + 1; }
int main(int argc, char** argv) {
  int rank, *memory, *result, host[32];
  cudaIpcMemHandle_t handles[2], mine;
  cudaIpcEventHandle_t events[2], own;
  cudaEvent_t event;
  cudaStream_t stream;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  cudaMalloc(&memory, 128);
  cudaMalloc(&result, 128);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess);
  cudaIpcGetMemHandle(&mine, memory);
  cudaIpcGetEventHandle(&own, event);
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, handles, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
  MPI_Allgather(&own, sizeof own, MPI_BYTE, events, sizeof own, MPI_BYTE, MPI_COMM_WORLD);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (rank == 0) {
    fill<<<1, 32, 0, stream>>>(memory);
    cudaEventRecord(event, stream);
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    void* from;
    cudaEvent_t filled;
    MPI_Barrier(MPI_COMM_WORLD);
    if (cudaIpcOpenMemHandle(&from, handles[0], cudaIpcMemLazyEnablePeerAccess)) return 2;
    if (cudaIpcOpenEventHandle(&filled, events[0])) return 3;
    if (!strcmp(argv[1], "right")) cudaStreamWaitEvent(stream, filled, 0);
    add<<<1, 32, 0, stream>>>(static_cast<int*>(from), result);
    cudaMemcpyAsync(host, result, 128, cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    if (!strcmp(argv[1], "right") && host[0] != 6) return 4;
  }
  cudaStreamSynchronize(stream);
  return MPI_Barrier(MPI_COMM_WORLD);
}
"""


@pytest.mark.parametrize("mistake", ["right", "event"])
def test_events_of_another_rank_are_waited_for_by_their_handles(
    emulator_path: Path | None, tmp_path: Path, mistake: str
) -> None:
    ended = MainProgram.of(IPC_EVENT, 2, emulator_path, tmp_path).run(mistake)
    assert (ended.outcome, ended.message) == (Outcome.OK, "")
    assert ({each.finding_class for each in ended.findings} - {None} == {"unsynchronised"}) is (mistake == "event")
