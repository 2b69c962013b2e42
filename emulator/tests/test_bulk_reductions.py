"""Reductions by bulk copies: every operation and type, and those of two ranks into one tile."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from emulator.tests.libraries import Called, Library
from emulator.tests.test_async_copies import MAGIC, MAP_AT, OUT_AT, SHARED, START, TENSOR_AT, WAIT, dumped
from emulator.tests.test_function_pointers import fine
from emulator.tests.worlds import EmulatorLibrary, entry
from rank_emulator import Outcome

DTYPES = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64}
DTYPES |= {"f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16}
GLOBAL = [
    *(("add", kind) for kind in ("u32", "s32", "u64", "s64", "f32", "f64", "f16", "bf16")),
    *((name, kind) for name in ("min", "max") for kind in ("u32", "s32", "u64", "s64", "f16", "bf16")),
    *((name, "u32") for name in ("inc", "dec")),
    *((name, kind) for name in ("and", "or", "xor") for kind in ("b32", "b64")),
]
BYTES = 512
SOURCE_AT = 32768


def of_brain(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_brain(values: np.ndarray) -> np.ndarray:
    words = values.view(np.uint32).astype(np.uint64)
    return (words + 0x7FFF + (words >> np.uint64(16) & np.uint64(1)) >> np.uint64(16)).astype(np.uint16)


OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": lambda a, b: a + b,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda a, b: np.where(a >= b, 0, a + 1).astype(a.dtype),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1).astype(a.dtype),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def numbers(kind: str, seed: int) -> np.ndarray:
    """Operands; of floats small multiples of 1/8, whose sums most formats round."""
    draw = np.random.default_rng(seed)
    dtype = np.dtype(DTYPES[kind])
    count = BYTES // dtype.itemsize
    if kind == "bf16":
        return to_brain((draw.integers(-3000, 3000, count) / 8).astype(np.float32))
    if dtype.kind == "f":
        return (draw.integers(-3000, 3000, count) / 8).astype(dtype)
    high = 7 if seed % 2 else 2 ** (8 * dtype.itemsize - 1)
    return draw.integers(-high if dtype.kind == "i" else 0, high, count, dtype=dtype)


def reduced(operation: str, kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if kind == "bf16":
        return to_brain(OPERATIONS[operation](of_brain(a), of_brain(b)))
    with np.errstate(over="ignore"):
        return OPERATIONS[operation](a, b)


def content(a: np.ndarray, b: np.ndarray, of_map: np.ndarray | None = None) -> np.ndarray:
    """The heap: the map, the tensor, and what is reduced into it."""
    heap = np.zeros(OUT_AT, np.uint8)
    if of_map is not None:
        heap[MAP_AT : MAP_AT + len(of_map)] = of_map
    heap[TENSOR_AT : TENSOR_AT + BYTES] = a.view(np.uint8)
    heap[SOURCE_AT : SOURCE_AT + BYTES] = b.view(np.uint8)
    return heap


def filled(at: int = 0, source: int = SOURCE_AT) -> str:
    """Fills shared memory from the heap, by one warp."""
    lines = ["shl.b32 %r4, %r1, 2;", "add.u32 %r5, %r2, %r4;", "cvt.u64.u32 %rd4, %r4;", "add.u64 %rd4, %rd4, %rd0;"]
    for offset in range(0, BYTES, 128):
        lines += [f"ld.global.u32 %r6, [%rd4+{source + offset}];", f"st.shared.u32 [%r5+{at + offset}], %r6;"]
    return "\n".join([*lines, "bar.sync 0;", "fence.proxy.async;", "setp.ne.u32 %p2, %r1, 0;"]) + "\n"


GROUP = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nEND:\nbar.sync 0;\n"


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(("operation", "kind"), GLOBAL)
def test_into_global_memory(emulator: EmulatorLibrary, operation: str, kind: str, seed: int) -> None:
    a, b = numbers(kind, seed), numbers(kind, seed + 2)
    noftz = ".noftz" if operation == "add" and kind in ("f16", "bf16") else ""
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{noftz}.{kind}"
    body = START + filled() + f"@%p2 bra END;\n{opcode} [%rd3], [%r2], {BYTES};\n" + GROUP
    ended = emulator.run(entry(body, before=SHARED), fill=lambda _: content(a, b))
    assert ended.outcome == Outcome.OK, ended.message
    got = ended.segments[0][TENSOR_AT : TENSOR_AT + BYTES].view(a.dtype)
    np.testing.assert_array_equal(got, reduced(operation, kind, a, b))


# Words that are hard for floats, what is reduced into them, and the results of an H100.
INTO = "00000001 007fffff 80000001 7fc00000 7f800000 ff800000 7e00fc00 00008000 80000000 7c013c00 00018001 3f803f80"
FROM = "00000001 00000001 00000001 3f800000 ff800000 ff800000 3c007e00 80000000 00008000 3c007c01 00018001 ff817f81"
H100 = {
    "add.f32": (
        "00000002 00800000 00000000 7fffffff 7fffffff ff800000 7e00fc00 00008000 00008000 7c013c00 00030002 7fffffff"
    ),
    "min.f16": (
        "00000001 00000001 80000001 3f800000 7fff0000 7fff0000 3c00fc00 80008000 80008000 3c003c00 00018001 3f803f80"
    ),
    "max.bf16": (
        "00000001 007f0001 00000001 3f800000 7f800000 ff800000 7e007e00 00000000 00000000 7c017c01 00018001 3f803f80"
    ),
    "add.noftz.f16": (
        "00000002 007f7fff 00000002 7fff0000 7fff0000 7fff0000 7fff7fff 00000000 00000000 7fff7fff 00028002 7fff7fff"
    ),
    "add.noftz.bf16": (
        "00000002 007f7fff 00000002 7fff0000 7fff0000 ff800000 7e007df0 00000000 00000000 7c017c01 00028002 7fff7fff"
    ),
}


def words(text: str) -> np.ndarray:
    """Hexadecimal words, and zeros behind them."""
    found = np.array([int(word, 16) for word in text.split()], np.uint32)
    return np.concatenate([found, np.zeros(BYTES // 4 - len(found), np.uint32)])


@pytest.mark.parametrize("ending", H100)
def test_hard_numbers_become_what_they_become_on_a_gpu(emulator: EmulatorLibrary, ending: str) -> None:
    """NaN, infinities, zeros of either sign and subnormal numbers."""
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{ending}"
    body = START + filled() + f"@%p2 bra END;\n{opcode} [%rd3], [%r2], {BYTES};\n" + GROUP
    ended = emulator.run(entry(body, before=SHARED), fill=lambda _: content(words(INTO), words(FROM)))
    assert ended.outcome == Outcome.OK, ended.message
    got = ended.segments[0][TENSOR_AT : TENSOR_AT + BYTES].view(np.uint32)
    assert [f"{word:08x}" for word in got[:12]] == H100[ending].split()


CLUSTER = [pair for pair in GLOBAL if pair[1] in ("u32", "s32", "b32") or pair == ("add", "u64")]


@pytest.mark.parametrize(("operation", "kind"), CLUSTER)
def test_into_shared_memory(emulator: EmulatorLibrary, operation: str, kind: str) -> None:
    a, b = numbers(kind, 2), numbers(kind, 4)
    opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{operation}.{kind}"
    body = START + filled(at=4096) + filled(source=TENSOR_AT)
    body += f"""
    add.u32 %r7, %r2, 4096;
    @%p2 bra WAIT;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {BYTES};
    {opcode} [%r2], [%r7], {BYTES}, [%r3];
