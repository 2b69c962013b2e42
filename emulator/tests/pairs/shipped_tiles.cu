// Mistakes within a block that have shipped, each rebuilt from its description in a few lines. The wrong program is how it
// was, the right one how it was mended.
#include "pairs.cuh"

struct Tile {
  unsigned words[32];
};
__device__ inline uint32_t address(const void* shared) { return uint32_t(__cvta_generic_to_shared(shared)); }
__device__ inline void bulk_store(unsigned* to, const Tile* tile) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;" ::"l"(to), "r"(address(tile)) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void init(uint64_t* barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count) : "memory");
}
__device__ inline void bulk_load(Tile* tile, const unsigned* from, uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(address(barrier)) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(address(tile)), "l"(from), "r"(address(barrier)) : "memory");
}
__device__ inline void wait_for_phase(uint64_t* barrier, unsigned phase) {
  unsigned done = 0;
  while (!done) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(address(barrier)), "r"(phase) : "memory");
  }
}

// Loads of a stage and the bulk load of the next into the same tile, with a block barrier and no proxy fence between.
// https://github.com/NVIDIA/TransformerEngine/pull/2695
// wrong: unsynchronised: execute fence.proxy.async after the first
PAIR_OF_ONE(next_stage_without_a_proxy_fence, 1, 64) {
  __shared__ alignas(128) Tile tile;
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1);
  __syncthreads();
  for (unsigned stage = 0; stage < 2; ++stage) {
    if (threadIdx.x == 0) bulk_load(&tile, r.data() + 32 * stage, &barrier);
    wait_for_phase(&barrier, stage);
    r.out()[64 * stage + threadIdx.x] = tile.words[threadIdx.x % 32];
    RIGHT(fence_proxy())
    __syncthreads();
  }
}

// A tile of ordinary stores is handed to a bulk store behind a block barrier alone.
// https://github.com/inclusionAI/cuLA/pull/114
// wrong: unsynchronised: execute fence.proxy.async after the first
PAIR_OF_ONE(stale_tile_is_stored, 1, 32) {
  __shared__ alignas(128) Tile tile;
  tile.words[threadIdx.x] = threadIdx.x;
  RIGHT(fence_proxy())
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(r.data(), &tile);
    bulk_read();
  }
}

// All threads wait for bulk groups before they fill a tile again; the groups are those of the leader alone.
// https://github.com/NVIDIA/TransformerEngine/pull/3417
// wrong: unsynchronised: nobody has waited for its completion
PAIR_OF_ONE(groups_of_the_leader, 1, 64) {
  __shared__ alignas(128) Tile tiles[2];
  auto* const words = reinterpret_cast<unsigned*>(tiles);
  for (unsigned round = 0; round < 2; ++round) {
    bulk_read();
    RIGHT(__syncthreads())
    words[threadIdx.x] = 100 * round + threadIdx.x;
    fence_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(r.data() + 64 * round, &tiles[0]);
      bulk_store(r.data() + 64 * round + 32, &tiles[1]);
    }
  }
  bulk_read();
}

// The tile of a result is also that of the next task's input: its store drains while the input is loaded.
// https://github.com/uccl-project/mKernel/pull/18
// wrong: unsynchronised: nobody has waited for its completion
PAIR_OF_ONE(result_drains_under_the_next_input, 1, 32) {
  __shared__ alignas(128) Tile tile;
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 1);
  __syncwarp();
  for (unsigned task = 0; task < 2; ++task) {
    if (threadIdx.x == 0) {
      RIGHT(bulk_read())
      fence_proxy();
      bulk_load(&tile, r.data() + 32 * task, &barrier);
    }
    __syncwarp();
    wait_for_phase(&barrier, task);
    tile.words[threadIdx.x] += 1;
    fence_proxy();
    __syncwarp();
    if (threadIdx.x == 0) bulk_store(r.out() + 32 * task, &tile);
  }
  if (threadIdx.x == 0) bulk_read();
}

// One thread adds up what all have stored, and the others go on to the next row.
// https://github.com/NVIDIA/cuml/pull/6578
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(rows_of_a_product, 1, 64) {
  __shared__ unsigned parts[64];
  for (unsigned row = 0; row < 2; ++row) {
    parts[threadIdx.x] = row + threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned sum = 0;
      for (int i = 0; i < 64; ++i) sum += parts[i];
      r.out()[row] = sum;
    }
    RIGHT(__syncthreads())
  }
}

// Threads that have no part in a reduction set its result to 0 for the next one before it has been written.
// https://github.com/NVIDIA/Fuser/issues/678
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(idle_threads_clear_the_result, 1, 64) {
  __shared__ unsigned result;
  for (unsigned i = 0; i < 2; ++i) {
    if (threadIdx.x == 63) result = 0;
    __syncthreads();
    if (threadIdx.x < 5) atomicAdd(&result, threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) r.out()[i] = result;
    RIGHT(__syncthreads())
  }
}

