"""Memory of emulated GPUs, which host code cannot touch, and writes that are none of a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rank_emulator import Ended, Outcome, RegionKind, World, compile_cuda, is_device_address

SOURCE = """
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>

__device__ int counter;
__managed__ int managed = 5;
__device__ int of_gpu;

__global__ void put(int* to, int value) { to[threadIdx.x] = value + int(threadIdx.x); }
__global__ void put_bytes(char* to) { to[threadIdx.x] = 1; }
__global__ void put_vectors(int4* to) { to[threadIdx.x] = make_int4(1, 1, 1, 1); }
__global__ void add(int* to) { atomicAdd(to + threadIdx.x, 1); }
__global__ void allocate(int** to) { *to = new int[4]; **to = 7; }
__global__ void add_to_managed() { managed = 2 * managed + 2; }

intptr_t distance;  // as host code may find it, by a search of its memory
int* of_the_emulator(int* address) { return reinterpret_cast<int*>(reinterpret_cast<char*>(address) + distance); }

extern "C" {
void find(intptr_t to_the_emulators_own) { distance = to_the_emulators_own; }
int read_argument(int* own, cudaStream_t) { return own[32]; }
int write_argument(int* own, cudaStream_t) { own[32] = 1; return 0; }
int copy_by_host(int* own, cudaStream_t) { std::memcpy(own, own + 64, 256); return 0; }
int read_allocation(int*, cudaStream_t) {
  int* memory;
  cudaMalloc(&memory, 64);
  return *memory;
}
int read_variable(int*, cudaStream_t) {
  void* address;
  cudaGetSymbolAddress(&address, counter);
  return *static_cast<int*>(address);
}
int read_what_a_kernel_allocated(int* own, cudaStream_t stream) {
  allocate<<<1, 1, 0, stream>>>(reinterpret_cast<int**>(own));
  int* memory;
  cudaMemcpyAsync(&memory, own, 8, cudaMemcpyDefault, stream);
  cudaStreamSynchronize(stream);
  return *memory;
}

int hosts_own(int*, cudaStream_t stream) {
  int *pinned, *shared, plain[32];
  cudaMallocHost(&pinned, 128);
  cudaMallocManaged(&shared, 128);
  cudaHostRegister(plain, sizeof plain, cudaHostRegisterMapped);
  int* mapped;
  cudaHostGetDevicePointer(reinterpret_cast<void**>(&mapped), plain, 0);
  put<<<1, 32, 0, stream>>>(pinned, 1);
  put<<<1, 32, 0, stream>>>(shared, 2);
  put<<<1, 32, 0, stream>>>(mapped, 3);
  add_to_managed<<<1, 1, 0, stream>>>();
  if (cudaStreamSynchronize(stream)) return -1;
  const int sum = pinned[31] + shared[31] + plain[31] + managed;
  cudaHostUnregister(plain);
  cudaFreeHost(pinned);
  return cudaFree(shared) ? -1 : sum;
}

int wild_copy(int* own, cudaStream_t stream) {
  const cudaError_t copied = cudaMemcpyAsync(own + (1 << 24), own, 4, cudaMemcpyDefault, stream);
  cudaMemsetAsync(own, 0, 8, stream);
  constexpr size_t kRound = -4;  // behind which addresses begin again
  const cudaError_t filled = cudaMemsetAsync(own + 1, 0, kRound, stream);
  const cudaError_t set = cudaMemcpyToSymbolAsync(of_gpu, own, 8, kRound, cudaMemcpyDefault, stream);
  return copied == cudaErrorInvalidValue && filled == cudaErrorInvalidValue && set == cudaErrorInvalidValue &&
         cudaHostRegister(own, 64, 0) == cudaErrorInvalidValue;
}

int by_kernels(int* own, cudaStream_t stream) {
  put<<<1, 3, 0, stream>>>(own + 5, 3);
  put_bytes<<<1, 7, 0, stream>>>(reinterpret_cast<char*>(own) + 33);
  put_vectors<<<1, 2, 0, stream>>>(reinterpret_cast<int4*>(own + 12));
  add<<<1, 3, 0, stream>>>(own + 21);
  return 0;
}
int by_copies(int* own, cudaStream_t stream) {
  const int values[3] = {1, 2, 3};
  cudaMemcpyAsync(own + 1, values, 12, cudaMemcpyDefault, stream);
  cudaMemcpyAsync(own + 8, own + 1, 9, cudaMemcpyDefault, stream);
  cudaMemsetAsync(own + 16, 4, 13, stream);
  return 0;
}
int by_host(int* own, cudaStream_t stream) {
  put<<<1, 32, 0, stream>>>(own, 1);
  cudaStreamSynchronize(stream);
  int* const alias = of_the_emulator(own);
  alias[31] = 2;
  alias[33] = 2;
  return 0;
}
int copies_to_the_alias(int* own, cudaStream_t stream) {
  const int values[2] = {1, 2};
  return cudaMemcpyAsync(of_the_emulator(own), values, 8, cudaMemcpyDefault, stream);
}
int kernel_at_the_alias(int* own, cudaStream_t stream) {
  put<<<1, 1, 0, stream>>>(of_the_emulator(own), 1);
  return 0;
}
}
"""
BYTES = 4096
Run = Callable[..., tuple[Ended, list[int]]]


@pytest.fixture(scope="module")
def library(emulator_path: Path | None) -> bytes:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return compile_cuda(SOURCE)


@pytest.fixture
def world(emulator_path: Path | None) -> Iterator[World]:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    with World(emulator_path, world_size=2, segment_bytes=BYTES, max_seconds=60) as world:
        for rank, segment in enumerate(world.segments):
            world.add_region(rank, RegionKind.ARGUMENT, "x", segment, 1024, element_bytes=4)
        yield world


def run(world: World, library: bytes, name: str, rank: int = 0) -> tuple[Ended, list[int]]:
    """Calls a function on one rank; how the run ended, and what it returned."""
    returned: list[int] = []

    def body(each: int) -> None:
        if each == rank:
            loaded = world.load(library)
            function = loaded[name]
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
            own = world.own_address(world.segments[rank], BYTES)
            assert own is not None
            loaded["find"](ctypes.c_int64(own - world.segments[rank]))
            returned.append(function(world.segments[rank], world.stream()))
            world.synchronize()

    return world.run(body), returned


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("read_argument", "argument x of rank 1, byte 128"),
        ("write_argument", "argument x of rank 1, byte 128"),
        ("copy_by_host", "argument x of rank 1, byte "),
        ("read_allocation", "allocation of rank 1, byte 0"),
        ("read_variable", "variable counter of rank 1, byte 0"),
        ("read_what_a_kernel_allocated", "allocation by malloc of rank 1, byte 0"),
    ],
)
def test_host_code_that_touches_device_memory_ends_the_run(world: World, library: bytes, name: str, place: str) -> None:
    ended, returned = run(world, library, name, rank=1)
    assert (ended.outcome, ended.rank, returned) == (Outcome.ILLEGAL_ADDRESS, 1, [])
    assert ended.message.startswith("rank 1: host code touched device memory"), ended.message
    assert place in ended.message
    again = run(world, library, "hosts_own", rank=1)
    assert (again[0].outcome, again[0].message, again[1]) == (ended.outcome, ended.message, []), "its thread is lost"


def test_memory_of_the_host_stays_touchable(world: World, library: bytes) -> None:
    """Pinned, managed and registered memory has one address for host and kernels; managed variables do, too."""
    ended, returned = run(world, library, "hosts_own")
    assert (ended.outcome, ended.message) == (Outcome.OK, "")
    assert returned == [32 + 33 + 34 + 12]


def test_addresses_of_gpus_lie_where_no_process_can_map_memory(world: World, library: bytes) -> None:
    assert all(map(is_device_address, world.segments)) and len(set(world.segments)) == 2
    view = world.memory(1)
    own = ctypes.addressof(ctypes.c_char.from_buffer(view))
    assert not is_device_address(own) and world.own_address(world.segments[1], BYTES) == own
    assert world.own_address(world.segments[1], BYTES + 1) is None
    assert world.own_address(own, 1) is None, "the emulator's own address is none that programs have"
    assert run(world, library, "wild_copy")[1] == [1]


def test_what_is_made_of_the_bits_of_an_address_is_none(world: World) -> None:
    """Host code wrote results there, as an address without its upper bits was the emulator's own."""
    with open("/proc/self/maps") as file:
        spans = [tuple(int(end, 16) for end in line.split(" ", 1)[0].split("-")) for line in file]
    for segment in world.segments:
        own = world.own_address(segment, BYTES)
        assert own is not None and (own - segment) % (1 << 30) == 0, "both are aligned alike"
        for bits in (47, 48):
            without = segment & ((1 << bits) - 1)
            assert without != own and not any(begin <= without < end for begin, end in spans)