WAIT:
    bar.sync 0;
    """
    body += WAIT.format(label="REDUCED", barrier="%r3", parity=0) + dumped(BYTES)
    ended = emulator.run(entry(body, before=SHARED), fill=lambda _: content(a, b))
    assert ended.outcome == Outcome.OK, ended.message
    got = ended.segments[0][OUT_AT : OUT_AT + BYTES].view(a.dtype)
    np.testing.assert_array_equal(got, reduced(operation, kind, a, b))


MAP_TYPES = {"u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
TENSORS = [pair for pair in GLOBAL if pair[1] in MAP_TYPES]
TENSORS += [(name, kind) for name in ("and", "or", "xor") for kind in ("u32", "s32", "u64", "s64")]


def tensor_ptx(operation: str) -> str:
    opcode = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile.bulk_group"
    body = START + filled() + "@%p2 bra END;\nmov.u32 %r10, 0;\n"
    return entry(body + f"{opcode} [%rd2, {{%r10, %r10}}], [%r2];\n" + GROUP, before=SHARED)


def tile_map(kind: str) -> np.ndarray:
    """A tensor of 4 rows of 128 bytes, all of it one box."""
    size = np.dtype(DTYPES[kind]).itemsize
    words = struct.pack("<QQ5Q4Q5H", MAGIC, 0, 128 // size, 4, 1, 1, 1, 128, 0, 0, 0, 128 // size, 4, 1, 1, 1)
    return np.frombuffer(words + struct.pack("<4B5BB", size, 2, 0, MAP_TYPES[kind], *[1] * 5, 0), np.uint8)


@pytest.mark.parametrize(("operation", "kind"), TENSORS)
def test_into_a_tensor(emulator: EmulatorLibrary, operation: str, kind: str) -> None:
    a, b = numbers(kind, 2), numbers(kind, 4)
    ended = emulator.run(tensor_ptx(operation), fill=lambda _: content(a, b, tile_map(kind)))
    assert ended.outcome == Outcome.OK, ended.message
    got = ended.segments[0][TENSOR_AT : TENSOR_AT + BYTES].view(a.dtype)
    np.testing.assert_array_equal(got, reduced(operation, kind, a, b))


@pytest.mark.parametrize(("operation", "kind"), [("min", "f32"), ("inc", "s32"), ("and", "f32"), ("max", "f64")])
def test_what_a_tensor_has_no_reduction_for_is_named(emulator: EmulatorLibrary, operation: str, kind: str) -> None:
    a = numbers(kind, 2)
    ended = emulator.run(tensor_ptx(operation), fill=lambda _: content(a, a, tile_map(kind)))
    assert ended.outcome == Outcome.UNKNOWN_INSTRUCTION
    assert f"no reduction .{operation} of the tensor map's type .{kind}" in ended.message


@pytest.mark.parametrize("ending", ["min.f32", "inc.s32", "and.u32", "add.b32", "mul.u32"])
def test_what_ptx_has_no_reduction_for_is_refused(emulator: EmulatorLibrary, ending: str) -> None:
    body = f"{START}cp.reduce.async.bulk.global.shared::cta.bulk_group.{ending} [%rd3], [%r2], {BYTES};\n"
    ended = emulator.run(entry(body, before=SHARED))
    assert ended.outcome == Outcome.UNKNOWN_INSTRUCTION and ending in ended.message


PAIRS = r"""
#include <cuda.h>
#include <cstdint>
enum Fault {
  kNone, kReadsAtOnce, kReadsAfterItsOwn, kNoProxyFence, kWritesPlainly, kAddsByAtomics, kCopies, kSignalsEarly
};
constexpr int kCount = 256, kFlag = 4096;

