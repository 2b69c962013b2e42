// Scopes, phases and proxies within a grid, and a mistake of each.
#include "clusters.cuh"

FENCE(fence_cluster, "acq_rel.cluster")

// ---- scopes ----

CLUSTER(flags_of_a_neighbour) {
  __shared__ unsigned value, flag;
  if (threadIdx.x == 0) flag = 0;
  meet_cluster();
  const unsigned other = 1 - blockIdx.x;
  if (threadIdx.x == 0) {
    asm volatile("st.shared::cluster.u32 [%0], 7;" ::"r"(in_block(&value, other)) : "memory");
    RIGHT(asm volatile("st.release.cluster.shared::cluster.u32 [%0], 1;" ::"r"(in_block(&flag, other)) : "memory"))
    WRONG(asm volatile("st.release.cta.shared::cluster.u32 [%0], 1;" ::"r"(in_block(&flag, other)) : "memory"))
    unsigned seen;
    do asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(address(&flag)) : "memory");
    while (!seen);
    r.out()[blockIdx.x] = value;
  }
  meet_cluster();
}
// A flag in shared memory of the neighbour has the scope of the cluster.
// wrong: weak_order: stores the flag with .cta scope
PAIR_OF_HOST(flag_of_a_neighbour) {
  TWO_BLOCKS(flags_of_a_neighbour, 32);
}

// Blocks of other clusters are beyond the scope of a cluster.
// wrong: weak_order: has a fence of too small a scope beside it: use .gpu
PAIR_OF_ONE(fence_beyond_a_cluster, 2, 1) {
  if (blockIdx.x == 0) {
    r.data()[0] = 7;
    RIGHT(fence_gpu())
    WRONG(fence_cluster())
    store_relaxed_gpu(r.flag(), 1);
  } else {
    while (!load_acquire_gpu(r.flag())) {}
    r.out()[0] = r.data()[0];
  }
}

// ---- scopes of mbarriers ----

template <bool of_cluster>
__device__ inline void arrive_at(uint32_t barrier) {
  if constexpr (of_cluster) arrive_in(barrier);
  else asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
template <bool of_cluster>
__device__ inline void wait_at(uint64_t* barrier) {
  if constexpr (of_cluster) return wait_for_phase(barrier, 0);
  unsigned done = 0;
  while (!done) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(address(barrier)) : "memory");
  }
}
// A word goes to the other block, whose threads wait for it; thread 32 has stored it, and 64 arrive.
#define HANDED_OVER(name, before, arrives, waits)                                                         \
  CLUSTER(name) {                                                                                         \
    __shared__ unsigned value;                                                                            \
    __shared__ uint64_t full;                                                                             \
    if (threadIdx.x == 0) {                                                                               \
      init(&full, 64);                                                                                    \
      fence_init();                                                                                       \
    }                                                                                                     \
    meet_cluster();                                                                                       \
    const unsigned other = 1 - blockIdx.x;                                                                \
    if (threadIdx.x == 32) asm volatile("st.shared::cluster.u32 [%0], 7;" ::"r"(in_block(&value, other)) : "memory"); \
    before;                                                                                               \
    arrives;                                                                                              \
    waits;                                                                                                \
    r.out()[64 * blockIdx.x + threadIdx.x] = value;                                                       \
    meet_cluster();                                                                                       \
  }
#define FULL_OF_OTHER in_block(&full, other)
HANDED_OVER(arrives_remotely, , arrive_at<right>(FULL_OF_OTHER), wait_for_phase(&full, 0))
HANDED_OVER(waits_for_remote, , arrive_in(FULL_OF_OTHER), wait_at<right>(&full))
HANDED_OVER(arrives_behind_a_fence, RIGHT(fence_cluster()) WRONG(asm volatile("fence.acq_rel.cta;" ::: "memory")), arrive_relaxed_in(FULL_OF_OTHER), wait_for_phase(&full, 0))
HANDED_OVER(waits_before_a_fence, , arrive_in(FULL_OF_OTHER), wait_relaxed_for_phase(&full, 0); RIGHT(fence_cluster()))

// An arrival has the scope of the block unless it says that of the cluster.
// wrong: weak_order: has .cta scope: use .cluster on both sides
PAIR_OF_HOST(arrival_in_the_other_block) {
  TWO_BLOCKS(arrives_remotely, 64);
}

// The same of a wait for arrivals of another block.
// wrong: weak_order: has .cta scope: use .cluster on both sides
PAIR_OF_HOST(wait_for_the_other_block) {
  TWO_BLOCKS(waits_for_remote, 64);
}

