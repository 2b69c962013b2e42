// Clusters, bulk copies and their mbarriers, and warps with a part each, and a mistake of each.
#define _CG_LIMIT_INCLUDED_DEPENDENCIES  // without libcu++, which takes nvcc two seconds
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include "clusters.cuh"

namespace cg = cooperative_groups;

// ---- clusters ----

CLUSTER(reads_its_neighbour) {
  __shared__ unsigned values[32];
  values[threadIdx.x] = threadIdx.x;
  RIGHT(meet_cluster())
  WRONG(__syncthreads())
  r.out()[blockIdx.x * 32 + threadIdx.x] = load_of_cluster(in_block(&values[31 - threadIdx.x], 1 - blockIdx.x));
  meet_cluster();
}
// Shared memory of the neighbour in the cluster: a barrier of the block is none of the cluster.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(barrier_of_the_whole_cluster) {
  TWO_BLOCKS(reads_its_neighbour, 32);
}

CLUSTER(multicasts) {
  __shared__ alignas(128) unsigned tile[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    fence_init();
    expect(&full, kBytes);
  }
  meet_cluster();
  if (blockIdx.x == 0 && threadIdx.x == 0) load_tile_for_all(tile, r.data(), &full);
  if (right || blockIdx.x == 0) wait_for_phase(&full, 0);
  WRONG(meet_cluster())  // the first block has its tile
  r.out()[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x];
  WRONG(wait_for_phase(&full, 0))
  meet_cluster();
}
// One block loads a tile for both of a cluster, and each waits at an mbarrier of its own.
// wrong: unsynchronised: nobody has waited for its completion
PAIR_OF_HOST(tile_for_both_blocks) {
  TWO_BLOCKS(multicasts, 32);
}

CLUSTER(multicasts_in_turns) {
  __shared__ alignas(128) unsigned tile[32];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&empty, right ? 64 : 32);
    fence_init();
  }
  meet_cluster();
  for (unsigned i = 0; i < 3; ++i) {
    if (threadIdx.x == 0) expect(&full, kBytes);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      if (i) wait_for_phase(&empty, (i - 1) % 2);
      load_tile_for_all(tile, r.data() + 32 * i, &full);
    }
    wait_for_phase(&full, i % 2);
    r.out()[threadIdx.x + 32 * blockIdx.x] = tile[threadIdx.x];
    fence_proxy();
    if (right || blockIdx.x == 0) arrive_in(in_block(&empty, 0));
  }
  meet_cluster();
}
// The tiles of both blocks have been read before one block loads the next for both.
// wrong: unsynchronised: race on
PAIR_OF_HOST(both_blocks_give_a_tile_back) {
  TWO_BLOCKS(multicasts_in_turns, 32);
}

CLUSTER(sends_a_tile) {
  __shared__ alignas(128) unsigned mine[32], theirs[32];
  __shared__ uint64_t full, taken;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&taken, 1);
    fence_init();
    expect(&full, kBytes);
  }
  mine[threadIdx.x] = 32 * blockIdx.x + threadIdx.x;
  fence_proxy();
  meet_cluster();
  const unsigned other = 1 - blockIdx.x;
  if (threadIdx.x == 0) send_tile(in_block(theirs, other), mine, in_block(&full, other));
  wait_for_phase(&full, 0);
  r.out()[32 * blockIdx.x + threadIdx.x] = theirs[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) arrive_in(in_block(&taken, other));
  RIGHT(wait_for_phase(&taken, 0))
  mine[threadIdx.x] = 0;
  WRONG(wait_for_phase(&taken, 0))
  meet_cluster();
}
// A tile goes to the other block, whose mbarrier counts its bytes: the sender learns of it by an answer.
// wrong: unsynchronised: race on
PAIR_OF_HOST(source_of_a_sent_tile) {
  TWO_BLOCKS(sends_a_tile, 32);
}

CLUSTER(answers) {
  __shared__ unsigned value;
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    fence_init();
  }
  meet_cluster();
  if (threadIdx.x == 0) {
    asm volatile("st.shared::cluster.u32 [%0], 7;" ::"r"(in_block(&value, 1 - blockIdx.x)) : "memory");
    RIGHT(arrive_in(in_block(&full, 1 - blockIdx.x)))
    WRONG(arrive_relaxed_in(in_block(&full, 1 - blockIdx.x)))
  }
  wait_for_phase(&full, 0);
  r.out()[32 * blockIdx.x + threadIdx.x] = value;
  meet_cluster();
}
// An arrival at the mbarrier of the other block releases what was stored into its memory.
// wrong: weak_order: has an arrival without release order
PAIR_OF_HOST(arrival_releases) {
  TWO_BLOCKS(answers, 32);
}

CLUSTER(waits_relaxed) {
  __shared__ unsigned value;
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    fence_init();
  }
  meet_cluster();
  if (threadIdx.x == 0) {
    asm volatile("st.shared::cluster.u32 [%0], 7;" ::"r"(in_block(&value, 1 - blockIdx.x)) : "memory");
    arrive_in(in_block(&full, 1 - blockIdx.x));
  }
  RIGHT(wait_for_phase(&full, 0))
  WRONG(wait_relaxed_for_phase(&full, 0))
  r.out()[32 * blockIdx.x + threadIdx.x] = value;
  meet_cluster();
}
// The wait for a phase acquires.
// wrong: weak_order: has a wait without acquire order
PAIR_OF_HOST(wait_for_a_phase_acquires) {
  TWO_BLOCKS(waits_relaxed, 32);
}

