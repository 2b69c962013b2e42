// Idioms of one GPU, and a mistake of each: clusters, grids, pipelines of warps, graphs of work, streams.
#define _CG_LIMIT_INCLUDED_DEPENDENCIES  // without libcu++, which takes nvcc two seconds
#include <cooperative_groups.h>

#include "clusters.cuh"

__device__ inline void relaxed_cluster_barrier() {
  asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" ::: "memory");
}
__device__ inline void bulk_load(unsigned* tile, const unsigned* from, uint64_t* barrier) {
  expect(barrier, kBytes);
  load_tile(tile, from, barrier);
}
__device__ inline void copy_async(unsigned* tile, const unsigned* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(tile)), "l"(from) : "memory");
}
template <int barrier>
__device__ inline void named_sync() { asm volatile("bar.sync %0, 64;" ::"n"(barrier) : "memory"); }
template <int barrier>
__device__ inline void named_arrive() { asm volatile("bar.arrive %0, 64;" ::"n"(barrier) : "memory"); }
__global__ void fill(unsigned* to, unsigned value) { to[threadIdx.x] = value; }
__global__ void move(unsigned* to, const unsigned* from) { to[threadIdx.x] = from[threadIdx.x]; }

// ---- clusters ----

template <bool right>
__global__ void __cluster_dims__(2) behind_a_fence(Rank r) {
  __shared__ unsigned value;
  if (threadIdx.x == 0) {
    value = blockIdx.x;
    RIGHT(asm volatile("fence.acq_rel.cluster;" ::: "memory"))
    WRONG(asm volatile("fence.acq_rel.cta;" ::: "memory"))
  }
  relaxed_cluster_barrier();
  r.out()[blockIdx.x * 32 + threadIdx.x] = load_of_cluster(in_block(&value, 1 - blockIdx.x));
  meet_cluster();
}

// A word in shared memory of the other block, behind a fence and a relaxed barrier of the cluster.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(relaxed_cluster_barrier_behind_a_fence) {
  behind_a_fence<right><<<2, 32, 0, stream>>>(r);
}

template <bool right>
__global__ void __cluster_dims__(2) signals_its_peer(Rank r) {
  __shared__ unsigned value;
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    RIGHT(fence_init())
  }
  relaxed_cluster_barrier();
  if (threadIdx.x == 0) {
    asm volatile("st.shared::cluster.u32 [%0], 7;" ::"r"(in_block(&value, 1 - blockIdx.x)) : "memory");
    arrive_in(in_block(&full, 1 - blockIdx.x));
  }
  wait_for_phase(&full, 0);
  r.out()[blockIdx.x * 32 + threadIdx.x] = value;
  meet_cluster();
}

// mbarriers of both blocks are there for both behind fence.mbarrier_init and a relaxed barrier of the cluster.
// wrong: unsynchronised: mbarrier.init
PAIR_OF_HOST(mbarriers_behind_a_relaxed_cluster_barrier) {
  signals_its_peer<right><<<2, 32, 0, stream>>>(r);
}

template <bool right>
__global__ void __cluster_dims__(2) counts_in_the_other(Rank r) {
  __shared__ unsigned counts[32];
  counts[threadIdx.x] = 0;
  RIGHT(meet_cluster())
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" ::"r"(in_block(&counts[threadIdx.x % 4], 1 - blockIdx.x)) : "memory");
  meet_cluster();
  r.out()[blockIdx.x * 32 + threadIdx.x] = counts[threadIdx.x];
}

template <bool right>
__global__ void __cluster_dims__(2) brings_registers(Rank r) {
  __shared__ unsigned values[32], total;
  __shared__ uint64_t full;
  const unsigned other = 1 - blockIdx.x;
  values[threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    total = 0;
    init(&full, 1);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(address(&full)) : "memory");
  }
  meet_cluster();
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(in_block(&values[threadIdx.x], other)), "r"(threadIdx.x), "r"(in_block(&full, other)) : "memory");
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::"r"(in_block(&total, other)), "r"(threadIdx.x), "r"(in_block(&full, other)) : "memory");
  RIGHT(wait_for_phase(&full, 0))
  const unsigned value = values[threadIdx.x] + total;
  WRONG(wait_for_phase(&full, 0))
  r.out()[blockIdx.x * 32 + threadIdx.x] = value;
  RIGHT(CHECK(value == 496 + threadIdx.x))
  meet_cluster();
}