// A relaxed arrival brings what a fence of its thread has released.
// wrong: weak_order: has a fence of too small a scope beside it: use .cluster
PAIR_OF_HOST(relaxed_arrival_behind_a_fence) {
  TWO_BLOCKS(arrives_behind_a_fence, 64);
}

// A relaxed wait learns what a fence behind it acquires.
// wrong: weak_order: has a wait without acquire order
PAIR_OF_HOST(relaxed_wait_before_a_fence) {
  TWO_BLOCKS(waits_before_a_fence, 64);
}

// Within a block the defaults do.
// wrong: weak_order: has an arrival without release order
PAIR_OF_ONE(arrivals_of_a_block, 1, 64) {
  __shared__ uint64_t full;
  __shared__ unsigned values[64];
  if (threadIdx.x == 0) init(&full, 64);
  __syncthreads();
  values[threadIdx.x] = threadIdx.x + 1;
  RIGHT(arrive(&full))
  WRONG(asm volatile("mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%0];" ::"r"(address(&full)) : "memory"))
  wait_at<false>(&full);
  r.out()[threadIdx.x] = values[63 - threadIdx.x];
}

// ---- phases ----

CLUSTER(arrives_and_waits) {
  __shared__ unsigned value;
  if (threadIdx.x == 0) {
    RIGHT(value = blockIdx.x + 5)
  }
  asm volatile("barrier.cluster.arrive;" ::: "memory");
  if (threadIdx.x == 0) {
    WRONG(value = blockIdx.x + 5)
  }
  asm volatile("barrier.cluster.wait;" ::: "memory");
  r.out()[blockIdx.x * 32 + threadIdx.x] = load_of_cluster(in_block(&value, 1 - blockIdx.x));
  meet_cluster();
}
// What a block hands on is written before it arrives, and not between its arrival and its wait.
// wrong: unsynchronised: race on
PAIR_OF_HOST(written_before_the_arrival) {
  TWO_BLOCKS(arrives_and_waits, 32);
}

// The first wait of a consumer is for phase 0: the phase before a new mbarrier's first counts as over.
// wrong: unsynchronised: nobody has waited for its completion
PAIR_OF_ONE(parity_of_the_first_wait, 1, 32) {
  __shared__ alignas(128) unsigned tile[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    expect(&full, kBytes);
    load_tile(tile, r.data(), &full);
  }
  __syncthreads();
  wait_for_phase(&full, right ? 0 : 1);
  r.out()[threadIdx.x] = tile[threadIdx.x];
  WRONG(wait_for_phase(&full, 0))
}

// Copies of all threads, and an arrival of each that comes when its copies have.
// wrong: unsynchronised: nobody has waited for its completion
PAIR_OF_ONE(arrival_of_copies, 1, 64) {
  __shared__ unsigned words[64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) init(&full, 64);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(&words[threadIdx.x])), "l"(r.data() + threadIdx.x) : "memory");
  RIGHT(asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address(&full)) : "memory"))
  WRONG(arrive(&full))
  wait_for_phase(&full, 0);
  r.out()[threadIdx.x] = words[63 - threadIdx.x];
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- proxies ----

// A workspace that one block fills by ordinary stores is loaded in bulk by another: a proxy fence stands between.
// wrong: unsynchronised: execute fence.proxy.async after the first
PAIR_OF_ONE(workspace_is_loaded_in_bulk, 2, 32) {
  __shared__ alignas(128) unsigned tile[32];
  __shared__ uint64_t full;
  if (blockIdx.x == 0) {
    r.data()[threadIdx.x] = threadIdx.x;
    RIGHT(fence_proxy())
    __syncthreads();
    if (threadIdx.x == 0) store_release_gpu(r.flag(), 1);
    return;
  }
  if (threadIdx.x == 0) {
    init(&full, 1);
    while (!load_acquire_gpu(r.flag())) {}
    RIGHT(fence_proxy())
    expect(&full, kBytes);
    load_tile(tile, r.data(), &full);
  }
  __syncthreads();
  wait_for_phase(&full, 0);
  r.out()[threadIdx.x] = tile[threadIdx.x];
}

// A tile that came in bulk is changed by threads and goes back in bulk.
// wrong: unsynchronised: execute fence.proxy.async after the first
PAIR_OF_ONE(tile_goes_back_in_bulk, 1, 32) {
  __shared__ alignas(128) unsigned tile[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    expect(&full, kBytes);
    load_tile(tile, r.data(), &full);
  }
  __syncthreads();
  wait_for_phase(&full, 0);
  tile[threadIdx.x] += 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    RIGHT(fence_proxy())  // on the way from the others' stores
    add_tile(r.out(), tile);
    groups_written();
  }
}
