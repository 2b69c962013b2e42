"""Collectives of MPI whose parts differ in size, and those that reduce and scatter."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <mpi.h>
#include <cstring>
#include <numeric>
#define CHECK(condition) if (!(condition)) return __LINE__ % 200 + 1
const auto kWorld = MPI_COMM_WORLD;
__global__ void fill(int* to, int count, int first) { for (int i = 0; i < count; ++i) to[i] = first + i; }
__global__ void check(const int* from, int count, int first) {
  for (int i = 0; i < count; ++i) if (from[i] != first + i) __trap();
}
// Rank r has r + 1 numbers, from 100 r on.
int main(int, char** argv) {
  int rank, size;
  MPI_Comm_rank(kWorld, &rank);
  MPI_Comm_size(kWorld, &size);
  const bool too_many = !strcmp(argv[1], "too_many");
  std::vector<int> counts(size), starts(size), mine(rank + 1), all(64, -1);
  for (int r = 0; r < size; ++r) counts[r] = r + 1, starts[r] = 10 * r;
  std::iota(mine.begin(), mine.end(), 100 * rank);
  const auto has_all = [&] {
    bool has = true;
    for (int r = 0; r < size; ++r) {
      for (int i = 0; i < 10; ++i) has &= all[10 * r + i] == (i <= r ? 100 * r + i : -1);
    }
    return has;
  };
  if (too_many) --counts[1];
  MPI_Allgatherv(mine.data(), rank + 1, MPI_INT, all.data(), counts.data(), starts.data(), MPI_INT, kWorld);
  CHECK(has_all());
  all.assign(64, -1);
  std::copy(mine.begin(), mine.end(), all.begin() + 10 * rank);
  MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_INT, all.data(), counts.data(), starts.data(), MPI_INT, kWorld);
  CHECK(has_all());
  all.assign(64, -1);
  MPI_Gatherv(mine.data(), rank + 1, MPI_INT, all.data(), counts.data(), starts.data(), MPI_INT, 1, kWorld);
  CHECK(rank == 1 ? has_all() : all[0] == -1);
  std::vector<int> part(rank + 1);
  MPI_Scatterv(all.data(), counts.data(), starts.data(), MPI_INT, part.data(), rank + 1, MPI_INT, 1, kWorld);
  CHECK(part == mine);
  int *from, *to;  // memory of the GPU: r + 1 numbers for each rank, which gets them one behind the other
  cudaMalloc(&from, 64 * sizeof(int));
  cudaMalloc(&to, 64 * sizeof(int));
  fill<<<1, 1>>>(from, 64, 1000 * rank);
  cudaDeviceSynchronize();
  std::vector<int> same(size, rank + 1), ends(size);
  for (int r = 0; r < size; ++r) ends[r] = r * (r + 1) / 2;
  MPI_Alltoallv(from, same.data(), starts.data(), MPI_INT, to, counts.data(), ends.data(), MPI_INT, kWorld);
  for (int r = 0; r < size; ++r) check<<<1, 1>>>(to + ends[r], r + 1, 1000 * r + 10 * rank);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<int> ones(ends[size - 1] + size, rank), sums(rank + 1);
  MPI_Reduce_scatter(ones.data(), sums.data(), counts.data(), MPI_INT, MPI_SUM, kWorld);
  for (const int sum : sums) CHECK(sum == size * (size - 1) / 2);
  const int two[] = {rank, 10, rank, 20, rank, 30};
  int most[2];
  MPI_Reduce_scatter_block(two, most, 2, MPI_INT, MPI_MAX, kWorld);
  CHECK(most[0] == size - 1 && most[1] == 10 * (rank + 1));
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 3, emulator_path, tmp_path_factory.mktemp("mpi_collectives"))


@pytest.mark.parametrize("schedule", [Schedule(), Schedule("priorities", 1)], ids=["together", "priorities"])
def test_parts_of_different_sizes(program: MainProgram, schedule: Schedule) -> None:
    ended = program.run("right", schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


def test_a_part_that_is_too_long_is_named(program: MainProgram) -> None:
    ended = program.run_apart("too_many")
    assert ended.outcome == Outcome.BODY_FAILED and "gives more than another expects" in ended.message, ended.message
