// Copies by the copy engine of a multiprocessor (cp.async.bulk) between global memory, of any rank, and shared memory,
// and the barriers in shared memory (mbarrier) that signal their arrival. Needs sm_90. One function each instruction;
// then a ring that one warp reads from. Addresses of shared memory are 32-bit; addresses and lengths that are copied
// must be multiples of 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pkb {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return uint32_t(__cvta_generic_to_shared(pointer));
}

// ---- barriers ----

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives once and announces so many bytes of bulk copies.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits until the phase of this parity has completed.
__device__ __forceinline__ void wait_phase(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

// ---- copies ----

// Contiguous bytes, to shared memory; it completes on the barrier.
__device__ __forceinline__ void load_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
      "r"(bytes), "r"(barrier)
      : "memory");
}

// Contiguous bytes, from shared memory.
__device__ __forceinline__ void store_bulk(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's stores have read their shared memory, except those of the last `kPending` groups.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until this thread's stores have been made.
__device__ __forceinline__ void bulk_wait_complete() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Orders ordinary accesses to shared memory before those of the copy engine and the tensor cores.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- a ring ----

// The barriers of kStages stages of shared memory that one warp fills by bulk copies and reads in the same order. All
// of its lanes call everything.
//
//   ring.begin();
//   for (int i = 0; i < kStages; ++i) ring.fetch(stages[ring.filling()], ...);
//   while (...) {
//     const int stage = ring.take();                // its bytes are here
//     ...
//     __syncwarp();                                 // all lanes have read them
//     ring.fetch(stages[ring.filling()], ...);      // the same stage
//   }
template <int kStages>
struct BulkRing {
  uint64_t* barriers;  // kStages of them, in shared memory
  int fetched = 0, taken = 0;

  __device__ __forceinline__ void begin() const {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kStages; ++i) init_barrier(shared_address(barriers + i), 1);
      fence_barrier_init();
    }
    __syncwarp();
  }

  // The stage that the next copy goes to.
  __device__ __forceinline__ int filling() const { return fetched % kStages; }

  // Begins the copy of so many bytes to it.
  __device__ __forceinline__ void fetch(void* stage, const void* from, uint32_t bytes) {
    if (threadIdx.x % 32 == 0) {
      const uint32_t barrier = shared_address(barriers + filling());
      expect_bytes(barrier, bytes);
      load_bulk(shared_address(stage), from, bytes, barrier);
    }
    ++fetched;
  }

  // Waits for the oldest copy that has not been taken; returns its stage.
  __device__ __forceinline__ int take() {
    const int stage = taken % kStages, parity = taken / kStages % 2;
    wait_phase(shared_address(barriers + stage), parity);
    ++taken;
    return stage;
  }
};

}  // namespace pkb
