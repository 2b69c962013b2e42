"""NVSHMEM's teams and collectives that move data, and hosts that wait for memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <nvshmem.h>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
constexpr int kCount = 200, kWords = 256;
#define CHECK(condition) if (!(condition)) return __LINE__ % 200 + 1
__global__ void collect(float* sum, float* x, int* words, nvshmem_team_t half, bool is_early) {
  const int pe = nvshmem_my_pe(), next = (pe + 1) % nvshmem_n_pes();
  if (is_early) x[threadIdx.x] = pe + threadIdx.x;
  nvshmemx_float_sum_reduce_block(NVSHMEM_TEAM_WORLD, sum, x, kCount);
  if (!is_early) x[threadIdx.x] = 0;
  if (threadIdx.x < 32) nvshmemx_int_fcollect_warp(NVSHMEM_TEAM_WORLD, words + 16, words, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    nvshmem_int_max_reduce(half, words + 1, words, 1);
    nvshmem_int_iput(words + 100, words, 2, 1, 2, next);
    nvshmem_fence();
    nvshmem_int_p(words + 120, 1, next);
    words[2] = int(nvshmem_int_wait_until_any(words + 119, 2, nullptr, NVSHMEM_CMP_EQ, 1));
  }
}
__global__ void answer(volatile int* flag) {
  flag[0] = 1;
  while (!flag[1]) {}
}
int collectives(bool is_late) {
  nvshmem_init();
  const int pe = nvshmem_my_pe(), pes = nvshmem_n_pes();
  nvshmem_team_t even, odd;
  nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 2, (pes + 1) / 2, nullptr, 0, &even);
  nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 1, 2, pes / 2, nullptr, 0, &odd);
  const nvshmem_team_t half = pe % 2 ? odd : even;
  CHECK((pe % 2 ? even : odd) == NVSHMEM_TEAM_INVALID);
  CHECK(nvshmem_team_my_pe(half) == pe / 2 && nvshmem_team_n_pes(half) == pes / 2);
  CHECK(nvshmem_team_translate_pe(half, 0, NVSHMEM_TEAM_WORLD) == pe % 2);
  auto* const x = static_cast<float*>(nvshmem_malloc(kCount * sizeof(float)));
  auto* const sum = static_cast<float*>(nvshmem_malloc(kCount * sizeof(float)));
  auto* const words = static_cast<int*>(nvshmem_calloc(kWords, sizeof(int)));
  cudaMemcpy(words, &pe, sizeof pe, cudaMemcpyHostToDevice);
  collect<<<1, kCount>>>(sum, x, words, half, !is_late);
  std::vector<float> sums(kCount);
  std::vector<int> found(kWords);
  nvshmemx_int_alltoall_on_stream(NVSHMEM_TEAM_WORLD, words + 64, words + 16, 1, nullptr);
  nvshmemx_float_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, x, x, kCount, nullptr);  // in place
  nvshmemx_float_broadcast_on_stream(NVSHMEM_TEAM_WORLD, sum, x, kCount, 1, nullptr);
  nvshmemx_int_put_on_stream(words + 130, words, 1, (pe + 1) % pes, nullptr);
  nvshmemx_barrier_on_stream(half, nullptr);
  nvshmemx_barrier_all_on_stream(nullptr);
  nvshmemx_int_get_on_stream(words + 131, words + 130, 1, (pe + 1) % pes, nullptr);
  CHECK(!nvshmem_int_sum_reducescatter(NVSHMEM_TEAM_WORLD, words + 200, words + 16, 1));
  CHECK(!nvshmem_fcollectmem(NVSHMEMX_TEAM_NODE, words + 210, words, sizeof(int)));
  cudaMemcpy(sums.data(), sum, kCount * sizeof(float), cudaMemcpyDeviceToHost);
  cudaMemcpy(found.data(), words, kWords * sizeof(int), cudaMemcpyDeviceToHost);
  for (int i = 0; i < kCount && !is_late; ++i) CHECK(sums[i] == pes * i + pes * (pes - 1) / 2);
  for (int i = 0; i < pes; ++i) CHECK(found[16 + i] == i && found[64 + i] == pe && found[210 + i] == i);
  const int previous = (pe + pes - 1) % pes;
  CHECK(found[1] == pes - 2 + pe % 2 && found[2] == 1 && found[100] == previous && found[200] == pes * pe);
  CHECK(found[130] == previous && found[131] == pe);
  nvshmem_finalize();
  return 0;
}
int main(int argc, char** argv) {
  if (strcmp(argv[1], "host")) return collectives(!strcmp(argv[1], "late"));
  volatile int* flag;
  cudaHostAlloc((void**)&flag, 8, cudaHostAllocMapped);
  flag[0] = flag[1] = 0;
  answer<<<1, 1>>>(flag);
  while (!flag[0]) std::this_thread::yield();
  flag[1] = 1;
  return cudaDeviceSynchronize();
}
"""


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 4, emulator_path, tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize("schedule", [Schedule(), Schedule("one_ahead", 1), Schedule("late_stores", 2)])
def test_collectives_of_all_and_of_teams_move_data(program: MainProgram, schedule: Schedule) -> None:
    ended = program.run("right", schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


def test_a_source_that_nobody_has_written_is_found(program: MainProgram) -> None:
    ended = program.run("late")
    assert {each.kind for each in ended.findings} == {"uninitialised_read"}


@pytest.mark.parametrize("schedule", [Schedule(), Schedule("priorities", 3)])
def test_a_host_that_polls_lets_its_kernel_run(program: MainProgram, schedule: Schedule) -> None:
    assert program.run("host", schedule=schedule).outcome is Outcome.OK
