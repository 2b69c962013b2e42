// Kernels of three blocks of 64 threads for test_store_buffers.py, each a function of a rank's words, its peer's and its
// number. Words are zero before; what a kernel has seen lies in `own[kSeen]`.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda_runtime.h>

#include <cstdint>

constexpr int kData = 0, kFlag = 32, kOther = 64, kSeen = 96;

__device__ int relaxed(const int* at) {
  int value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ void relaxed(int* at, int value) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
__device__ void release_gpu(int* at, int value) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
__device__ void release_sys(int* at, int value) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
__device__ int weak(const int* at) {
  int value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ void weak(int* at, int value) { asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory"); }
#define FENCE(what) asm volatile(what ";" ::: "memory")

__device__ void wait(const int* flag) {
  int value = 0;
  while (!value) asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
}
// Of one thread of another block, after the flag.
__device__ void read(int* own) {
  if (threadIdx.x != 0) return;
  wait(own + kFlag);
  own[kSeen] = weak(own + kData);
}

#define KERNEL(name) extern "C" __global__ void name([[maybe_unused]] int* own, [[maybe_unused]] int* peer, [[maybe_unused]] int rank)
// Block 0 stores 42 and a flag, and block 1 reads it. The first: by thread 0, the second: by all threads.
#define PASSING(name, ...)                                    \
  KERNEL(name) {                                              \
    if (blockIdx.x == 0 && threadIdx.x == 0) { __VA_ARGS__; } \
    if (blockIdx.x == 1) read(own);                           \
  }
#define PASSING_OF_BLOCK(name, ...)     \
  KERNEL(name) {                        \
    if (blockIdx.x == 0) { __VA_ARGS__; } \
    if (blockIdx.x == 1) read(own);     \
  }
// Rank 0 stores into the peer's memory.
#define PASSING_TO_PEER(name, ...)                                         \
  KERNEL(name) {                                                           \
    if (rank == 0 && blockIdx.x == 0 && threadIdx.x == 0) { __VA_ARGS__; } \
    if (rank == 1 && blockIdx.x == 1) read(own);                           \
  }

// ---- the flag may overtake the data ----

PASSING(relaxed_flag, weak(own + kData, 42); relaxed(own + kFlag, 1))
PASSING(relaxed_data_and_flag, relaxed(own + kData, 42); relaxed(own + kFlag, 1))
PASSING(volatile_flag, own[kData] = 42; *(volatile int*)(own + kFlag) = 1)
PASSING(weak_flag, weak(own + kData, 42); weak(own + kFlag, 1))
PASSING(relaxed_atomic, weak(own + kData, 42); atomicAdd(own + kFlag, 1))
PASSING(fence_of_the_block, weak(own + kData, 42); FENCE("fence.acq_rel.cta"); relaxed(own + kFlag, 1))
PASSING_TO_PEER(fence_of_the_gpu, weak(peer + kData, 42); FENCE("fence.acq_rel.gpu"); relaxed(peer + kFlag, 1))
PASSING_TO_PEER(release_of_the_gpu, weak(peer + kData, 42); release_gpu(peer + kFlag, 1))
PASSING_OF_BLOCK(barrier_and_relaxed_flag, if (threadIdx.x == 32) weak(own + kData, 42); __syncthreads(); if (threadIdx.x == 0) relaxed(own + kFlag, 1))
PASSING_OF_BLOCK(fence_before_the_barrier_of_another, if (threadIdx.x == 32) weak(own + kData, 42); if (threadIdx.x == 0) __threadfence(); __syncthreads(); if (threadIdx.x == 0) relaxed(own + kFlag, 1))
PASSING(data_after_the_release, release_gpu(own + kFlag, 1); weak(own + kData, 42))

// ---- it may not ----

PASSING(release_store, weak(own + kData, 42); release_gpu(own + kFlag, 1))
PASSING(fence_and_relaxed_flag, weak(own + kData, 42); FENCE("fence.acq_rel.gpu"); relaxed(own + kFlag, 1))
PASSING(threadfence_and_volatile_flag, own[kData] = 42; __threadfence(); *(volatile int*)(own + kFlag) = 1)
PASSING(release_atomic, weak(own + kData, 42); int old; asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;" : "=r"(old) : "l"(own + kFlag) : "memory"))
PASSING(release_reduction, weak(own + kData, 42); asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(own + kFlag) : "memory"))
PASSING(acquire_release_exchange, weak(own + kData, 42); int old; asm volatile("atom.exch.acq_rel.gpu.global.b32 %0, [%1], 1;" : "=r"(old) : "l"(own + kFlag) : "memory"))
PASSING_TO_PEER(release_to_a_peer, weak(peer + kData, 42); release_sys(peer + kFlag, 1))
PASSING_TO_PEER(fence_of_the_system, weak(peer + kData, 42); __threadfence_system(); relaxed(peer + kFlag, 1))
PASSING_OF_BLOCK(barrier_and_release, if (threadIdx.x == 32) weak(own + kData, 42); __syncthreads(); if (threadIdx.x == 0) release_gpu(own + kFlag, 1))
PASSING_OF_BLOCK(barrier_and_fence, if (threadIdx.x == 32) weak(own + kData, 42); __syncthreads(); if (threadIdx.x == 0) { __threadfence(); relaxed(own + kFlag, 1); })
PASSING_OF_BLOCK(fences_of_all_before_the_barrier, if (threadIdx.x == 32) weak(own + kData, 42); __threadfence(); __syncthreads(); if (threadIdx.x == 0) relaxed(own + kFlag, 1))
PASSING_OF_BLOCK(arrival_at_a_named_barrier, if (threadIdx.x >= 32) { if (threadIdx.x == 32) weak(own + kData, 42); asm volatile("bar.arrive 1, 64;" ::: "memory"); } else { asm volatile("bar.sync 1, 64;" ::: "memory"); if (threadIdx.x == 0) release_gpu(own + kFlag, 1); })
PASSING_OF_BLOCK(warp_barrier_and_release, if (threadIdx.x == 5) weak(own + kData, 42); __syncwarp(); if (threadIdx.x == 0) release_gpu(own + kFlag, 1))
PASSING_OF_BLOCK(mbarrier_and_release, __shared__ cuda::barrier<cuda::thread_scope_block> meet; if (threadIdx.x == 0) init(&meet, 64); __syncthreads(); if (threadIdx.x == 32) weak(own + kData, 42); meet.arrive_and_wait(); if (threadIdx.x == 0) release_gpu(own + kFlag, 1))
KERNEL(from_hand_to_hand) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    weak(own + kData, 42);
    release_gpu(own + kOther, 1);
  } else if (blockIdx.x == 2) {
    wait(own + kOther);
    release_gpu(own + kFlag, 1);
  } else {
    read(own);
  }
}
KERNEL(from_hand_to_a_peer) {
  if (threadIdx.x != 0) return;
  if (rank == 0 && blockIdx.x == 0) {
    weak(peer + kData, 42);
    release_gpu(own + kOther, 1);
  } else if (rank == 0 && blockIdx.x == 2) {
    wait(own + kOther);
    release_sys(peer + kFlag, 1);
  } else if (rank == 1 && blockIdx.x == 1) {
    read(own);
  }
}
KERNEL(seen_by_the_block_then_released) {  // by a thread that has read it
  if (blockIdx.x == 0) {
    if (threadIdx.x == 32) relaxed(own + kData, 42);
    __syncthreads();
    if (threadIdx.x == 0 && relaxed(own + kData) == 42) release_gpu(own + kFlag, 1);
  } else if (blockIdx.x == 1) {
    read(own);
  }
}
KERNEL(one_instruction_with_data_and_flag) {  // as in NCCL's LL protocol
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(own + kData), "r"(42), "r"(1) : "memory");
  if (blockIdx.x != 1) return;
  int value, flag = 0;
  while (!flag) asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(value), "=r"(flag) : "l"(own + kData) : "memory");
  own[kSeen] = value;
}
KERNEL(asynchronous_copy_behind_a_proxy_fence) {
  __shared__ alignas(128) int tile[32];
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    weak(own + kData, 7);
    tile[0] = 42;
    const auto from = uint32_t(__cvta_generic_to_shared(tile));
    FENCE("fence.proxy.async");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;" ::"l"(own + kData), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    FENCE("fence.proxy.async");
    release_gpu(own + kFlag, 1);
  }
  if (blockIdx.x == 1) read(own);
}

