// Instructions of sm_90a that pkb/gemm_sm90.h is made of, beside those of pkb/bulk_copy_cuda.h, one function each.
// Addresses of shared memory are 32-bit.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/bulk_copy_cuda.h"

namespace pkb {
namespace gemm {

// ---- barriers ----

// Arrives at the barrier of the same place in block `rank` of the cluster. Of block scope, as is `wait_phase`: what is
// handed over belongs to the copy engine and the tensor cores, and with the cluster's scope every arrival would be a
// fence of the whole GPU's memory and every wait would empty the L1 cache.
__device__ __forceinline__ void arrive_in_cluster(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier), "r"(rank) : "memory");
}

// All threads of the cluster meet.
template <int kBlocks>
__device__ __forceinline__ void cluster_sync() {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
  }
}

// `threads` threads of the block meet.
__device__ __forceinline__ void named_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void store_release_shared(uint32_t word, uint32_t value) {
  asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(word), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_acquire_shared(uint32_t word) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(word) : "memory");
  return value;
}

__device__ __forceinline__ void store_shared(uint32_t to, uint4 value) {
  asm volatile("st.shared::cta.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

// True in one thread of a warp, always the same. The compiler knows that there is but one, and issues its copies
// without a loop over threads.
__device__ __forceinline__ bool elect() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected;
}

// ---- bulk copies ----

// Fetches a tensor map ahead of its first use.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// A box of a tensor map, from column and row on, to shared memory.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, int col, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(col), "r"(row), "r"(barrier)
      : "memory");
}

// The same, to the same place in all blocks of the cluster; it completes on the barrier of each.
template <int kBlocks>
__device__ __forceinline__ void load_box_to_cluster(uint32_t to, const CUtensorMap* map, int col, int row,
                                                    uint32_t barrier) {
  if constexpr (kBlocks == 1) {
    load_box(to, map, col, row, barrier);
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(col), "r"(row), "r"(barrier), "h"(uint16_t((1 << kBlocks) - 1))
        : "memory");
  }
}

// A box of a tensor map, from shared memory.
__device__ __forceinline__ void store_box(const CUtensorMap* map, uint32_t from, int col, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(col),
               "r"(row), "r"(from)
               : "memory");
}

// Orders ordinary accesses to global memory and those of the copy engine, both ways.
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- tensor cores ----

// Descriptor of a matrix in shared memory with rows of 128 swizzled bytes: two distances in bytes, and where it starts.
__host__ __device__ constexpr uint64_t matrix_layout(uint64_t leading_bytes, uint64_t stride_bytes) {
  return leading_bytes / 16 << 16 | stride_bytes / 16 << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ uint64_t matrix_start(uint32_t address) { return (address & 0x3ffff) / 16; }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// sums = (add ? sums : 0) + A (64, 16) B (16, kCols), with A K-major, and B N-major, or K-major if it lies transposed; by
// 128 threads.
template <class T, int kCols, bool kTransposedB = false>
struct Wgmma;

#define PKB_SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define PKB_SUMS_16(i) PKB_SUMS_4(i), PKB_SUMS_4(i + 4), PKB_SUMS_4(i + 8), PKB_SUMS_4(i + 12)
#define PKB_SUMS_64(i) PKB_SUMS_16(i), PKB_SUMS_16(i + 16), PKB_SUMS_16(i + 32), PKB_SUMS_16(i + 48)
#define PKB_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PKB_REGISTERS_128 \
  PKB_REGISTERS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define PKB_WGMMA_OF(T, type, kCols, transposed, n_major, registers, a_desc, b_desc, scale, ...)                  \
  template <>                                                                                                    \
  struct Wgmma<T, kCols, transposed> {                                                                           \
    static __device__ __forceinline__ void multiply(float (&sums)[kCols / 2], uint64_t a, uint64_t b, bool add) { \
      asm volatile(                                                                                              \
          "{\n"                                                                                                  \
          ".reg .pred p;\n"                                                                                      \
          "setp.ne.b32 p, " scale ", 0;\n"                                                                       \
          "wgmma.mma_async.sync.aligned.m64n" #kCols "k16.f32." type "." type " {" registers "}, " a_desc        \
          ", " b_desc ", p, 1, 1, 0, " n_major ";\n"                                                             \
          "}"                                                                                                    \
          : __VA_ARGS__                                                                                          \
          : "l"(a), "l"(b), "r"(int(add)));                                                                      \
    }                                                                                                            \
  };
#define PKB_WGMMA(T, type, kCols, ...)                    \
  PKB_WGMMA_OF(T, type, kCols, false, "1", __VA_ARGS__) \
  PKB_WGMMA_OF(T, type, kCols, true, "0", __VA_ARGS__)
PKB_WGMMA(__nv_bfloat16, "bf16", 128, PKB_REGISTERS_64, "%64", "%65", "%66", PKB_SUMS_64(0))
PKB_WGMMA(__half, "f16", 128, PKB_REGISTERS_64, "%64", "%65", "%66", PKB_SUMS_64(0))
PKB_WGMMA(__nv_bfloat16, "bf16", 256, PKB_REGISTERS_128, "%128", "%129", "%130", PKB_SUMS_64(0), PKB_SUMS_64(64))
PKB_WGMMA(__half, "f16", 256, PKB_REGISTERS_128, "%128", "%129", "%130", PKB_SUMS_64(0), PKB_SUMS_64(64))
#undef PKB_WGMMA
#undef PKB_WGMMA_OF
#undef PKB_REGISTERS_128
#undef PKB_REGISTERS_64
#undef PKB_SUMS_64
#undef PKB_SUMS_16
#undef PKB_SUMS_4

// Two sums as one word.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class T>
__device__ __forceinline__ float2 unpack(uint32_t word);
template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(uint32_t word) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
}
template <>
__device__ __forceinline__ float2 unpack<__half>(uint32_t word) {
  return __half22float2(reinterpret_cast<const __half2&>(word));
}

// Stores four 8 x 8 matrices, of which each thread of a warp holds two neighbours; lane l says where row l % 8 of
// matrix l / 8 goes.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(m0), "r"(m1),
               "r"(m2), "r"(m3)
               : "memory");
}

// The same, with every matrix transposed: lane l says where column l % 8 of matrix l / 8 goes.
__device__ __forceinline__ void store_matrices_transposed(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2,
                                                          uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

}  // namespace gemm
}  // namespace pkb
