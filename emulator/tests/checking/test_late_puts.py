"""Data of non-blocking puts and gets, which arrive late in some orders of execution."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <nvshmem.h>
#include <cstdlib>
#include <cstring>
constexpr int kCount = 40;
enum Way { kPut, kPutOfBlock, kGet, kFlag, kBarrier, kHost, kNobodyElse };

__global__ void program(Way way, bool right, int* target, int* source, int* flag, int* stale) {
  const bool sends = nvshmem_my_pe() == 0;
  const int thread = threadIdx.x;
  if (way == kPut && thread == 0) {  // data, and a flag behind them
    if (sends) {
      nvshmem_int_put_nbi(target, source, kCount, 1);
      if (right) nvshmem_quiet();
      nvshmem_int_p(flag, 1, 1);
    } else {
      nvshmem_int_wait_until(flag, NVSHMEM_CMP_EQ, 1);
      for (int i = 0; i < kCount; ++i) *stale += target[i] == 0;
    }
  } else if (way == kPutOfBlock && sends) {  // by a block, to itself
    nvshmemx_int_put_nbi_block(target, source, kCount, 0);
    if (right && thread == 0) nvshmem_quiet();
    __syncthreads();
    if (thread < kCount && target[thread] == 0) atomicAdd(stale, 1);
  } else if (way == kGet && sends && thread == 0) {
    nvshmem_int_get_nbi(target, source, kCount, 1);
    if (right) nvshmem_quiet();
    else nvshmem_fence();
    for (int i = 0; i < kCount; ++i) *stale += target[i] == 0;
  } else if (way == kFlag && thread == 0) {  // a flag that is put
    if (sends) {
      nvshmem_int_put_nbi(target, source, kCount, 1);
      if (right) nvshmem_fence();
      nvshmem_int_put_nbi(flag, source, 1, 1);
    } else {
      nvshmem_int_wait_until(flag, NVSHMEM_CMP_NE, 0);
      for (int i = 0; i < kCount; ++i) *stale += target[i] == 0;
    }
  } else if (way == kBarrier) {
    if (sends && thread == 0) nvshmem_int_put_nbi(target, source, kCount, 1);
    if (right) nvshmemx_barrier_all_block();
    else nvshmemx_sync_all_block();
    if (!sends && thread < kCount && target[thread] == 0) atomicAdd(stale, 1);
  } else if (way == kHost && sends && thread == 0) {
    nvshmem_int_put_nbi(target, source, kCount, 1);
  } else if (way == kNobodyElse && thread == 0) {  // nobody completes it, but it arrives
    if (sends) nvshmem_int_put_nbi(flag, source, 1, 1);
    else nvshmem_int_wait_until(flag, NVSHMEM_CMP_NE, 0);
  }
}
int main(int, char** argv) {
  nvshmem_init();
  const auto memory = static_cast<int*>(nvshmem_calloc(256, sizeof(int)));
  int source[kCount], stale = 0;
  for (int& each : source) each = 1;
  cudaMemcpy(memory + 64, source, sizeof source, cudaMemcpyHostToDevice);
  nvshmem_barrier_all();
  const Way way = Way(atoi(argv[1]));
  const bool right = !strcmp(argv[2], "right");
  program<<<1, 64>>>(way, right, memory, memory + 64, memory + 128, memory + 192);
  cudaDeviceSynchronize();
  if (way == kHost) {
    if (right) nvshmem_barrier_all();
    else nvshmem_sync_all();
    int found;
    cudaMemcpy(&found, memory + 7, sizeof found, cudaMemcpyDeviceToHost);
    stale = nvshmem_my_pe() == 1 && found == 0;
  } else {
    cudaMemcpy(&stale, memory + 192, sizeof stale, cudaMemcpyDeviceToHost);
  }
  nvshmem_finalize();
  return stale;
}
"""
WAYS = ("put", "put of a block", "get", "flag that is put", "barrier", "host")
LATE = [Schedule(policy, seed) for policy in ("priorities", "late_stores") for seed in range(6)]


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 2, emulator_path, tmp_path_factory.mktemp("late_puts"))


@pytest.mark.parametrize("way", range(len(WAYS)), ids=WAYS)
def test_what_is_read_too_early_is_old(program: MainProgram, way: int) -> None:
    for schedule in LATE:
        ended = program.run(str(way), "right", schedule=schedule)
        assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ()), schedule
    statuses = [program.run(str(way), "wrong", schedule=schedule).outcome for schedule in LATE]
    assert Outcome.BODY_FAILED in statuses and Outcome.OK in statuses, statuses


def test_what_nobody_completes_arrives_all_the_same(program: MainProgram) -> None:
    for schedule in LATE:
        assert program.run("6", "right", schedule=schedule).outcome == Outcome.OK


def test_together_all_is_in_time(program: MainProgram) -> None:
    for way in range(len(WAYS)):
        assert program.run(str(way), "wrong", schedule=Schedule()).outcome == Outcome.OK
