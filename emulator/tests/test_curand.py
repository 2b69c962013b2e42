"""Random numbers of curand's device functions, against the same functions on the host."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from emulator.tests.libraries import Library
from emulator.tests.test_function_pointers import fine
from rank_emulator.cuda_sources import find_toolkit

SOURCE = r"""
#define QUALIFIERS static inline __host__ __device__
#include <curand_kernel.h>

constexpr int kThreads = 64, kEach = 6;

template <class State>
__host__ __device__ void draw(unsigned* to, int thread) {
  State state;
  curand_init(1234, thread, 5 + thread % 3, &state);
  for (int i = 0; i < kEach - 2; ++i) to[i] = curand(&state);
  skipahead(100ull, &state);
  to[kEach - 2] = curand(&state);
  to[kEach - 1] = unsigned(curand_uniform(&state) * 1e6f);
}
template <class State>
__global__ void draw_all(unsigned* to) { draw<State>(to + kEach * threadIdx.x, threadIdx.x); }

template <class State>
int both(unsigned* out, cudaStream_t stream) {
  draw_all<State><<<1, kThreads, 0, stream>>>(out);
  unsigned host[kThreads * kEach];
  for (int thread = 0; thread < kThreads; ++thread) draw<State>(host + kEach * thread, thread);
  return cudaMemcpyAsync(out + kThreads * kEach, host, sizeof(host), cudaMemcpyHostToDevice, stream);
}
#define STATE(name, type) \
  extern "C" int name(unsigned* out, unsigned*, int, cudaStream_t stream) { return both<type>(out, stream); }
STATE(xorwow, curandStateXORWOW_t)
STATE(philox, curandStatePhilox4_32_10_t)
STATE(mrg32k3a, curandStateMRG32k3a_t)

// States that one kernel makes and the next uses.
__global__ void make(curandState* states) { curand_init(7, threadIdx.x, 0, states + threadIdx.x); }
__global__ void normal(curandState* states, float* out) {
  curandState state = states[threadIdx.x];
  for (int i = 0; i < 100; ++i) out[100 * threadIdx.x + i] = curand_normal(&state);
  states[threadIdx.x] = state;
}
extern "C" int normals(float* out, float*, int, cudaStream_t stream) {
  curandState* states;
  cudaMalloc(&states, 128 * sizeof(curandState));
  make<<<1, 128, 0, stream>>>(states);
  normal<<<1, 128, 0, stream>>>(states, out);
  return cudaGetLastError();
}
"""


def header_folder() -> Path | None:
    """Folder of curand_kernel.h: the toolkit's, or that of the package nvidia-curand."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    folders = [find_toolkit() / "include", *(found for place in packages for found in place.glob("*/include"))]
    return next((folder for folder in folders if (folder / "curand_kernel.h").is_file()), None)


@pytest.fixture(scope="module")
def library(emulator_path: Path | None) -> Library:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    folder = header_folder()
    if folder is None:
        pytest.skip("no curand_kernel.h: neither the CUDA toolkit nor a package nvidia-curand has it here")
    return Library(emulator_path, SOURCE, [f"-I{folder}"])


@pytest.mark.parametrize("name", ["xorwow", "philox", "mrg32k3a"])
def test_numbers_are_those_of_the_host(library: Library, name: str) -> None:
    words = fine(library.call(name), 2 * 64 * 6).reshape(2, 64, 6)
    assert len(np.unique(words[0])) > 370
    np.testing.assert_array_equal(words[0], words[1])


def test_normal_numbers_are_so_distributed(library: Library) -> None:
    numbers = fine(library.call("normals"), 12_800).view(np.float32)
    assert abs(numbers.mean()) < 0.05 and abs(numbers.std() - 1) < 0.05
    assert len(np.unique(numbers)) > 12_000