__device__ uint32_t place(const void* shared) { return uint32_t(__cvta_generic_to_shared(shared)); }
__device__ void add(float* tile, const void* from) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 1024;"
               :: "l"(tile), "r"(place(from)) : "memory");
}
__device__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ void wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

template <class Reduce>
__device__ void both_into(float* tile, int* flag, int* out, int rank, int fault, Reduce reduce) {
  __shared__ alignas(128) float mine[kCount];
  mine[threadIdx.x] = float(threadIdx.x + 1000 * rank);
  if (fault != kNoProxyFence) asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (fault == kAddsByAtomics && rank == 1) {
    atomicAdd_system(tile + threadIdx.x, mine[threadIdx.x]);
    __syncthreads();
  } else if (threadIdx.x == 0) {
    if (fault == kCopies && rank == 1) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;"
                   :: "l"(tile), "r"(place(mine)) : "memory");
    } else {
      reduce(mine);
    }
    commit();
    if (fault != kSignalsEarly) wait();
  }
  if (threadIdx.x == 0) {
    __threadfence_system();
    atomicAdd_system(flag, 1);
  }
  if (fault == kSignalsEarly) wait();
  if (fault == kWritesPlainly && rank == 1 && threadIdx.x == 0) tile[7] = 1;
  if (rank != 0) return;
  if (threadIdx.x == 0 && fault != kReadsAtOnce) {
    const int expected = fault == kReadsAfterItsOwn ? 1 : 2;
    while (atomicAdd_system(flag, 0) < expected) {}
    __threadfence_system();
  }
  __syncthreads();
  out[threadIdx.x] = int(tile[threadIdx.x]);
}

