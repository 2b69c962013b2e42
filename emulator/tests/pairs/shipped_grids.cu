// Mistakes between the blocks of a grid, and of graph codes, that have shipped, each rebuilt from its description in a few
// lines. The wrong program is how it was, the right one how it was mended.
#include "pairs.cuh"

// The last block of a reduction reads what the others have stored; its atomic has no acquire order, nor a fence behind it.
// https://github.com/pytorch/pytorch/pull/128455
// wrong: weak_order: is loaded without acquire order
PAIR_OF_ONE(last_block_reads_without_a_fence, 4, 32) {
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    r.data()[blockIdx.x] = blockIdx.x;
    fence_gpu();
    is_last = add_relaxed_gpu(r.flag(), 1) == gridDim.x - 1;
    RIGHT(fence_gpu())
  }
  __syncthreads();
  if (is_last && threadIdx.x < 4) r.out()[threadIdx.x] = r.data()[threadIdx.x];
}

// Blocks take turns at an output by a semaphore: its release has no fence for what the block has stored.
// https://github.com/NVIDIA/Fuser/pull/2391
// wrong: weak_order: is stored without release order
PAIR_OF_ONE(semaphore_released_without_a_fence, 3, 64) {
  if (threadIdx.x == 0) {
    while (load_relaxed_gpu(r.flag()) != blockIdx.x) {}
    __threadfence();
  }
  __syncthreads();
  r.data()[threadIdx.x] += blockIdx.x;
  RIGHT(__threadfence())
  __syncthreads();
  if (threadIdx.x == 0) store_relaxed_gpu(r.flag(), blockIdx.x + 1);
}

template <bool right>
__global__ void split(Rank r, int launch) {
  unsigned* const parts = r.data() + 8 * launch;
  parts[blockIdx.x] = blockIdx.x;
  unsigned* const counter = r.flag() + (right ? launch : 0);
  if (add_both_gpu(counter, 1) % 2 == 1) r.out()[launch] = parts[0] + parts[1];
}

// Two products at a time on two streams count their blocks in one workspace.
// https://github.com/ROCm/aiter/pull/3288
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(workspace_of_two_streams) {
  cudaStream_t other;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  split<right><<<2, 1, 0, stream>>>(r, 0);
  split<right><<<2, 1, 0, other>>>(r, 1);
}

template <bool right>
__global__ void fix_up(Rank r, unsigned launch) {
  unsigned* const lock = r.flag() + 1 + blockIdx.x;
  WRONG(store_relaxed_gpu(lock, 0))
  if (blockIdx.x == 1) {
    r.data()[1] = 10 * launch;
    store_release_gpu(lock, 1);
  } else {
    while (load_acquire_gpu(r.flag() + 2) != 1) {}
    r.out()[launch] = r.data()[1];
  }
}

// Each block takes its lock down when it begins: another finds the one of the launch before still up.
// https://github.com/ROCm/tritonBLAS/issues/61
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(locks_reset_within_the_kernel) {
  for (unsigned launch = 1; launch <= 2; ++launch) {
    RIGHT(cudaMemsetAsync(r.flag(), 0, 16, stream))
    fix_up<right><<<2, 1, 0, stream>>>(r, launch);
  }
}

// An addition under a lock of a table of locks has no fence on either side.
// https://github.com/kokkos/kokkos/pull/3208
// wrong: weak_order: is stored without release order
PAIR_OF_ONE(locked_addition_without_fences, 3, 1) {
  while (atomicCAS(r.flag(), 0, 1) != 0) {}
  RIGHT(__threadfence())
  r.data()[0] += 1;
  RIGHT(__threadfence())
  atomicExch(r.flag(), 0);
}

// The totals of a scan's blocks are added up by the last one without a fence between a total and its count.
// https://github.com/kokkos/kokkos/issues/2681
// wrong: weak_order: is stored without release order
PAIR_OF_ONE(totals_of_a_scan, 3, 1) {
  r.data()[blockIdx.x] = blockIdx.x + 1;
  RIGHT(__threadfence())
  const bool is_last = atomicAdd(r.flag(), 1) == gridDim.x - 1;
  __threadfence();
  if (is_last) r.out()[0] = r.data()[0] + r.data()[1] + r.data()[2];
}

// Look-back: the flag of a block is polled by atomics, and its aggregate read by an ordinary load with nothing between.
// https://github.com/JuliaGPU/AcceleratedKernels.jl/pull/98
// wrong: weak_order: is stored without release order
PAIR_OF_ONE(aggregate_by_an_ordinary_load, 3, 1) {
  const int block = blockIdx.x;
  unsigned before = 0;
  if (block > 0) {
    while (load_relaxed_gpu(r.flag() + block - 1) == 0) {}
    RIGHT(fence_gpu())
    before = r.data()[block - 1];
  }
  r.data()[block] = before + block;
  RIGHT(fence_gpu())
  store_relaxed_gpu(r.flag() + block, 1);
}

