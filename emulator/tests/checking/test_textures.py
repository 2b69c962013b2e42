"""Texture objects of linear memory: elements, edges, and what was written while a kernel runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.tests.checking.main_program import MainProgram
from rank_emulator import Outcome, Schedule

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstring>
#include <string>
#include <vector>
#define CHECK(condition) if (!(condition)) return __LINE__ % 200 + 1
using Object = cudaTextureObject_t;
template <class T> __global__ void fetch(Object from, T* to, int first) {
  to[threadIdx.x] = tex1Dfetch<T>(from, first + int(threadIdx.x));
}
template <class T> __global__ void sample(Object from, T* to, float x, float step, float y) {
  to[threadIdx.x] = tex2D<T>(from, x + step * threadIdx.x, y);
}
__global__ void store_and_fetch(Object from, float* memory, float* to, bool stores, bool fetches) {
  if (stores) memory[threadIdx.x] = threadIdx.x + 1.0f;
  __syncthreads();
  if (fetches) to[threadIdx.x] = tex1Dfetch<float>(from, 31 - threadIdx.x);
}
void* memory;

template <class T> Object line(const std::vector<T>& content, cudaTextureReadMode mode = cudaReadModeElementType) {
  cudaResourceDesc resource = {};
  cudaTextureDesc how = {};
  how.readMode = mode;
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear = {memory, cudaCreateChannelDesc<T>(), content.size() * sizeof(T)};
  cudaMemcpy(memory, content.data(), content.size() * sizeof(T), cudaMemcpyHostToDevice);
  Object made = 0;
  cudaCreateTextureObject(&made, &resource, &how, nullptr);
  return made;
}
template <class T> std::vector<T> results(T* from, int count) {
  std::vector<T> found(count);
  cudaMemcpy(found.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost);
  return found;
}
template <class T> std::vector<T> fetched(Object object, int first, int count) {
  T* to;
  cudaMalloc(&to, count * sizeof(T));
  fetch<<<1, count>>>(object, to, first);
  return results(to, count);
}
// Rows of 5 numbers, 10 y + x.
Object rows(cudaTextureAddressMode edge, bool is_normalised, cudaTextureFilterMode filter = cudaFilterModePoint) {
  cudaResourceDesc resource = {};
  cudaTextureDesc how = {};
  how.addressMode[0] = how.addressMode[1] = edge;
  how.normalizedCoords = is_normalised;
  how.filterMode = filter;
  float content[4][5];
  for (int y = 0; y < 4; ++y) for (int x = 0; x < 5; ++x) content[y][x] = 10 * y + x;
  cudaMemcpy2D(memory, 64, content, 20, 20, 4, cudaMemcpyHostToDevice);
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D = {memory, cudaCreateChannelDesc<float>(), 5, 4, 64};
  Object made = 0;
  cudaCreateTextureObject(&made, &resource, &how, nullptr);
  return made;
}
std::vector<float> sampled(Object object, float x, float step, float y, int count) {
  float* to;
  cudaMalloc(&to, count * sizeof(float));
  sample<<<1, count>>>(object, to, x, step, y);
  return results(to, count);
}
using Floats = std::vector<float>;

int elements() {
  CHECK(fetched<float>(line(Floats{1, 2.5, -3}), -1, 5) == (Floats{0, 1, 2.5, -3, 0}));
  const auto pairs = fetched<int2>(line(std::vector<int2>{{1, -2}, {3, 4}}), 0, 3);
  CHECK(pairs[0].x == 1 && pairs[0].y == -2 && pairs[1].y == 4 && pairs[2].x == 0);
  const auto bytes = fetched<uchar4>(line(std::vector<uchar4>{{1, 200, 3, 255}}), 0, 1);
  CHECK(bytes[0].x == 1 && bytes[0].y == 200 && bytes[0].w == 255);
  CHECK(fetched<short>(line(std::vector<short>{-5, 7}), 0, 2) == (std::vector<short>{-5, 7}));
  const auto mode = cudaReadModeNormalizedFloat;
  CHECK(fetched<float>(line(std::vector<unsigned char>{0, 51, 255}, mode), 0, 3) == (Floats{0, 0.2f, 1}));
  CHECK(fetched<float>(line(std::vector<short>{32767, -32768}, mode), 0, 2) == (Floats{1, -1}));
  CHECK(fetched<float4>(line(std::vector<float4>{{1, 2, 3, 4}}), 0, 1)[0].w == 4);
  return 0;
}
int edges() {
  CHECK(sampled(rows(cudaAddressModeClamp, false), -1.5f, 1, 2.9f, 8) == (Floats{20, 20, 20, 21, 22, 23, 24, 24}));
  CHECK(sampled(rows(cudaAddressModeBorder, false), -1.5f, 1, 1, 8) == (Floats{0, 0, 10, 11, 12, 13, 14, 0}));
  CHECK(sampled(rows(cudaAddressModeBorder, false), 0, 1, 4, 2) == (Floats{0, 0}));
  CHECK(sampled(rows(cudaAddressModeWrap, true), -0.1f, 0.4f, 1.3f, 4) == (Floats{14, 11, 13, 10}));
  CHECK(sampled(rows(cudaAddressModeMirror, true), 0.9f, 0.2f, 0.3f, 3) == (Floats{14, 14, 13}));
  return 0;
}
int main(int, char** argv) {
  const std::string mode = argv[1];
  cudaMalloc(&memory, 4096);
  float *numbers = static_cast<float*>(memory), *to;
  cudaMalloc(&to, 4096);
  if (mode == "elements") return elements();
  if (mode == "edges") return edges();
  if (mode == "filter") return rows(cudaAddressModeClamp, false, cudaFilterModeLinear) != 0;
  if (mode == "destroyed") {
    const Object object = line(Floats(32));
    CHECK(cudaDestroyTextureObject(object) == cudaSuccess && cudaDestroyTextureObject(object) == cudaErrorInvalidValue);
    fetch<<<1, 1>>>(object, to, 0);
  }
  if (mode == "two_kernels" || mode == "one_kernel") {
    const Object object = line(Floats(32));
    const bool is_apart = mode == "two_kernels";
    store_and_fetch<<<1, 32>>>(object, numbers, to, true, !is_apart);
    if (is_apart) {
      store_and_fetch<<<1, 32>>>(object, numbers, to, false, true);
      CHECK(results(to, 32)[31] == 1);
    }
  }
  if (mode == "freed") {
    const Object object = line(Floats(32));
    cudaFree(memory);
    fetch<<<1, 1>>>(object, to, 0);
  }
  if (mode == "misplaced") {
    memory = numbers + 1;
    return line(Floats(32)) != 0;
  }
  return cudaDeviceSynchronize() != cudaSuccess;
}
"""