def test_a_kernel_cannot_use_the_emulators_own_address(world: World, library: bytes) -> None:
    ended, _ = run(world, library, "kernel_at_the_alias")
    assert ended.outcome == Outcome.ILLEGAL_ADDRESS and "put" in ended.message


def foreign(world: World, before: bytes, begin: int, end: int) -> int | None:
    """The first byte of a range of rank 0's segment that no operation of a GPU has written."""
    copy = ctypes.create_string_buffer(before, len(before))
    return world.first_foreign(world.segments[0] + begin, end - begin, ctypes.addressof(copy) + begin)


@pytest.mark.parametrize("name", ["by_kernels", "by_copies"])
def test_what_kernels_and_copies_write_is_known_to_the_byte(world: World, library: bytes, name: str) -> None:
    view = world.memory(0)
    before = bytes(view)
    assert run(world, library, name)[0].outcome == Outcome.OK
    assert foreign(world, before, 0, BYTES) is None
    for at in range(100):
        kept, view[at] = view[at], view[at] ^ 0x55
        assert foreign(world, before, 0, BYTES) == (None if is_written(name, at) else at)
        view[at] = kept


def is_written(name: str, at: int) -> bool:
    """Whether the function's kernels or copies write a byte, by their text."""
    ranges = {
        "by_kernels": [(20, 32), (33, 40), (48, 80), (84, 96)],
        "by_copies": [(4, 16), (32, 41), (64, 77)],
    }
    return any(begin <= at < end for begin, end in ranges[name])