// ---- bytes ----

// Two tiles arrive at one mbarrier, which expects the bytes of both.
// wrong: unsynchronised: nobody has waited for its completion
PAIR_OF_ONE(bytes_of_two_tiles, 1, 32) {
  __shared__ alignas(128) unsigned tiles[2][32];
  __shared__ uint64_t full, other;
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&other, 1);
    expect(&full, right ? 2 * kBytes : kBytes);
    WRONG(expect(&other, kBytes))
    load_tile(tiles[0], r.data(), &full);
    load_tile(tiles[1], r.data() + 32, right ? &full : &other);
  }
  __syncthreads();
  wait_for_phase(&full, 0);
  r.out()[threadIdx.x] = tiles[0][threadIdx.x] + tiles[1][threadIdx.x];
  WRONG(wait_for_phase(&other, 0))
}

// More bytes are expected than come.
// wrong: deadlock: nobody can go on
PAIR_OF_ONE(bytes_that_never_come, 1, 32) {
  __shared__ alignas(128) unsigned tile[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    expect(&full, right ? kBytes : 2 * kBytes);
    load_tile(tile, r.data(), &full);
  }
  __syncthreads();
  wait_for_phase(&full, 0);
  r.out()[threadIdx.x] = tile[threadIdx.x];
}

// A tile is added to memory, whose sum its own thread reads once the reduction has been written.
// wrong: unsynchronised: nobody has waited for its completion
PAIR_OF_ONE(sum_by_bulk_reduction, 1, 32) {
  __shared__ alignas(128) unsigned tile[32];
  r.data()[threadIdx.x] = 5;
  tile[threadIdx.x] = threadIdx.x;
  fence_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    add_tile(r.data(), tile);
    RIGHT(groups_written())
    WRONG(groups_read())
    r.out()[0] = r.data()[7];
    groups_written();
  }
}

// What threads store into a tile reaches its bulk reduction by a proxy fence.
// wrong: unsynchronised: execute fence.proxy.async after the first
PAIR_OF_ONE(proxy_fence_before_a_reduction, 1, 64) {
  __shared__ alignas(128) unsigned tile[32];
  if (threadIdx.x < 32) tile[threadIdx.x] = threadIdx.x;
  RIGHT(fence_proxy())
  __syncthreads();
  if (threadIdx.x == 32) {
    add_tile(r.data(), tile);
    groups_written();
  }
}

// ---- warps with parts of their own ----

// A warp of producers gives up its registers, and a group of consumers gives tiles back behind their last look.
// wrong: unsynchronised: race on
PAIR_OF_ONE(consumers_look_before_they_give_back, 1, 256) {
  __shared__ alignas(128) unsigned tiles[2][32];
  __shared__ uint64_t full[2], empty[2];
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) init(&full[s], 1), init(&empty[s], 128);
    fence_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    for (unsigned i = 0; threadIdx.x == 0 && i < 5; ++i) {
      if (i >= 2) wait_for_phase(&empty[i % 2], (i / 2 - 1) % 2);
      expect(&full[i % 2], kBytes);
      load_tile(tiles[i % 2], r.data() + 32 * i, &full[i % 2]);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    unsigned sum = 0;
    for (unsigned i = 0; i < 5; ++i) {
      wait_for_phase(&full[i % 2], i / 2 % 2);
      WRONG(arrive(&empty[i % 2]))
      sum += tiles[i % 2][threadIdx.x % 32];
      RIGHT(fence_proxy(); arrive(&empty[i % 2]))
    }
    r.out()[threadIdx.x] = sum;
  }
}

// A dynamic scheduler: one thread takes the next tile of work for its block, in two slots by turns.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(next_tile_of_a_scheduler, 3, 64) {
  __shared__ unsigned next[right ? 2 : 1];
  unsigned* const counter = r.flag();
  for (unsigned turn = 0;; ++turn) {
    unsigned& slot = next[right ? turn % 2 : 0];
    if (threadIdx.x == 0) slot = atomicAdd(counter, 1);
    __syncthreads();
    const unsigned tile = slot;
    if (tile >= 8) break;
    r.out()[64 * tile + threadIdx.x] = tile;
  }
}

// A result is stored by threads, and a warp that is done with its own part takes it to memory in bulk behind a named barrier.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(storing_warp_waits_for_all, 1, 128) {
  __shared__ alignas(128) unsigned tile[32];
  const unsigned warp = threadIdx.x / 32;
  if (warp < 3) {
    if (threadIdx.x < 32) tile[threadIdx.x] = threadIdx.x;
    fence_proxy();
    RIGHT(asm volatile("bar.arrive 1, 128;" ::: "memory"))
  } else {
    RIGHT(asm volatile("bar.sync 1, 128;" ::: "memory"))
    if (threadIdx.x == 96) {
      add_tile(r.data(), tile);
      groups_written();
    }
  }
}

// Tiles of 512 threads in a block of 1024.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(sums_of_half_a_block, 1, 1024) {
  __shared__ int sums[2];
  const auto tile = cg::tiled_partition<512>(cg::this_thread_block());
  int sum = 0;
  for (int i = 0; i < 2; ++i) sum += cg::reduce(tile, int(threadIdx.x % 4), cg::plus<int>());
  if (tile.thread_rank() == 0) sums[tile.meta_group_rank()] = sum;
  RIGHT(tile.sync())
  r.out()[threadIdx.x] = unsigned(sums[tile.meta_group_rank()]);
  RIGHT(CHECK(sum == 2 * 768))
}
