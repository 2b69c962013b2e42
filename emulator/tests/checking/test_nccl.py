"""Collectives and messages of NCCL, as programs call them from hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <nccl.h>
#include <cstring>
#include <vector>
constexpr int kCount = 100, kRanks = 4;
#define CHECK(condition) if (!(condition)) return __LINE__ % 200 + 1
__global__ void fill(float* x, float value) { x[threadIdx.x] = value + threadIdx.x; }
__global__ void halves(__half* x, float value) { x[threadIdx.x] = __float2half(value); }
template <class T>
std::vector<T> content(const T* from, int count, cudaStream_t stream) {
  std::vector<T> found(count);
  cudaMemcpyAsync(found.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  return found;
}
int main(int argc, char** argv) {
  const bool is_right = !strcmp(argv[1], "right");
  ncclUniqueId id;
  ncclComm_t comm, half;
  cudaStream_t stream, side;
  ncclGetUniqueId(&id);
  const int rank = pkb_emu_my_rank(), next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
  CHECK(!ncclCommInitRank(&comm, kRanks, id, rank));
  CHECK(!ncclCommSplit(comm, rank % 2, -rank, &half, nullptr));
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  float *x, *y;
  __half* h;
  cudaMalloc(&x, kRanks * kCount * sizeof(float));
  cudaMalloc(&y, kRanks * kCount * sizeof(float));
  cudaMalloc(&h, kCount * sizeof(__half));

  fill<<<1, kCount, 0, is_right ? stream : side>>>(x, rank);
  CHECK(!ncclAllReduce(x, x, kCount, ncclFloat, ncclSum, comm, stream));
  auto found = content(x, kCount, stream);
  for (int i = 0; i < kCount && is_right; ++i) CHECK(found[i] == 6 + 4 * i);
  cudaStreamSynchronize(side);

  fill<<<1, kCount, 0, stream>>>(x, 1000 * rank);
  CHECK(!ncclAllGather(x, y, kCount, ncclFloat, comm, stream));
  CHECK(!ncclReduceScatter(y, x, kCount, ncclFloat, ncclMax, comm, stream));
  found = content(x, kCount, stream);
  CHECK(found[0] == 1000 * rank && found[99] == 1000 * rank + 99);
  CHECK(!ncclAlltoAll(y, x, kCount, ncclFloat, comm, stream));
  found = content(x, kRanks * kCount, stream);
  for (int peer = 0; peer < kRanks; ++peer) CHECK(found[peer * kCount + 1] == 1000 * rank + 1);

  halves<<<1, kCount, 0, stream>>>(h, rank);
  ncclGroupStart();
  ncclAllReduce(h, h, kCount, ncclHalf, ncclAvg, comm, stream);
  ncclBroadcast(x, y, kCount, ncclFloat, 2, comm, stream);
  ncclReduce(x, x, 1, ncclFloat, ncclSum, 1, half, stream);
  CHECK(!ncclGroupEnd());
  CHECK(__half2float(content(h, kCount, stream)[99]) == 1.5f);
  CHECK(content(y, 1, stream)[0] == 2000);
  int of_half = -1;
  ncclCommUserRank(half, &of_half);
  CHECK(of_half == 1 - rank / 2);
  CHECK(content(x, 1, stream)[0] == (of_half == 1 ? 1000 * (rank + rank + 2) : 1000 * rank));

  fill<<<1, kCount, 0, stream>>>(x, rank);
  ncclGroupStart();
  for (int i = 0; i < 2; ++i) {
    ncclSend(x + 10 * i, 10, ncclFloat, next, comm, stream);
    ncclRecv(y + 10 * i, 10, ncclFloat, previous, comm, stream);
  }
  CHECK(!ncclGroupEnd());
  if (rank == 0) ncclSend(x, kCount, ncclFloat, 3, comm, stream);
  if (rank == 3) ncclRecv(x, kCount, ncclFloat, 0, comm, stream);
  CHECK(content(y, 20, stream)[19] == previous + 19);
  CHECK(content(x, 10, stream)[9] == (rank == 3 ? 0 : rank) + 9);
  ncclCommDestroy(half);
  ncclCommDestroy(comm);
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 4, emulator_path, tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule("one_ahead", 1), Schedule("late_stores", 2), Schedule("priorities", 3)]
)
def test_collectives_and_messages(program: MainProgram, schedule: Schedule) -> None:
    ended = program.run("right", schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


def test_a_buffer_that_another_stream_fills_is_a_race(program: MainProgram) -> None:
    ended = program.run("wrong")
    assert any("st.global.f32" in each.message or "fill" in each.message for each in ended.findings)
    assert {each.finding_class for each in ended.findings if each.finding_class} == {"unsynchronised"}
