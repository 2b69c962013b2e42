"""The heap that kernels allocate from: malloc, free, new and delete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulator.tests.libraries import Library
from emulator.tests.test_function_pointers import fine
from emulator.tests.worlds import EmulatorLibrary, entry, store_each
from rank_emulator import Outcome

LANES = np.arange(32)
SOURCE = r"""
#define HOST(name, ...) \
  extern "C" int name(int* out, int* peer, int rank, cudaStream_t stream) { __VA_ARGS__; return cudaGetLastError(); }

struct Node { int value; Node* next; };
__device__ Node* lists[32];
__global__ void build() {
  for (int i = 0; i < 4; ++i) {
    Node* const node = static_cast<Node*>(malloc(sizeof(Node)));
    node->value = 10 * threadIdx.x + i;
    node->next = i ? lists[threadIdx.x] : nullptr;
    lists[threadIdx.x] = node;
  }
}
__global__ void sum(int* out) {
  int found = 0;
  for (const Node* node = lists[threadIdx.x]; node; node = node->next) found += node->value;
  out[threadIdx.x] = found;
}
__global__ void drop() {
  for (Node* node = lists[threadIdx.x]; node;) {
    Node* const next = node->next;
    free(node);
    node = next;
  }
  free(nullptr);
}
HOST(lists_over_kernels, build<<<1, 32, 0, stream>>>(); sum<<<1, 32, 0, stream>>>(out); drop<<<1, 32, 0, stream>>>())

__global__ void shared_buffer(int* out, bool waits, int freeing) {
  __shared__ int* buffer;
  if (threadIdx.x == 0) buffer = new int[blockDim.x];
  __syncthreads();
  buffer[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
  if (waits) __syncthreads();
  if (threadIdx.x == freeing) delete[] buffer;
}
HOST(buffer_of_a_block, shared_buffer<<<2, 64, 0, stream>>>(out, true, 0))
HOST(freed_before_the_reads, shared_buffer<<<1, 64, 0, stream>>>(out, false, 0))
HOST(freed_after_the_reads, shared_buffer<<<1, 64, 0, stream>>>(out, false, 63))

__global__ void take_all(int* out, size_t bytes, int most) {
  int count = 0;
  char* last = nullptr;
  for (; count < most; ++count) {
    char* const block = static_cast<char*>(malloc(bytes));
    if (!block) break;
    *reinterpret_cast<char**>(block) = last;
    last = block;
  }
  out[0] = count;
  for (int i = 0; last; ++i) {
    char* const next = *reinterpret_cast<char**>(last);
    free(last);
    last = next;
  }
  char* const whole = static_cast<char*>(malloc(bytes * count / 2));
  out[1] = whole != nullptr;
  free(whole);
}
HOST(heap_of_the_documentation, take_all<<<1, 1, 0, stream>>>(out, 1 << 20, 100))
HOST(smaller_heap, cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 10);
     take_all<<<1, 1, 0, stream>>>(out, 100000, 100))
HOST(heaps_of_ranks, if (rank == 0) cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 10);
     take_all<<<1, 1, 0, stream>>>(out, 100000, 50))
HOST(limits, size_t bytes; int found[5]; cudaDeviceGetLimit(&bytes, cudaLimitMallocHeapSize); found[0] = int(bytes);
     found[1] = cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20);
     cudaDeviceGetLimit(&bytes, cudaLimitMallocHeapSize);
     found[2] = int(bytes); build<<<1, 32, 0, stream>>>();
     found[3] = cudaDeviceSetLimit(cudaLimitMallocHeapSize, 2 << 20);
     cudaDeviceGetLimit(&bytes, cudaLimitMallocHeapSize); found[4] = int(bytes); cudaGetLastError();
     cudaMemcpy(out, found, sizeof found, cudaMemcpyHostToDevice))

__device__ int* kept;
__global__ void keep() { kept = static_cast<int*>(malloc(64)); for (int i = 0; i < 16; ++i) kept[i] = i; }
HOST(not_for_the_runtime, keep<<<1, 1, 0, stream>>>(); cudaStreamSynchronize(stream); int *p, word, found[4];
     cudaMemcpyFromSymbol(&p, kept, sizeof p); found[0] = cudaFree(p); found[2] = cudaMemset(p, 0, 64);
     found[1] = cudaMemcpy(&word, p, 4, cudaMemcpyDeviceToHost);
     found[3] = cudaMemcpyAsync(p, out, 4, cudaMemcpyDeviceToDevice, stream); cudaGetLastError();
     cudaMemcpy(out, found, sizeof found, cudaMemcpyHostToDevice))

__global__ void free_twice() { void* const p = malloc(8); free(p);
  free(p);  // twice
}
__global__ void free_argument(void* p) { free(p); }
__global__ void free_inside() { free(static_cast<char*>(malloc(64)) + 16); }
__global__ void use_after_free(int* out) { int* const p = new int(3); *out = *p; delete p;
  *out += *p;  // too late
}
__global__ void beyond(int* out) { int* const p = new int[4]; p[3] = 1;
  p[4] = 1;  // beyond
  *out = p[3]; }