// One lane of a warp updates a shared value that the others read next.
// https://github.com/kokkos/kokkos/pull/6630
// wrong: unsynchronised: two lanes of one warp without __syncwarp()
PAIR_OF_ONE(value_of_one_lane, 1, 32) {
  __shared__ unsigned value;
  if (threadIdx.x == 0) value = r.data()[0] + 1;
  RIGHT(__syncwarp())
  r.out()[threadIdx.x] = value;
}

// A counter of a tile of threads is reset between votes, which order no memory.
// https://github.com/NVIDIA/cuCollections/pull/337
// wrong: unsynchronised: two lanes of one warp without __syncwarp()
PAIR_OF_ONE(counter_reset_between_votes, 1, 32) {
  __shared__ unsigned counter;
  if (threadIdx.x == 0) counter = 0;
  __syncwarp();
  for (unsigned round = 0; round < 2; ++round) {
    if (__any_sync(~0u, threadIdx.x == 3)) {
      const unsigned slot = atomicAdd(&counter, 1);
      r.data()[32 * round + slot] = threadIdx.x;
    }
    RIGHT(__syncwarp())
    if (__any_sync(~0u, true) && threadIdx.x == 5) counter = 0;
    RIGHT(__syncwarp())
  }
}

// Counts are set to 0 by some threads and added to by others.
// https://github.com/vllm-project/vllm/pull/13140
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(counts_without_a_barrier, 1, 64) {
  __shared__ unsigned counts[32];
  if (threadIdx.x < 32) counts[threadIdx.x] = 0;
  RIGHT(__syncthreads())
  atomicAdd(&counts[(threadIdx.x + 32) % 32], 1);
  __syncthreads();
  if (threadIdx.x < 32) r.out()[threadIdx.x] = counts[threadIdx.x];
}

// Values are sorted by another warp than the ones that have stored them.
// https://github.com/alicevision/popsift/pull/82
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(sorted_before_all_are_stored, 1, 64) {
  __shared__ unsigned values[64];
  values[threadIdx.x] = 64 - threadIdx.x;
  RIGHT(__syncthreads())
  const unsigned other = values[threadIdx.x ^ 32];
  r.out()[threadIdx.x] = min(other, 64 - threadIdx.x);
}

// A table of offsets is searched while its last entries are being written.
// https://github.com/sgl-project/sglang/pull/37663
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(search_in_a_new_table, 1, 64) {
  __shared__ unsigned prefix[64];
  prefix[threadIdx.x] = 4 * threadIdx.x;
  RIGHT(__syncthreads())
  unsigned low = 0, high = 63;
  while (low < high) {
    const unsigned middle = (low + high + 1) / 2;
    if (prefix[middle] <= 3 * threadIdx.x) low = middle;
    else high = middle - 1;
  }
  r.out()[threadIdx.x] = low;
}

// A round of a radix selection clears the histogram that others still take a count from.
// https://github.com/flashinfer-ai/flashinfer/pull/3529
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(histogram_of_the_next_round, 1, 64) {
  __shared__ unsigned histogram[64];
  unsigned remaining = 50;
  for (unsigned round = 0; round < 2; ++round) {
    histogram[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&histogram[threadIdx.x / 2], 1);
    __syncthreads();
    remaining -= histogram[31];
    RIGHT(__syncthreads())
  }
  r.out()[threadIdx.x] = remaining;
}

// The storage of a block's reduction is used in each turn of a loop, without a barrier between two.
// https://github.com/flashinfer-ai/flashinfer/pull/3624
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(storage_of_a_reduction, 1, 64) {
  __shared__ unsigned of_warps[2];
  for (unsigned turn = 0; turn < 2; ++turn) {
    const unsigned sum = __reduce_add_sync(~0u, turn + threadIdx.x);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    r.out()[64 * turn + threadIdx.x] = of_warps[0] + of_warps[1];
    RIGHT(__syncthreads())
  }
}

// A list of a warp is written in one loop and read by other lanes in the next.
// https://github.com/ikawrakow/ik_llama.cpp/pull/2502
// wrong: unsynchronised: two lanes of one warp without __syncwarp()
PAIR_OF_ONE(list_of_a_warp, 1, 32) {
  __shared__ unsigned store[32];
  const unsigned mask = __ballot_sync(~0u, threadIdx.x % 3 == 0);
  const unsigned place = __popc(mask & ((1u << threadIdx.x) - 1));
  if (threadIdx.x % 3 == 0) store[place] = threadIdx.x;
  RIGHT(__syncwarp())
  if (threadIdx.x < 11) r.out()[threadIdx.x] = store[threadIdx.x];
}