// ---- coherence: 42 if all is as it must be ----

KERNEL(reads_of_one_place_go_on) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    for (int i = 1; i <= 8; ++i) relaxed(own + kData, i);
  } else if (blockIdx.x == 1) {
    int before = 0, wrong = 0;
    for (int i = 0; i < 12; ++i) {
      const int now = relaxed(own + kData);
      wrong |= now < before;
      before = now;
    }
    own[kSeen] = wrong ? 13 : 42;
  }
}
KERNEL(last_store_stays) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  for (int i = 35; i <= 42; ++i) weak(own + kSeen, i);
}
KERNEL(last_store_of_the_block_stays) {
  if (blockIdx.x != 0) return;
  if (threadIdx.x == 0) weak(own + kSeen, 1);
  __syncthreads();
  if (threadIdx.x == 32) weak(own + kSeen, 42);
  __syncthreads();
  if (threadIdx.x == 0 && weak(own + kSeen) != 42) weak(own + kSeen, 13);
}
// Each thread has the same to store, which another warp's store buffer may still hold.
KERNEL(equal_stores) { weak(own + kSeen, 42); }
KERNEL(own_stores_are_read) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  bool right = true;
  for (int i = 1; i < 6; ++i) {
    weak(own + kData, i << 16);
    asm volatile("st.global.u8 [%0], %1;" ::"l"(own + kData), "r"(i) : "memory");
    right &= weak(own + kData) == (i << 16 | i);
    weak(own + kData + 1, i);
    long long both;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(both) : "l"(own + kData) : "memory");
    right &= both == ((long long)i << 32 | i << 16 | i);
  }
  own[kSeen] = right ? 42 : 13;
}
KERNEL(atomics_see_own_stores) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  bool right = true;
  for (int i = 1; i < 6; ++i) {
    weak(own + kData, 10 * i);
    right &= atomicAdd(own + kData, 1) == 10 * i && weak(own + kData) == 10 * i + 1;
  }
  own[kSeen] = right ? 42 : 13;
}
KERNEL(stores_of_the_last_kernel) {
  if (blockIdx.x == 1 && threadIdx.x == 0) own[kSeen] = weak(own + kData);
}
KERNEL(stores_at_its_end) {
  if (blockIdx.x == 2 && threadIdx.x == 63) weak(own + kData, 42);
}
extern "C" int two_kernels(int* own, int* peer, int rank, cudaStream_t s) {
  stores_at_its_end<<<3, 64, 0, s>>>(own, peer, rank);
  stores_of_the_last_kernel<<<3, 64, 0, s>>>(own, peer, rank);
  return int(cudaGetLastError());
}

