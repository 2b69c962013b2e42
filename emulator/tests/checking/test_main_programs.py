"""Programs with a `main`: ranks as processes, what they exchange, and how they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <mpi.h>
#include <nccl_device.h>
#include <nvshmem.h>
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
int calls = 0;
__global__ void store(int* to, int value) { *to = value; }
int main(int argc, char** argv) {
  const int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
  const char* mode = argc > 1 ? argv[1] : "";
  if (++calls != 1 || getenv("NO_SUCH_VARIABLE")) return 90;
  if (!strcmp(mode, "exit")) exit(rank ? 0 : 7);
  if (!strcmp(mode, "crash") && rank) abort();
  if (!strcmp(mode, "nccl")) return ncclCommInitAll(0, 0, 0) != ncclSuccess ? 3 : 0;
  if (!strcmp(mode, "order")) return rank ? MPI_Barrier(MPI_COMM_WORLD) : (nvshmem_init(), 0);
  if (!strcmp(mode, "missing")) return rank ? 0 : MPI_Barrier(MPI_COMM_WORLD);
  if (!strcmp(mode, "sizes")) return nvshmem_malloc(rank ? 64 : 128) ? 0 : 4;
  if (!strcmp(mode, "exchanges")) {
    int sum = -1, all[16] = {}, parts[16], mine[16], name_length;
    char name[MPI_MAX_PROCESSOR_NAME];
    for (int i = 0; i < size; ++i) mine[i] = 10 * rank + i;
    MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, 1, MPI_COMM_WORLD);
    MPI_Gather(&rank, 1, MPI_INT, all, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (sum != (rank == 1 ? size * (size - 1) / 2 : -1) || all[1] != (rank == 0)) return 40;
    MPI_Alltoall(mine, 1, MPI_INT, parts, 1, MPI_INT, MPI_COMM_WORLD);
    if (parts[0] != rank || parts[1] != 10 + rank) return 41;
    MPI_Scatter(mine, 1, MPI_INT, parts, 1, MPI_INT, 1, MPI_COMM_WORLD);
    all[rank] = 7 + rank;
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    if (parts[0] != 10 + rank || all[0] != 7 || all[1] != 8) return 42;
    const int upper = rank + 1 < size ? rank + 1 : MPI_PROC_NULL, lower = rank ? rank - 1 : MPI_PROC_NULL;
    MPI_Status status;
    parts[0] = parts[1] = -1;  // a line of ranks: the last one sends nothing, the first one receives nothing
    MPI_Sendrecv(mine, 1 + rank, MPI_INT, upper, 5, parts, 2, MPI_INT, lower, 5, MPI_COMM_WORLD,
                 rank ? &status : MPI_STATUS_IGNORE);
    if (parts[0] != (rank ? 10 * (rank - 1) : -1) || (rank && status.MPI_SOURCE != rank - 1)) return 43;
    MPI_Get_processor_name(name, &name_length);
    MPI_Comm same;
    if (MPI_Comm_split(MPI_COMM_WORLD, 3, rank, &same) || same != MPI_COMM_WORLD || !name_length) return 44;
  }
  if (!strcmp(mode, "thread")) {
    int *own, found = 0, device = -1;
    cudaStream_t side;
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    std::thread([&] {
      cudaGetDevice(&device);
      cudaMalloc(&own, 4);
      store<<<1, 1>>>(own, 300 + rank);
      if (argc < 3) cudaDeviceSynchronize();
    }).join();
    store<<<1, 1, 0, side>>>(own, 400 + rank);
    cudaDeviceSynchronize();
    if (device != rank || cudaMemcpy(&found, own, 4, cudaMemcpyDeviceToHost)) return 46;
    if (argc < 3 && found != 400 + rank) return 47;
  }
  if (!strcmp(mode, "colors")) {
    MPI_Comm part;
    return MPI_Comm_split(MPI_COMM_WORLD, rank, rank, &part) ? 45 : 0;
  }
  if (!strcmp(mode, "host")) {
    int* own; cudaMalloc(&own, 4); *own = rank;
  }
  if (!strcmp(mode, "handles")) {
    int *own, *opened;
    cudaMalloc(&own, 8);
    cudaIpcMemHandle_t mine, all[16];
    if (cudaIpcGetMemHandle(&mine, own + 1)) return 11;
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    if (cudaIpcOpenMemHandle((void**)&opened, all[rank], cudaIpcMemLazyEnablePeerAccess) == cudaSuccess) return 12;
    if (cudaIpcOpenMemHandle((void**)&opened, all[(rank + 1) % size], cudaIpcMemLazyEnablePeerAccess)) return 13;
    store<<<1, 1>>>(opened, 100 + rank);  // the beginning of the allocation, wherever the pointer was
    if (cudaDeviceSynchronize()) return 14;
    if (argc < 3) MPI_Barrier(MPI_COMM_WORLD);
    int found = 0;
    if (cudaMemcpy(&found, own, 4, cudaMemcpyDeviceToHost)) return 15;
    MPI_Barrier(MPI_COMM_WORLD);
    if (argc < 3 && found != 100 + (rank + size - 1) % size) return 16;
    int sum = rank, most = rank, root = 10 * rank;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&rank, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Bcast(&root, 1, MPI_INT, 1, MPI_COMM_WORLD);
    if (sum != size * (size - 1) / 2 || most != size - 1 || root != 10) return 17;
    cudaIpcCloseMemHandle(opened);
    MPI_Barrier(MPI_COMM_WORLD);
    cudaFree(own);
  }
  if (!strcmp(mode, "mapped")) {
    const auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
    const size_t bytes = 2 << 20;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, rank};
    properties.requestedHandleTypes = kFabric;
    CUmemGenericAllocationHandle own, peers[16];
    CUmemFabricHandle mine, all[16];
    if (cuMemCreate(&own, bytes, &properties, 0)) return 20;
    if (cuMemExportToShareableHandle(&mine, own, kFabric, 0)) return 21;
    if (!cuMemExportToShareableHandle(&mine, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) return 22;
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    CUdeviceptr base;
    if (cuMemAddressReserve(&base, size * bytes, 0, 0, 0)) return 23;
    for (int peer = 0; peer < size; ++peer) {
      peers[peer] = own;
      const auto got = peer == rank ? CUDA_SUCCESS : cuMemImportFromShareableHandle(&peers[peer], &all[peer], kFabric);
      if (got) return 24;
      if (cuMemMap(base + peer * bytes, bytes, 0, peers[peer], 0)) return 25;
    }
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, rank}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (argc < 3 || strcmp(argv[2], "hidden")) {
      if (cuMemSetAccess(base, size * bytes, &access, 1)) return 26;
    }
    const int after = (rank + 1) % size;
    store<<<1, 1>>>((int*)(base + after * bytes + 64), 200 + rank);
    if (cudaDeviceSynchronize()) return 27;
    if (argc < 3) MPI_Barrier(MPI_COMM_WORLD);
    int found = 0;
    if (cudaMemcpy(&found, (void*)(base + rank * bytes + 64), 4, cudaMemcpyDeviceToHost)) return 28;
    MPI_Barrier(MPI_COMM_WORLD);
    if (argc < 3 && found != 200 + (rank + size - 1) % size) return 29;
    if (cuMemUnmap(base, size * bytes) || cuMemAddressFree(base, size * bytes)) return 30;
    for (int peer = 0; peer < size; ++peer) {
      if (cuMemRelease(peers[peer])) return 31;
    }
  }
  printf("%s of %d\n", mode, rank);
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 2, emulator_path, tmp_path_factory.mktemp("program"))


def test_each_rank_is_a_process_of_its_own(program: MainProgram) -> None:
    ended = program.run("plain")
    assert (ended.outcome, ended.message) == (Outcome.OK, "")
    assert sorted(ended.printed.splitlines()) == ["rank 0: plain of 0", "rank 1: plain of 1"]


def test_hosts_exchange_what_mpi_says(program: MainProgram) -> None:
    ended = program.run("exchanges", schedule=Schedule("priorities", 1))
    assert (ended.outcome, ended.message) == (Outcome.OK, "")


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("exit", "main returned 7 on rank 0"),
        ("nccl", "rank 0: ncclCommInitAll is not modelled by the emulator"),
        ("order", "all ranks make these calls in the same order"),
        ("sizes", "nvshmem_malloc of "),
        ("colors", "MPI_Comm_split by several colors is not modelled by the emulator"),
    ],
)
def test_a_program_that_fails_says_where(program: MainProgram, mode: str, words: str) -> None:
    ended = program.run(mode)
    assert ended.outcome is Outcome.BODY_FAILED and words in ended.message


def test_threads_of_a_rank_have_its_gpu(program: MainProgram) -> None:
    ended = program.run("thread", schedule=Schedule("priorities", 1))
    assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


def test_the_end_of_a_thread_says_nothing_of_what_it_has_launched(program: MainProgram) -> None:
    ended = program.run("thread", "unordered")
    assert {each.finding_class for each in ended.findings} == {"unsynchronised"}


def test_a_rank_that_does_not_come_is_a_deadlock(program: MainProgram) -> None:
    ended = program.run("missing")
    assert ended.outcome is Outcome.DEADLOCK and "rank 0, host: waits for MPI_Barrier" in ended.message


@pytest.mark.parametrize("mode", ["handles", "mapped"])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule("one_ahead", 1), Schedule("late_stores", 2)])
def test_memory_is_shared_by_handles_and_hosts_order_it(program: MainProgram, schedule: Schedule, mode: str) -> None:
    ended = program.run(mode, schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


@pytest.mark.parametrize("mode", ["handles", "mapped"])
def test_without_the_barrier_of_the_hosts_it_is_a_race(program: MainProgram, mode: str) -> None:
    """Also where both ranks have addresses of their own for the memory."""
    ended = program.run(mode, "unordered")
    (race,) = {(each.finding_class, each.first.what, each.second.what) for each in ended.findings}
    assert race[0] == "unsynchronised" and {"st.global.u32", "cudaMemcpy"} == set(race[1:])


def test_mapped_memory_is_hidden_until_access_is_set(program: MainProgram) -> None:
    ended = program.run("mapped", "hidden")
    assert ended.outcome is Outcome.ILLEGAL_ADDRESS and "kernel store" in ended.message
