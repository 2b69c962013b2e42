"""Messages of MPI between two ranks: their matching, buffers, order and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <mpi.h>
#include <cstring>
#include <string>
#define CHECK(condition) if (!(condition)) return __LINE__ % 200 + 1
__global__ void store(int* to, int value) { *to = value; }
__global__ void check(const int* from, int value) { if (*from != value) __trap(); }
const auto kWorld = MPI_COMM_WORLD;

int matching(int rank, int size) {
  int data[8] = {}, count = 0, flag = 0, index = -1;
  MPI_Status status, statuses[3];
  MPI_Request requests[3];
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  for (int i = 0; i < 3; ++i) {  // by tags, in another order than they come, and in theirs
    const int mine[] = {100 * rank + i, 7};
    MPI_Send(mine, 1 + (i == 2), MPI_INT, next, 5 + i / 2, kWorld);
  }
  MPI_Recv(data, 8, MPI_INT, previous, 6, kWorld, &status);
  MPI_Get_count(&status, MPI_INT, &count);
  CHECK(data[0] == 100 * previous + 2 && status.MPI_SOURCE == previous && status.MPI_TAG == 6 && count == 2);
  MPI_Get_count(&status, MPI_SHORT, &count);
  CHECK(count == 4);
  for (int i = 0; i < 2; ++i) {
    if (i == 0) MPI_Recv(data, 8, MPI_INT, previous, MPI_ANY_TAG, kWorld, MPI_STATUS_IGNORE);
    else MPI_Recv(data, 8, MPI_INT, MPI_ANY_SOURCE, 5, kWorld, MPI_STATUS_IGNORE);
    CHECK(data[0] == 100 * previous + i);
  }
  if (rank == 0) {  // from anybody, two at a time
    int sum = 0;
    for (int i = 1; i < size; ++i) {
      MPI_Probe(MPI_ANY_SOURCE, 9, kWorld, &status);
      MPI_Recv(data, 1, MPI_INT, status.MPI_SOURCE, 9, kWorld, &statuses[0]);
      CHECK(data[0] == status.MPI_SOURCE && statuses[0].MPI_SOURCE == data[0]);
      sum += data[0];
    }
    CHECK(sum == size * (size - 1) / 2);
  } else {
    MPI_Ssend(&rank, 1, MPI_INT, 0, 9, kWorld);
  }
  int from_both[2] = {-1, -1};
  MPI_Irecv(from_both, 1, MPI_INT, previous, 1, kWorld, &requests[0]);
  MPI_Irecv(from_both + 1, 1, MPI_INT, next, 2, kWorld, &requests[1]);
  MPI_Issend(&rank, 1, MPI_INT, next, 1, kWorld, &requests[2]);
  MPI_Send(&rank, 1, MPI_INT, previous, 2, kWorld);
  MPI_Waitall(3, requests, statuses);
  CHECK(from_both[0] == previous && from_both[1] == next);
  CHECK(statuses[1].MPI_SOURCE == next && requests[2] == MPI_REQUEST_NULL);
  MPI_Irecv(data + 1, 1, MPI_INT, MPI_PROC_NULL, 3, kWorld, &requests[0]);
  MPI_Irecv(data, 1, MPI_INT, previous, 3, kWorld, &requests[1]);
  MPI_Waitany(2, requests, &index, &status);
  CHECK(index == 0 && status.MPI_SOURCE == MPI_PROC_NULL);
  MPI_Isend(&rank, 1, MPI_INT, next, 3, kWorld, &requests[0]);
  while (!flag) MPI_Test(&requests[1], &flag, &status);
  CHECK(data[0] == previous && status.MPI_TAG == 3);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  MPI_Comm other;  // the same tag in another communicator
  MPI_Comm_dup(kWorld, &other);
  const int first = 1, second = 2;
  MPI_Send(&first, 1, MPI_INT, next, 4, kWorld);
  MPI_Send(&second, 1, MPI_INT, next, 4, other);
  MPI_Recv(data, 1, MPI_INT, previous, 4, other, MPI_STATUS_IGNORE);
  MPI_Recv(data + 1, 1, MPI_INT, previous, 4, kWorld, MPI_STATUS_IGNORE);
  CHECK(data[0] == 2 && data[1] == 1);
  if (rank < 2) {  // two ranks of several
    MPI_Sendrecv(&rank, 1, MPI_INT, 1 - rank, 8, data, 8, MPI_INT, 1 - rank, 8, kWorld, MPI_STATUS_IGNORE);
    CHECK(data[0] == 1 - rank);
    MPI_Sendrecv_replace(data, 1, MPI_INT, 1 - rank, 8, 1 - rank, 8, kWorld, &status);
    CHECK(data[0] == rank && status.MPI_SOURCE == 1 - rank);
  }
  return 0;
}
// Rank 0 writes memory of rank 1, and tells so by a message.
int order(int rank, bool right) {
  int* memory;
  cudaIpcMemHandle_t handle;
  char over = 0;
  if (rank == 1) {
    cudaMalloc(&memory, 4);
    cudaIpcGetMemHandle(&handle, memory);
    MPI_Send(&handle, sizeof handle, MPI_BYTE, 0, 0, kWorld);
    MPI_Recv(&over, 1, MPI_CHAR, 0, 1, kWorld, MPI_STATUS_IGNORE);
    check<<<1, 1>>>(memory, 7);
    cudaDeviceSynchronize();
    MPI_Send(&over, 1, MPI_CHAR, 0, 2, kWorld);
  } else if (rank == 0) {
    MPI_Recv(&handle, sizeof handle, MPI_BYTE, 1, MPI_ANY_TAG, kWorld, MPI_STATUS_IGNORE);
    cudaIpcOpenMemHandle((void**)&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    store<<<1, 1>>>(memory, 7);
    if (right) cudaDeviceSynchronize();
    MPI_Send(&over, 1, MPI_CHAR, 1, 1, kWorld);
    MPI_Recv(&over, 1, MPI_CHAR, 1, 2, kWorld, MPI_STATUS_IGNORE);
    store<<<1, 1>>>(memory, 8);
    cudaDeviceSynchronize();
  }
  return 0;
}
// A buffer on the GPU, whose kernel has to be over before it is sent.
int on_gpu(int rank, bool right) {
  int* memory;
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaMalloc(&memory, 4);
  if (rank == 0) {
    store<<<1, 1, 0, stream>>>(memory, 7);
    if (right) cudaStreamSynchronize(stream);
    MPI_Send(memory, 1, MPI_INT, 1, 0, kWorld);
  } else if (rank == 1) {
    MPI_Request request;
    MPI_Irecv(memory, 1, MPI_INT, 0, 0, kWorld, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    check<<<1, 1, 0, stream>>>(memory, 7);
  }
  cudaDeviceSynchronize();
  return 0;
}
int main(int, char** argv) {
  int rank, size, data[2] = {1, 2};
  MPI_Comm_rank(kWorld, &rank);
  MPI_Comm_size(kWorld, &size);
  const std::string mode = argv[1];
  MPI_Request request = MPI_REQUEST_NULL;
  if (mode == "matching") return matching(rank, size);
  if (mode == "order" || mode == "early") return order(rank, mode == "order");
  if (mode == "gpu" || mode == "unfinished") return on_gpu(rank, mode == "gpu");
  if (mode == "unmatched" && rank == 1) MPI_Recv(data, 1, MPI_INT, 0, 77, kWorld, MPI_STATUS_IGNORE);
  if (mode == "unmatched" && rank == 0) MPI_Send(data, 1, MPI_INT, 1, 78, kWorld);
  if (mode == "all_receive") {
    MPI_Irecv(data, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, kWorld, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  if (mode == "all_wait") MPI_Ssend(data, 1, MPI_INT, (rank + 1) % size, 3, kWorld);
  if (mode == "too_long" && rank == 0) MPI_Send(data, 2, MPI_INT, 1, 0, kWorld);
  if (mode == "too_long" && rank == 1) MPI_Recv(data, 1, MPI_INT, 0, 0, kWorld, MPI_STATUS_IGNORE);
  if (mode == "overwritten" && rank == 0) {
    MPI_Isend(data, 1, MPI_INT, 1, 0, kWorld, &request);
    data[0] = 5;
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  if (mode == "nobody") MPI_Send(data, 1, MPI_INT, size, 0, kWorld);
  if (mode == "read_early" && rank < 2) {  // what a receive brings is there after the wait
    if (rank == 0) MPI_Send(data, 1, MPI_INT, 1, 0, kWorld);
    data[0] = 9;
    if (rank == 1) MPI_Irecv(data, 1, MPI_INT, 0, 0, kWorld, &request);
    if (data[0] != 9) return 3;
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return rank && data[0] != 1;
  }
  return 0;
}
"""
SCHEDULES = [Schedule(), *(Schedule(policy, seed) for policy in ("one_ahead", "priorities") for seed in range(3))]


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 3, emulator_path, tmp_path_factory.mktemp("mpi_messages"))