__global__ void plain(float* tile, int* flag, int* out, int rank, int fault) {
  both_into(tile, flag, out, rank, fault, [&](const void* from) { add(tile, from); });
}
__global__ void by_map(const __grid_constant__ CUtensorMap map, float* tile, int* flag, int* out, int rank, int fault) {
  both_into(tile, flag, out, rank, fault, [&](const void* from) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %1}], [%2];"
                 :: "l"(&map), "r"(0), "r"(place(from)) : "memory");
  });
}

#define FAULT(name, fault) \
  extern "C" int name(int* out, int* peer, int rank, cudaStream_t stream) { \
    int* const home = rank == 0 ? out : peer; \
    plain<<<1, kCount, 0, stream>>>(reinterpret_cast<float*>(home + 8192), home + kFlag, out, rank, fault); \
    return cudaGetLastError(); \
  }
FAULT(right, kNone) FAULT(reads_at_once, kReadsAtOnce) FAULT(reads_after_its_own, kReadsAfterItsOwn)
FAULT(no_proxy_fence, kNoProxyFence) FAULT(writes_plainly, kWritesPlainly) FAULT(adds_by_atomics, kAddsByAtomics)
FAULT(copies, kCopies) FAULT(signals_early, kSignalsEarly)

extern "C" int tensor(int* out, int* peer, int rank, cudaStream_t stream) {
  int* const home = rank == 0 ? out : peer;
  float* const tile = reinterpret_cast<float*>(home + 8192);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult status;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &status);
  CUtensorMap map;
  const cuuint64_t sizes[] = {32, 8}, strides[] = {128};
  const cuuint32_t box[] = {32, 8}, steps[] = {1, 1};
  const CUresult made = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
      &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, tile, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  by_map<<<1, kCount, 0, stream>>>(map, tile, home + kFlag, out, rank, kNone);
  return made;
}
__global__ void into_fresh(float* tile) {
  __shared__ alignas(128) float mine[kCount];
  mine[threadIdx.x] = 1;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (threadIdx.x) return;
  add(tile, mine);
  commit();
  wait();
}
extern "C" int fresh(int*, int*, int, cudaStream_t stream) {
  float* tile;
  cudaMalloc(&tile, 4 * kCount);
  into_fresh<<<1, kCount, 0, stream>>>(tile);
  return cudaGetLastError();
}
"""
SCHEDULES = [("together", 1), ("one_ahead", 1), ("one_ahead", 2), ("priorities", 3), ("priorities", 4)]


@pytest.fixture(scope="module")
def library(emulator_path: Path | None) -> Library:
    if emulator_path is None:
        pytest.skip("needs the CUDA toolkit")
    return Library(emulator_path, PAIRS)


@pytest.mark.parametrize(("policy", "seed"), SCHEDULES)
@pytest.mark.parametrize("name", ["right", "tensor"])
def test_two_ranks_reduce_into_one_tile(library: Library, name: str, policy: str, seed: int) -> None:
    called = library.call(name, ranks=2, policy=policy, seed=seed)
    np.testing.assert_array_equal(fine(called, 256), 1000 + 2 * np.arange(256))


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("reads_at_once", "no_synchronisation"),
        ("reads_after_its_own", "no_synchronisation"),
        ("no_proxy_fence", "proxy_fence"),
        ("writes_plainly", "no_synchronisation"),
        ("adds_by_atomics", "no_synchronisation"),
        ("copies", "no_synchronisation"),
        ("signals_early", "completion"),
    ],
)
def test_what_is_not_ordered_with_a_reduction_is_a_race(library: Library, name: str, missing: str) -> None:
    """Under every schedule, also where the rank's own reduction is the last; but not where the peer's flag is seen."""
    found = []
    for policy, seed in SCHEDULES:
        called = library.call(name, ranks=2, policy=policy, seed=seed)
        assert called.outcome == Outcome.OK, called.message
        found.append({finding.missing for finding in called.findings if finding.kind == "race"})
    assert sum(map(bool, found)) >= len(SCHEDULES) - (name == "reads_after_its_own")
    assert any(missing in each for each in found), found


def test_a_reduction_reads_what_it_reduces_into(library: Library) -> None:
    called: Called = library.call("fresh")
    assert {finding.kind for finding in called.findings} == {"uninitialised_read"}
