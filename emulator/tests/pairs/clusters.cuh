// Clusters, mbarriers and bulk copies by their names in PTX.
#pragma once
#include "pairs.cuh"

constexpr unsigned kBytes = 128;

__device__ inline uint32_t address(const void* shared) { return uint32_t(__cvta_generic_to_shared(shared)); }
__device__ inline uint32_t in_block(const void* shared, unsigned block) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(address(shared)), "r"(block));
  return at;
}
__device__ inline unsigned load_of_cluster(uint32_t at) {
  unsigned value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
__device__ inline void meet_cluster() { asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory"); }
__device__ inline void init(uint64_t* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count) : "memory");
}
__device__ inline void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ inline void expect(uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ inline void arrive_in(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_relaxed_in(uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait_for_phase(uint64_t* barrier, unsigned phase) {
  unsigned done = 0;
  while (!done) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(address(barrier)), "r"(phase) : "memory");
  }
}
__device__ inline void wait_relaxed_for_phase(uint64_t* barrier, unsigned phase) {
  unsigned done = 0;
  while (!done) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(address(barrier)), "r"(phase) : "memory");
  }
}
__device__ inline void load_tile(unsigned* tile, const unsigned* from, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(tile)), "l"(from), "n"(kBytes), "r"(address(barrier)) : "memory");
}
__device__ inline void load_tile_for_all(unsigned* tile, const unsigned* from, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(address(tile)), "l"(from), "n"(kBytes), "r"(address(barrier)), "h"(uint16_t(3)) : "memory");
}
__device__ inline void send_tile(uint32_t tile, const unsigned* from, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(tile), "r"(address(from)), "n"(kBytes), "r"(barrier) : "memory");
}
__device__ inline void add_tile(unsigned* to, const unsigned* tile) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" ::"l"(to), "r"(address(tile)), "n"(kBytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void groups_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ inline void groups_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// A kernel of clusters of two blocks, and its launch by one cluster.
#define CLUSTER(name) template <bool right> __global__ void __cluster_dims__(2) name([[maybe_unused]] Rank r)
#define TWO_BLOCKS(name, threads) name<right><<<2, threads, 0, stream>>>(r)