@pytest.mark.parametrize("mode", ["matching", "order", "gpu", "read_early"])
def test_right_programs_are_right(program: MainProgram, mode: str) -> None:
    for schedule in SCHEDULES:
        ended = program.run(mode, schedule=schedule)
        assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ()), schedule


@pytest.mark.parametrize("mode", ["early", "unfinished"])
def test_a_message_tells_what_its_sender_has_waited_for(program: MainProgram, mode: str) -> None:
    found = [each for schedule in SCHEDULES for each in program.run(mode, schedule=schedule).findings]
    assert any(each.finding_class == "unsynchronised" for each in found)


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("unmatched", Outcome.DEADLOCK, "MPI_Recv from rank 0, tag 77"),
        ("all_receive", Outcome.DEADLOCK, "MPI_Irecv from any rank, any tag"),
        ("all_wait", Outcome.DEADLOCK, "MPI_Ssend to rank 2, tag 3"),
        ("too_long", Outcome.BODY_FAILED, "MPI_Recv from rank 0, tag 0: the message is longer than the buffer"),
        ("overwritten", Outcome.BODY_FAILED, "its buffer has other content by the time of the wait"),
        ("nobody", Outcome.BODY_FAILED, "MPI_Send: there is no such rank"),
    ],
)
def test_mistakes_are_named(program: MainProgram, mode: str, outcome: Outcome, words: str) -> None:
    ended = program.run_apart(mode)
    assert ended.outcome == outcome and words in ended.message, ended.message