// ---- two stores, and loads of the other's: seen + 2 * the other's seen ----

template <class F>
__device__ void store_and_load(int* own, F between) {
  if (threadIdx.x != 0 || blockIdx.x > 1) return;
  int* const mine = own + (blockIdx.x ? kOther : kData);
  int* const others = own + (blockIdx.x ? kData : kOther);
  relaxed(mine, 1);
  between();
  atomicAdd(own + kSeen, 100 + (relaxed(others) << blockIdx.x));
}
KERNEL(store_buffering) {
  store_and_load(own, [] {});
}
KERNEL(store_buffering_with_sc_fences) {
  store_and_load(own, [] { FENCE("fence.sc.gpu"); });
}

// ---- a reset that an atomic overtakes: what the counter holds in the end ----

template <class F>
__device__ void reset_and_count(int* own, F flag) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    relaxed(own + kSeen, 5);
    __threadfence();
    relaxed(own + kSeen, 0);
    flag(own + kFlag);
  } else if (blockIdx.x == 1) {
    wait(own + kFlag);
    atomicAdd(own + kSeen, 1);
  }
}
KERNEL(overtaken_reset) {
  reset_and_count(own, [](int* flag) { relaxed(flag, 1); });
}
KERNEL(reset_and_release) {
  reset_and_count(own, [](int* flag) { release_gpu(flag, 1); });
}

#define PROGRAM(name)                                                                       \
  extern "C" int launch_##name(int* own, int* peer, int rank, cudaStream_t s) {             \
    name<<<3, 64, 0, s>>>(own, peer, rank);                                                 \
    return int(cudaGetLastError());                                                         \
  }
PROGRAM(relaxed_flag)
PROGRAM(relaxed_data_and_flag)
PROGRAM(volatile_flag)
PROGRAM(weak_flag)
PROGRAM(relaxed_atomic)
PROGRAM(fence_of_the_block)
PROGRAM(fence_of_the_gpu)
PROGRAM(release_of_the_gpu)
PROGRAM(barrier_and_relaxed_flag)
PROGRAM(fence_before_the_barrier_of_another)
PROGRAM(data_after_the_release)
PROGRAM(release_store)
PROGRAM(fence_and_relaxed_flag)
PROGRAM(threadfence_and_volatile_flag)
PROGRAM(release_atomic)
PROGRAM(release_reduction)
PROGRAM(acquire_release_exchange)
PROGRAM(release_to_a_peer)
PROGRAM(fence_of_the_system)
PROGRAM(barrier_and_release)
PROGRAM(barrier_and_fence)
PROGRAM(fences_of_all_before_the_barrier)
PROGRAM(arrival_at_a_named_barrier)
PROGRAM(warp_barrier_and_release)
PROGRAM(mbarrier_and_release)
PROGRAM(from_hand_to_hand)
PROGRAM(from_hand_to_a_peer)
PROGRAM(seen_by_the_block_then_released)
PROGRAM(one_instruction_with_data_and_flag)
PROGRAM(asynchronous_copy_behind_a_proxy_fence)
PROGRAM(reads_of_one_place_go_on)
PROGRAM(last_store_stays)
PROGRAM(last_store_of_the_block_stays)
PROGRAM(equal_stores)
PROGRAM(own_stores_are_read)
PROGRAM(atomics_see_own_stores)
PROGRAM(store_buffering)
PROGRAM(store_buffering_with_sc_fences)
PROGRAM(overtaken_reset)
PROGRAM(reset_and_release)