// Digits of buckets are compared in shared memory with a single barrier in the loop.
// https://github.com/yelhousni/zprize-GPU-MSM-harness/pull/1
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(one_barrier_in_a_loop, 1, 64) {
  __shared__ unsigned posted[64];
  unsigned equal = 0;
  for (unsigned digit = 0; digit < 2; ++digit) {
    posted[threadIdx.x] = (threadIdx.x >> digit) % 16;
    __syncthreads();
    for (int i = 0; i < 64; ++i) equal += posted[i] == posted[threadIdx.x];
    RIGHT(__syncthreads())
  }
  r.out()[threadIdx.x] = equal;
}

// The broadcast sum lies where the next step of the kernel stores its values.
// https://github.com/warpfront/hipfire/pull/575
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(sum_under_the_next_values, 1, 64) {
  __shared__ unsigned values[64];
  if (threadIdx.x == 0) values[0] = 77;
  __syncthreads();
  const unsigned sum = values[0];
  RIGHT(__syncthreads())
  values[threadIdx.x] = sum * threadIdx.x;
  __syncthreads();
  r.out()[threadIdx.x] = values[63 - threadIdx.x];
}

// The leader sets a flag that all read, and sets it again in the next iteration.
// https://github.com/NVIDIA/TensorRT-LLM/pull/18339
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(flag_of_the_leader, 1, 64) {
  __shared__ unsigned done;
  for (unsigned iteration = 0; iteration < 4; ++iteration) {
    if (threadIdx.x == 0) done = iteration == 2;
    __syncthreads();
    const bool stops = done;
    RIGHT(__syncthreads())
    if (stops) break;
  }
}

// An mbarrier is used by other threads with no barrier behind its initialisation.
// https://github.com/triton-lang/triton/pull/2040
// wrong: trap: mbarrier.init has not been executed
PAIR_OF_ONE(mbarrier_before_it_is_there, 1, 64) {
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) init(&barrier, 64);
  RIGHT(__syncthreads())
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&barrier)) : "memory");
  wait_for_phase(&barrier, 0);
}

// The phase of a barrier lies in shared memory: one thread turns it while another warp is still reading it.
// https://github.com/triton-lang/triton/pull/11334
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(phase_in_shared_memory, 1, 64) {
  __shared__ unsigned phase;
  if (threadIdx.x == 0) phase = 0;
  __syncthreads();
  for (unsigned round = 0; round < 2; ++round) {
    const unsigned mine = phase;
    RIGHT(__syncthreads())
    if (threadIdx.x == 0) phase = mine ^ 1;
    __syncthreads();
    r.out()[64 * round + threadIdx.x] = mine;
  }
}

// A tree over warps has one barrier in each level: the next level stores where this one is still read.
// https://github.com/ROCm/rocm-libraries/pull/11373
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(levels_of_a_tree, 1, 128) {
  __shared__ unsigned slots[2];
  const unsigned warp = threadIdx.x / 32;
  unsigned sum = __reduce_add_sync(~0u, threadIdx.x);
  for (unsigned half = 2; half >= 1; half /= 2) {
    if (threadIdx.x % 32 == 0 && warp >= half && warp < 2 * half) slots[warp - half] = sum;
    __syncthreads();
    if (warp < half) sum += slots[warp];
    RIGHT(__syncthreads())
  }
  if (threadIdx.x == 0) r.out()[0] = sum;
}

// Threads beyond the slots of a reduction take part in it, in the slots of others.
// https://github.com/ROCm/rocMLIR/pull/2447
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(idle_threads_in_the_slots_of_others, 1, 96) {
  __shared__ unsigned slots[64];
  if (!right || threadIdx.x < 64) slots[threadIdx.x % 64] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x < 32) r.out()[threadIdx.x] = slots[threadIdx.x] + slots[threadIdx.x + 32];
}

__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
}
template <bool right>
__global__ void __cluster_dims__(2) broadcast(Rank r) {
  __shared__ unsigned value;
  if (blockIdx.x == 0 && threadIdx.x == 0) value = 5;
  cluster_barrier();
  if (blockIdx.x == 1) {
    unsigned got;
    asm volatile("{.reg .u32 at; mapa.shared::cluster.u32 at, %1, 0; ld.shared::cluster.u32 %0, [at];}"
                 : "=r"(got) : "r"(address(&value)) : "memory");
    r.out()[threadIdx.x] = got;
  }
  RIGHT(cluster_barrier())
}

// A block of a cluster ends while another still reads its shared memory.
// https://github.com/triton-lang/triton/pull/10656
// wrong: illegal_address: whose shared memory this is, has ended
PAIR_OF_HOST(block_ends_before_its_peer_has_read) {
  broadcast<right><<<2, 32, 0, stream>>>(r);
}