// Registers go to the other block by asynchronous stores and reductions, whose bytes its mbarrier counts.
// wrong: unsynchronised: race on
PAIR_OF_HOST(registers_for_the_other_block) {
  brings_registers<right><<<2, 32, 0, stream>>>(r);
}

// Counts of a histogram are cleared before the other block adds to them.
// wrong: unsynchronised: race on
PAIR_OF_HOST(histogram_of_a_cluster) {
  counts_in_the_other<right><<<2, 32, 0, stream>>>(r);
}

// ---- pipelines of warps ----

// Lanes wait at an mbarrier that their first lane has initialised.
// wrong: unsynchronised: mbarrier.init
PAIR_OF_ONE(mbarrier_of_a_warp, 1, 32) {
  __shared__ alignas(128) unsigned tile[32];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    init(&full, 1);
    bulk_load(tile, r.data(), &full);
  }
  RIGHT(__syncwarp())
  wait_for_phase(&full, 0);
  r.out()[threadIdx.x] = tile[threadIdx.x];
}

// A producer's lane loads tiles that a warp of consumers gives back, by mbarriers of two stages.
// wrong: trap: more arrivals than the 1 that the mbarrier expects
PAIR_OF_ONE(stages_are_given_back, 1, 64) {
  __shared__ alignas(128) unsigned tiles[2][32];
  __shared__ uint64_t full[2], empty[2];
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) init(&full[s], 1), init(&empty[s], 32);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 6; ++i) {
      RIGHT(if (i >= 2) wait_for_phase(&empty[i % 2], (i / 2 - 1) % 2))
      bulk_load(tiles[i % 2], r.data() + 32 * i, &full[i % 2]);
    }
  } else if (threadIdx.x >= 32) {
    unsigned sum = 0;
    for (int i = 0; i < 6; ++i) {
      wait_for_phase(&full[i % 2], i / 2 % 2);
      sum += tiles[i % 2][threadIdx.x % 32];
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      arrive(&empty[i % 2]);
    }
    r.out()[threadIdx.x] = sum;
  }
}

// A warp hands a tile to another by named barriers: one says that it is full, another that it is empty.
// wrong: unsynchronised: race on
PAIR_OF_ONE(named_barriers_of_two_warps, 1, 64) {
  __shared__ unsigned tile[32];
  for (unsigned i = 0; i < 3; ++i) {
    if (threadIdx.x < 32) {
      if (i) named_sync<2>();
      WRONG(named_arrive<1>())
      tile[threadIdx.x] = i;
      RIGHT(named_arrive<1>())
    } else {
      named_sync<1>();
      r.out()[threadIdx.x] = tile[threadIdx.x % 32];
      if (i < 2) named_arrive<2>();
    }
  }
}

// Words of the next stage are under way while those of this one are used: one group may be pending.
// wrong: unsynchronised: completion
PAIR_OF_ONE(groups_that_may_be_pending, 1, 32) {
  __shared__ unsigned tiles[2][32];
  unsigned sum = 0;
  copy_async(&tiles[0][threadIdx.x], r.data() + threadIdx.x);
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int i = 0; i < 4; ++i) {
    if (i < 3) copy_async(&tiles[(i + 1) % 2][threadIdx.x], r.data() + 32 * (i + 1) + threadIdx.x);
    asm volatile("cp.async.commit_group;" ::: "memory");
    RIGHT(asm volatile("cp.async.wait_group 1;" ::: "memory"))
    WRONG(asm volatile("cp.async.wait_group 2;" ::: "memory"))
    __syncwarp();
    sum += tiles[i % 2][31 - threadIdx.x];
    __syncwarp();
  }
  r.out()[threadIdx.x] = sum;
}

// ---- grids ----

template <bool right>
__global__ void two_phases(Rank r) {
  r.data()[blockIdx.x * 32 + threadIdx.x] = blockIdx.x;
  RIGHT(cooperative_groups::this_grid().sync())
  WRONG(__syncthreads())
  r.out()[blockIdx.x * 32 + threadIdx.x] = r.data()[(blockIdx.x + 1) % gridDim.x * 32 + threadIdx.x];
}

