// Collectives of cooperative groups' tiles above one warp, and their copies, and a mistake of each.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/barrier>

#include "pairs.cuh"

namespace cg = cooperative_groups;

// Sums and maxima of tiles of 64, 128 and 256 threads, one after the other, in one scratch that the system reserves.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(reductions_of_tiles, 1, 256) {
  __shared__ cg::block_tile_memory<256> memory;
  __shared__ float sums[4];
  const auto whole = cg::tiled_partition<256>(cg::this_thread_block(memory));
  const auto half = cg::tiled_partition<128>(whole);
  const auto quarter = cg::tiled_partition<64>(half);
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    sum += cg::reduce(quarter, float(threadIdx.x + i), cg::plus<float>());
    sum += float(cg::reduce(half, int(threadIdx.x), cg::greater<int>()));
    sum += float(cg::reduce(whole, threadIdx.x, [](unsigned a, unsigned b) { return a ^ b; }));
  }
  if (quarter.thread_rank() == 0) sums[threadIdx.x / 64] = sum;
  RIGHT(whole.sync())
  r.out()[threadIdx.x] = unsigned(sums[threadIdx.x % 4]);
  RIGHT(CHECK(sums[0] == 3 * (63 * 32 + 64 + 127)))
}

// Votes, shuffles and scans of tiles, which write the scratch again as soon as they have read it.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(votes_and_scans_of_tiles, 1, 256) {
  __shared__ unsigned places[256];
  const auto tile = cg::tiled_partition<128>(cg::this_thread_block());
  unsigned place = 0;
  for (unsigned i = 0; i < 3; ++i) {
    place += unsigned(tile.any(tile.thread_rank() == i) + tile.all(tile.thread_rank() != i));
    place += tile.shfl(tile.thread_rank(), 40 - i);
    place += cg::inclusive_scan(tile, 1u) + cg::exclusive_scan(tile, 1u);
  }
  RIGHT(CHECK(place == 3 + 117 + 6 * tile.thread_rank() + 3))
  places[threadIdx.x] = place;
  RIGHT(tile.sync())
  r.out()[threadIdx.x] = places[threadIdx.x ^ 127];
}

// The sum of a tile is added to an atomic, and another is stored, by its last warp.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(sums_that_a_tile_stores, 1, 128) {
  __shared__ cuda::atomic<int, cuda::thread_scope_block> total;
  __shared__ int sums[2];
  if (threadIdx.x == 0) total.store(0, cuda::memory_order_relaxed);
  __syncthreads();
  const auto tile = cg::tiled_partition<64>(cg::this_thread_block());
  cg::reduce_update_async(tile, total, int(threadIdx.x), cg::plus<int>());
  cg::reduce_store_async(tile, &sums[tile.meta_group_rank()], 1, cg::plus<int>());
  RIGHT(__syncthreads())
  r.out()[threadIdx.x] = unsigned(sums[1 - tile.meta_group_rank()]);
  RIGHT(CHECK(total.load(cuda::memory_order_relaxed) == 127 * 64))
}

// A copy that is shorter than its tile: threads without a piece copy the last one again.
// wrong: unsynchronised: completion
PAIR_OF_ONE(copy_shorter_than_its_tile, 1, 128) {
  __shared__ alignas(16) unsigned words[2][64];
  const auto tile = cg::tiled_partition<64>(cg::this_thread_block());
  unsigned* const own = words[tile.meta_group_rank()];
  for (int i = 0; i < 2; ++i) {
    cg::memcpy_async(tile, own, r.data() + 64 * i, cuda::aligned_size_t<16>(256));
    RIGHT(cg::wait(tile))
    WRONG(tile.sync())
    r.out()[threadIdx.x] = own[63 - tile.thread_rank()];
    tile.sync();
  }
}