@pytest.fixture(scope="module")
def program(emulator_path: Path | None, tmp_path_factory: pytest.TempPathFactory) -> MainProgram:
    return MainProgram.of(SOURCE, 1, emulator_path, tmp_path_factory.mktemp("textures"))


@pytest.mark.parametrize("mode", ["elements", "edges", "two_kernels", "misplaced"])
def test_what_is_right_is_silent(program: MainProgram, mode: str) -> None:
    for schedule in (Schedule(), Schedule("late_stores", 1)):
        ended = program.run(mode, schedule=schedule)
        assert (ended.outcome, ended.message, ended.findings) == (Outcome.OK, "", ())


def test_a_texture_shows_nothing_of_its_own_kernel(program: MainProgram) -> None:
    (finding,) = program.run("one_kernel").findings
    assert finding.finding_class == "unsynchronised" and "a texture may show stale bytes" in finding.message


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("filter", Outcome.BODY_FAILED, "cudaCreateTextureObject with a linear filter is not modelled"),
        ("destroyed", Outcome.TRAP, "there is no such texture object"),
        ("freed", Outcome.ILLEGAL_ADDRESS, "illegal address of a texture"),
    ],
)
def test_mistakes_are_named(program: MainProgram, mode: str, outcome: Outcome, words: str) -> None:
    ended = program.run_apart(mode)
    assert ended.outcome == outcome and words in ended.message, ended.message
