// Constructs of the CUDA programming guide, and a mistake of each: distributed shared memory, pipelines and barriers of
// several warps, tiles of several warps.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>

#include "pairs.cuh"

namespace cg = cooperative_groups;

// ---- distributed shared memory ----

template <bool right>
__global__ void __cluster_dims__(2) reads_its_peer(Rank r) {
  __shared__ unsigned values[32];
  cg::cluster_group cluster = cg::this_cluster();
  values[threadIdx.x] = 100 * blockIdx.x + threadIdx.x;
  cluster.sync();
  r.out()[blockIdx.x * 32 + threadIdx.x] = cluster.map_shared_rank(values, 1 - cluster.block_rank())[31 - threadIdx.x];
  RIGHT(cluster.sync())
}

// Blocks of a cluster read each other's shared memory, and end together.
// wrong: illegal_address: whose shared memory this is, has ended at kernel.cu:
PAIR_OF_HOST(blocks_end_together) {
  reads_its_peer<right><<<2, 32, 0, stream>>>(r);
}

template <bool right>
__global__ void __cluster_dims__(2) tells_its_peer(Rank r) {
  __shared__ unsigned value;
  __shared__ unsigned done;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) value = 7, done = 0;
  cluster.sync();
  if (cluster.block_rank() == 1 && threadIdx.x == 0) {
    r.out()[0] = *cluster.map_shared_rank(&value, 0);
    cuda::atomic_ref<unsigned, cuda::thread_scope_device>(*cluster.map_shared_rank(&done, 0)).store(1, cuda::memory_order_release);
  }
  if (right && cluster.block_rank() == 0 && threadIdx.x == 0) {
    while (cuda::atomic_ref<unsigned, cuda::thread_scope_device>(done).load(cuda::memory_order_acquire) == 0) {}
  }
}

// A block waits for a flag in its own shared memory that its peer raises when it is done with it.
// wrong: ended_block: of the shared memory of block 0
PAIR_OF_HOST(peer_says_that_it_is_done) {
  tells_its_peer<right><<<2, 32, 0, stream>>>(r);
}

// ---- pipelines and barriers of several warps ----

// Stages of a pipeline of four warps, whose last one destroys its barriers.
// wrong: unsynchronised: cp.async
PAIR_OF_ONE(pipeline_of_a_block, 1, 128) {
  __shared__ unsigned tiles[2][128];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  const auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  unsigned sum = 0;
  for (int stage = 0; stage < 5; ++stage) {
    pipeline.producer_acquire();
    cuda::memcpy_async(&tiles[stage % 2][threadIdx.x], r.data() + 128 * stage + threadIdx.x, sizeof(unsigned), pipeline);
    pipeline.producer_commit();
    RIGHT(pipeline.consumer_wait())
    sum += tiles[stage % 2][127 - threadIdx.x];
    WRONG(pipeline.consumer_wait())
    pipeline.consumer_release();
  }
  r.out()[threadIdx.x] = sum;
}

__device__ inline unsigned word(const void* shared) { return unsigned(__cvta_generic_to_shared(shared)); }

// The last of two warps that have passed an mbarrier destroys it.
// wrong: unsynchronised: mbarrier.inval
PAIR_OF_ONE(last_warp_destroys_the_mbarrier, 1, 64) {
  __shared__ uint64_t barrier;
  __shared__ unsigned left;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(word(&barrier)) : "memory");
    left = 2;
  }
  __syncthreads();
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(word(&barrier)) : "memory");
  unsigned done = 0;
  while (!done) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(word(&barrier)) : "memory");
  }
  const unsigned lanes = __match_any_sync(~0u, word(&left));
  if (threadIdx.x % 32 == __ffs(lanes) - 1) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_block> count(left);
    const bool is_last = right ? count.fetch_sub(1) == 1 : threadIdx.x == 0;
    if (is_last) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(word(&barrier)) : "memory");
  }
}

// ---- tiles of several warps ----

// Tiles of two warps, with memory of the block's own.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(tiles_with_memory, 1, 128) {
  __shared__ cg::block_tile_memory<128> memory;
  __shared__ unsigned values[128];
  const auto tile = cg::tiled_partition<64>(cg::this_thread_block(memory));
  values[threadIdx.x] = threadIdx.x;
  RIGHT(tile.sync())
  const unsigned got = tile.shfl(values[threadIdx.x ^ 63], 40);
  RIGHT(CHECK(got == (threadIdx.x / 64 * 64 + 40 ^ 63)))
  r.out()[threadIdx.x] = got;
}

// Tiles of eight warps, whose barriers lie in memory that the system reserves.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(tiles_in_reserved_memory, 2, 512) {
  __shared__ unsigned values[512];
  const auto tile = cg::tiled_partition<256>(cg::this_thread_block());
  values[threadIdx.x] = threadIdx.x;
  RIGHT(tile.sync())
  const unsigned got = values[threadIdx.x ^ 255];
  RIGHT(CHECK(got == (threadIdx.x ^ 255)))
  r.out()[512 * blockIdx.x + threadIdx.x] = got;
}
