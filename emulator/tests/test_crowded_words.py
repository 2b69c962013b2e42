"""Words that tens of thousands of threads add to, with the race detector."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import pytest

from rank_emulator import Outcome, World, compile_cuda

SOURCE = """
__device__ unsigned counters[64], data[65536], sum;

__global__ void count(unsigned number) { atomicAdd(&counters[(blockIdx.x * 256 + threadIdx.x) % number], 1u); }
__global__ void count_behind_fences() {
  data[blockIdx.x * 256 + threadIdx.x] = 1;
  __threadfence();
  const unsigned before = atomicAdd(&counters[0], 1u);
  __threadfence();
  if (before == 65535) sum = data[0];
}
__global__ void last_reads() {
  data[blockIdx.x * 256 + threadIdx.x] = 1;
  if (atomicAdd(&counters[0], 1u) + 1 == 256 * gridDim.x) sum = data[0];
}
__global__ void check(unsigned number) {
  if (counters[threadIdx.x] != (threadIdx.x < number ? 65536 / number : 0)) __trap();
}
extern "C" void one(cudaStream_t stream) {
  count<<<256, 256, 0, stream>>>(1);
  check<<<1, 64, 0, stream>>>(1);
}
extern "C" void many(cudaStream_t stream) {
  count<<<256, 256, 0, stream>>>(64);
  check<<<1, 64, 0, stream>>>(64);
}
extern "C" void behind_fences(cudaStream_t stream) {
  count_behind_fences<<<256, 256, 0, stream>>>();
  check<<<1, 64, 0, stream>>>(1);
}
extern "C" void without_fence(cudaStream_t stream) { last_reads<<<40, 256, 0, stream>>>(); }
"""
MOST_S = 5
"""Seconds of processor time; a look at each store of a word by each load took 15, a clock for each thread more."""


@pytest.fixture(scope="module")
def library() -> bytes:
    return compile_cuda(SOURCE)


def _run(emulator: Path, library: bytes, name: str) -> list[str]:
    """Messages of the findings of one run."""
    with World(emulator, world_size=1, detect_races=True) as world:

        def body(_rank: int) -> None:
            function = getattr(world.load(library), name)
            function.argtypes, function.restype = (ctypes.c_void_p,), None
            function(world.stream())
            world.synchronize()

        ended = world.run(body)
        assert ended.outcome == Outcome.OK, ended.message
        return [f"{finding.finding_class}: {finding.message}" for finding in world.findings().findings]


@pytest.mark.parametrize("name", ["one", "many", "behind_fences"])
def test_atomics_cost_no_more_for_those_before_them(emulator_path: Path | None, library: bytes, name: str) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    begin = time.process_time()
    assert _run(emulator_path, library, name) == []
    assert time.process_time() - begin < MOST_S


def test_the_first_of_ten_thousand_arrivals_explains_a_race(emulator_path: Path | None, library: bytes) -> None:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    (message,) = _run(emulator_path, library, "without_fence")
    assert message.startswith("weak_order") and "without release order" in message
