"""Host code that waits without a call of CUDA, and what it does to memory that it shares with GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <cuda_runtime.h>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
constexpr int kMany = 3000;
__global__ void count(int* to) { atomicAdd(to, 1); }
__global__ void wait_for(const volatile int* flag) { while (!*flag) {} }
__global__ void add_up(const volatile int* flag, const int* values, int* sum) {
  while (!*flag) {}
  __threadfence_system();
  for (int i = 0; i < kMany; ++i) *sum += values[i];
}
template <class T> T* pinned(int words) {
  void* memory = nullptr;
  cudaMallocHost(&memory, words * 4);
  memset(memory, 0, words * 4);
  return static_cast<T*>(memory);
}
std::atomic<int> done{0};
int main(int, char** arguments) {
  const auto is = [&](const char* name) { return !strcmp(arguments[1], name); };
  int* counter;
  cudaMalloc(&counter, 4);
  cudaMemset(counter, 0, 4);
  volatile int* const flag = pinned<volatile int>(1);
  int* const values = pinned<int>(kMany);
  if (is("waits for its own callback")) {
    count<<<1, 32>>>(counter);
    cudaLaunchHostFunc(0, [](void*) { done = 1; }, nullptr);
    while (!done) {}
  }
  if (is("waits for nobody")) {
    count<<<1, 32>>>(counter);
    while (!done) {}  // line of the wait
  }
  if (is("polls what nobody writes")) {
    count<<<1, 32>>>(counter);
    while (!*flag) {}
  }
  if (is("counts in shared memory")) {
    wait_for<<<1, 1>>>(flag);
    for (int i = 0; i < kMany; ++i) *(volatile int*)values += 1;
    *flag = 1;
  }
  if (is("writes more than is looked at")) {
    add_up<<<1, 1>>>(flag, values, counter);
    for (int i = 0; i < kMany; ++i) values[i] = 1;
    *flag = 1;
    int sum = 0;
    cudaMemcpy(&sum, counter, 4, cudaMemcpyDefault);
    return sum != kMany;
  }
  if (is("writes by another thread")) {
    add_up<<<1, 1>>>(flag, values, counter);
    std::thread([&] { for (int i = 0; i < kMany; ++i) values[i] = 1; }).join();
    *flag = 1;
  }
  if (is("reads a file")) {
    add_up<<<1, 1>>>(flag, values, counter);
    FILE* const file = fopen("/dev/zero", "r");
    if (fread(values, 4, kMany, file) != kMany) return 2;
    fclose(file);
    *flag = 1;
  }
  return cudaDeviceSynchronize();
}
"""
TOGETHER = Schedule()


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 1, emulator_path, tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize("schedule", [TOGETHER, Schedule("priorities", 3)])
@pytest.mark.parametrize(
    "mode",
    [
        "waits for its own callback",
        "counts in shared memory",
        "writes more than is looked at",
        "writes by another thread",
        "reads a file",
    ],
)
def test_a_right_host_passes_in_silence(program: MainProgram, mode: str, schedule: Schedule) -> None:
    ended = program.run(mode, schedule=schedule)
    assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


def test_a_host_that_polls_shared_memory_for_ever_is_a_deadlock(program: MainProgram) -> None:
    ended = program.run("polls what nobody writes")
    assert ended.outcome is Outcome.DEADLOCK
    assert "rank 0, host: waits for memory that host code looks at again and again" in ended.message


def test_a_host_that_runs_on_for_ever_is_named_with_its_line(program: MainProgram) -> None:
    line = 1 + SOURCE.splitlines().index("    while (!done) {}  // line of the wait")
    ended = program.run("waits for nobody", timeout_s=2)
    assert ended.outcome is Outcome.STOPPED
    assert f"the host code of rank 0 runs on without a call of CUDA (program.cu:{line})" in ended.message