// A cooperative grid meets between its two phases.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(grid_sync_between_phases) {
  void* arguments[] = {const_cast<Rank*>(&r)};
  cudaLaunchCooperativeKernel(reinterpret_cast<void*>(two_phases<right>), dim3(3), dim3(32), arguments, 0, stream);
}

template <bool right>
__global__ void visit(Rank r, unsigned level) {  // a graph in which vertex v leads to 2v+1 and 2v+2
  const unsigned vertex = blockIdx.x * 32 + threadIdx.x;
  unsigned* const distance = r.data();
  if (vertex >= 60 || load_relaxed_gpu(distance + vertex) != level) return;
  for (unsigned to = 2 * vertex + 1; to <= 2 * vertex + 2; ++to) {
    RIGHT(atomicMin(distance + to % 60, level + 1))
    WRONG(if (distance[to % 60] > level + 1) distance[to % 60] = level + 1)
  }
}
__global__ void start(unsigned* distance) { distance[threadIdx.x] = threadIdx.x ? ~0u : 0; }

// A search by levels: distances fall by atomics while others look at them.
// wrong: weak_order: weak order on
PAIR_OF_HOST(levels_of_a_search) {
  start<<<1, 64, 0, stream>>>(r.data());
  for (unsigned level = 0; level < 6; ++level) visit<right><<<2, 32, 0, stream>>>(r, level);
}

template <bool right>
__global__ void put_on_list(Rank r) {
  unsigned* const length = r.flag();
  if (threadIdx.x % 3 == 0) {
    unsigned place = 0;
    RIGHT(place = atomicAdd(length, 1))
    WRONG(place = *length; *length = place + 1)
    r.data()[place] = blockIdx.x * 32 + threadIdx.x;
  }
}
__global__ void take_from_list(Rank r) {
  if (threadIdx.x < *r.flag()) r.out()[threadIdx.x] = r.data()[threadIdx.x];
}

// Each thread loads the epoch of its block, which one of those that use it raises; the others never look at the value.
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(epoch_that_few_use, 1, 64) {
  unsigned* const epoch = r.flag();
  for (int call = 0; call < 2; ++call) {
    __syncthreads();
    const unsigned next = *epoch + 1;
    if (threadIdx.x == (right ? 0 : 32)) r.out()[call] = next;
    if (threadIdx.x == 0) *epoch = next;
  }
}

// A list of work grows by an atomic counter, and the next kernel takes from it.
// wrong: unsynchronised: race on
PAIR_OF_HOST(list_of_the_next_level) {
  put_on_list<right><<<2, 32, 0, stream>>>(r);
  take_from_list<<<1, 64, 0, stream>>>(r);
}

// ---- graphs and streams ----

// A captured graph forks to a side stream and joins it.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(fork_of_a_graph) {
  cudaStream_t side;
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaEvent_t forked, joined;
  cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&joined, cudaEventDisableTiming);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  fill<<<1, 32, 0, stream>>>(r.data(), 1);
  cudaEventRecord(forked, stream);
  cudaStreamWaitEvent(side, forked, 0);
  fill<<<1, 32, 0, side>>>(r.data() + 32, 2);
  RIGHT(cudaEventRecord(joined, side); cudaStreamWaitEvent(stream, joined, 0); move<<<1, 32, 0, stream>>>(r.out(), r.data() + 32))
  WRONG(move<<<1, 32, 0, stream>>>(r.out(), r.data() + 32); cudaEventRecord(joined, side); cudaStreamWaitEvent(stream, joined, 0))
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, stream);
  cudaGraphLaunch(executable, stream);
}

// The default stream waits for streams that were made without cudaStreamNonBlocking.
// wrong: unsynchronised: default stream
PAIR_OF_HOST(streams_that_block) {
  cudaStream_t side;
  cudaStreamCreateWithFlags(&side, right ? cudaStreamDefault : cudaStreamNonBlocking);
  fill<<<1, 32, 0, side>>>(r.data(), 1);
  move<<<1, 32>>>(r.out(), r.data());
  fill<<<1, 32, 0, side>>>(r.data(), 2);
}