HOST(freed_twice, free_twice<<<1, 1, 0, stream>>>())
HOST(foreign, void* p; cudaMalloc(&p, 64); free_argument<<<1, 1, 0, stream>>>(p))
HOST(freed_inside, free_inside<<<1, 1, 0, stream>>>())
HOST(used_after, use_after_free<<<1, 1, 0, stream>>>(out))
HOST(used_beyond, beyond<<<1, 1, 0, stream>>>(out))

__global__ void read_fresh(int* out) { const int* const p = static_cast<int*>(malloc(8));
  *out = p[1];  // never written
}
HOST(uninitialised, read_fresh<<<1, 1, 0, stream>>>(out))
__device__ int* passed;
__global__ void write_both(int* out) {
  if (blockIdx.x == 0) { passed = new int(1); __threadfence(); atomicExch(out, 1); *passed = 2; }
  else { while (atomicAdd(out, 0) == 0) {} *passed = 3; }
}
HOST(racing, cudaMemsetAsync(out, 0, 4, stream); write_both<<<2, 1, 0, stream>>>(out))
"""


@pytest.fixture(scope="module")
def library(emulator_path: Path | None) -> Library:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return Library(emulator_path, SOURCE)


def line_of(text: str) -> str:
    return f"kernel.cu:{SOURCE[: SOURCE.index(text)].count(chr(10)) + 1}"


def test_memory_of_one_kernel_is_used_and_freed_by_later_ones(library: Library) -> None:
    np.testing.assert_array_equal(fine(library.call("lists_over_kernels")), 40 * LANES + 6)


def test_a_block_shares_what_one_thread_allocates(library: Library) -> None:
    np.testing.assert_array_equal(fine(library.call("buffer_of_a_block"), 128), np.tile(np.arange(64)[::-1], 2))


def test_freeing_what_others_still_read_is_a_race(library: Library) -> None:
    """It is a fault where the memory is gone before the read."""
    late = library.call("freed_before_the_reads")
    assert late.outcome == Outcome.ILLEGAL_ADDRESS and "freed at kernel.cu" in late.message
    ended = library.call("freed_after_the_reads")
    assert ended.outcome == Outcome.OK, ended.message
    assert any(finding.kind == "race" and "write by `free`" in finding.message for finding in ended.findings)


@pytest.mark.parametrize(("name", "fewest", "most"), [("heap_of_the_documentation", 7, 7), ("smaller_heap", 40, 41)])
def test_an_exhausted_heap_gives_null_and_freed_memory_again(
    library: Library, name: str, fewest: int, most: int
) -> None:
    count, again = fine(library.call(name), 2)
    assert fewest <= count <= most and again == 1


def test_each_rank_has_a_heap_of_its_own(library: Library) -> None:
    ended = library.call("heaps_of_ranks", ranks=2)
    assert fine(ended, 1)[0] == 41 and fine(ended, 1, rank=1)[0] == 50


def test_the_limit_is_fixed_once_a_kernel_allocates(library: Library) -> None:
    invalid = 1
    expected = [8 << 20, 0, 16 << 20, invalid, 16 << 20]
    np.testing.assert_array_equal(fine(library.call("limits"), 5), expected)


def test_the_runtime_takes_no_memory_of_the_heap(library: Library) -> None:
    np.testing.assert_array_equal(fine(library.call("not_for_the_runtime"), 4), [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("name", "problem", "where"),
    [
        ("freed_twice", "that is freed: allocation freed at kernel.cu", "// twice"),
        ("foreign", "malloc has not returned", "void free_argument"),
        ("freed_inside", "malloc has not returned", "void free_inside"),
        ("used_after", "freed at kernel.cu", "// too late"),
        ("used_beyond", "beyond the end of allocation by malloc", "// beyond"),
    ],
)
def test_misuse_is_a_fault_with_its_line(library: Library, name: str, problem: str, where: str) -> None:
    ended = library.call(name)
    assert ended.outcome == Outcome.ILLEGAL_ADDRESS
    assert problem in ended.message and f"at {line_of(where)}:" in ended.message


def test_fresh_memory_counts_as_never_written(library: Library) -> None:
    ended = library.call("uninitialised")
    assert [finding.kind for finding in ended.findings] == ["uninitialised_read"]
    assert line_of("// never written") in ended.findings[0].message


def test_a_race_on_memory_of_the_heap_is_found(library: Library) -> None:
    ended = library.call("racing")
    assert "race" in {finding.kind for finding in ended.findings}


@pytest.mark.parametrize("alignment", [32, 4096])
def test_aligned_memory(emulator: EmulatorLibrary, alignment: int) -> None:
    declared = ".extern .func (.param .b64 r) __cuda_syscall_aligned_malloc (.param .b64 bytes, .param .b64 alignment);"
    body = f"""
    {{ .param .b64 a; .param .b64 b; .param .b64 c;
    st.param.b64 [a], 24;
    st.param.b64 [b], {alignment};
    call.uni (c), __cuda_syscall_aligned_malloc, (a, b);
    ld.param.b64 %rd2, [c]; }}
    st.b64 [%rd2+16], %rd0;
    rem.u64 %rd3, %rd2, {alignment};
    cvt.u32.u64 %r2, %rd3;
"""
    ended = emulator.run(entry(body + store_each("%r2"), before=declared))
    assert ended.outcome == Outcome.OK, ended.message
    assert set(ended.words(32)) == {0}