// A grid barrier whose last block sets the counter to 0 again: whoever has not seen the full count waits for ever.
// https://github.com/tile-ai/tilelang/pull/2319
// wrong: deadlock: nobody can go on
PAIR_OF_ONE(grid_barrier_without_generation, 3, 1) {
  for (unsigned round = 0; round < 2; ++round) {
    const unsigned generation = load_acquire_gpu(r.flag() + 1);
    if (add_both_gpu(r.flag(), 1) == gridDim.x - 1) {
      store_relaxed_gpu(r.flag(), 0);
      RIGHT(store_release_gpu(r.flag() + 1, generation + 1))
    } else {
      RIGHT(while (load_acquire_gpu(r.flag() + 1) == generation) {})
      WRONG(while (load_acquire_gpu(r.flag()) != gridDim.x) {})
    }
  }
}

// Subgraph matching: a plain load of a count that others lower by atomics.
// https://github.com/gunrock/gunrock/issues/829
// wrong: unsynchronised: make both relaxed or stronger
PAIR_OF_ONE(count_read_beside_atomics, 2, 32) {
  unsigned* const counts = r.data();
  const int node = threadIdx.x % 4;
  unsigned count;
  RIGHT(count = load_relaxed_gpu(counts + node))
  WRONG(count = counts[node])
  if (count < 2) atomicAdd(counts + (node + 1) % 4, 1);
}

// Shortest paths: distances are read plainly while others relax them by atomics.
// https://github.com/rapidsai/cugraph/issues/456
// wrong: unsynchronised: make both relaxed or stronger
PAIR_OF_ONE(distances_read_beside_atomics, 2, 1) {
  unsigned* const next = r.data() + (right ? 8 : 0);  // mended: an array for the distances to come
  const unsigned distance = r.data()[blockIdx.x] + 3;
  atomicMin(next + 1 - blockIdx.x, distance);
}

// The blocks of a sequence have parts of its output, and each writes the whole: only the last one may.
// https://github.com/flashinfer-ai/flashinfer/pull/4161
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_ONE(each_block_writes_the_output, 3, 1) {
  r.data()[blockIdx.x] = blockIdx.x + 1;
  const bool is_last = add_both_gpu(r.flag(), 1) == gridDim.x - 1;
  RIGHT(if (is_last) r.out()[0] = r.data()[0] + r.data()[1] + r.data()[2])
  WRONG(r.out()[0] = is_last ? r.data()[0] + r.data()[1] + r.data()[2] : blockIdx.x)
}

// Each block stores a table of all starts, the same in each, and reads its own start from it: another warp stores that.
// https://github.com/vllm-project/vllm/pull/34991
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(table_of_starts, 2, 128) {
  r.data()[threadIdx.x] = 3 * threadIdx.x;
  RIGHT(__syncthreads())
  if (threadIdx.x == 0) r.out()[blockIdx.x] = r.data()[100 + blockIdx.x];
}

// A histogram in global memory is added to by atomics of the scope of a block.
// https://github.com/ComputationalRadiationPhysics/picongpu/pull/2231
// wrong: weak_order: with .cta scope
PAIR_OF_ONE(atomics_of_block_scope, 2, 32) {
  RIGHT(atomicAdd(r.data() + threadIdx.x % 4, 1))
  WRONG(atomicAdd_block(r.data() + threadIdx.x % 4, 1))
}

// A lock of each block guards what belongs to the grid.
// https://github.com/alpaka-group/alpaka/issues/222
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_ONE(lock_of_each_block, 3, 1) {
  unsigned* const lock = r.flag() + (right ? 0 : blockIdx.x);
  while (atomicCAS(lock, 0, 1) != 0) {}
  __threadfence();
  r.data()[0] += 1;
  __threadfence();
  atomicExch(lock, 0);
}

// The prefix of a tile replaces its aggregate before the other warps of the block have read that.
// https://github.com/NVIDIA/cccl/pull/4556
// wrong: unsynchronised: two warps of one block without __syncthreads()
PAIR_OF_ONE(prefix_over_the_aggregate, 1, 64) {
  if (threadIdx.x == 0) r.data()[0] = 5;
  __syncthreads();
  const unsigned aggregate = r.data()[0];
  RIGHT(__syncthreads())
  if (threadIdx.x == 0) r.data()[0] = aggregate + 100;
  r.out()[threadIdx.x] = aggregate;
}