def test_what_host_code_writes_where_a_gpu_has_written_is_found(world: World, library: bytes) -> None:
    before = bytes(world.memory(0))
    world.watch_host_writes(world.segments[0], BYTES)
    assert run(world, library, "by_host")[0].outcome == Outcome.OK
    assert foreign(world, before, 0, BYTES) == 31 * 4
    world.memory(0)[:4] = b"test"  # not while host code has the turn
    assert run(world, library, "by_kernels")[0].outcome == Outcome.OK
    assert foreign(world, before, 32 * 4 + 8, BYTES) is None
    world.watch_host_writes(world.segments[0], BYTES, is_on=False)
    assert run(world, library, "by_host")[0].outcome == Outcome.OK
    assert foreign(world, before, 0, BYTES) == 33 * 4


@pytest.mark.parametrize(("name", "place"), [("by_host", 33 * 4), ("copies_to_the_alias", 0)])
def test_what_host_code_writes_past_the_gpu_is_found(world: World, library: bytes, name: str, place: int) -> None:
    before = bytes(world.memory(0))
    assert run(world, library, name)[0].outcome == Outcome.OK
    assert foreign(world, before, 0, BYTES) == place
    assert foreign(world, before, place + 8, BYTES) is None
    world.set_initialised(world.segments[0], BYTES, is_initialised=True)
    assert foreign(world, before, 0, BYTES) is None
    world.watch_writes(world.segments[0] + place, 4)
    assert foreign(world, before, 0, BYTES) == place
    assert foreign(world, bytes(world.memory(0)), 0, BYTES) is None
    world.set_initialised(world.segments[0] + place, 4, is_initialised=False)
    assert foreign(world, before, 0, BYTES) == place
