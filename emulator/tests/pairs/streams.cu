// Calls that follow each other on a stream, copy engines, events, and bulk copies.
#include "pairs.cuh"

__global__ void fill(unsigned* to, unsigned value) { to[threadIdx.x] = value + threadIdx.x; }
__global__ void move(unsigned* to, const unsigned* from) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void raise(unsigned* flag, unsigned value) { store_release(flag, value); }
__global__ void wait_for(unsigned* flag, unsigned value) { wait(flag, value); }

// Adds up the words of both ranks, between two barriers of a call.
__global__ void pull(Rank r, bool begins, bool ends, unsigned epoch) {
  if (begins) meet(r, epoch, 0);
  r.out()[threadIdx.x] = r.data(0)[threadIdx.x] + r.data(1)[threadIdx.x];
  if (ends) meet(r, epoch, 1);
}

__global__ void pull_volatile(Rank r, bool begins) {
  if (begins) meet(r, 1, 0);
  const volatile unsigned* const theirs = r.data(1 - r.rank);
  r.out()[threadIdx.x] = r.data()[threadIdx.x] + theirs[threadIdx.x];
  meet(r, 1, 1);
}

// Puts a word of each thread into a slot of the peer, meets it, and takes what it has put.
__global__ void exchange(Rank r, unsigned epoch, int slot, bool starts) {
  if (starts) meet(r, epoch, 0);
  r.data(1 - r.rank)[32 * slot + threadIdx.x] = epoch;
  meet(r, epoch, 1);
  r.out()[threadIdx.x] = r.data()[32 * slot + threadIdx.x];
}

struct Side {  // a second stream
  Side() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  // Work of `to` from now on comes after the work of `from` until now.
  void order(cudaStream_t to, cudaStream_t from) {
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, from);
    cudaStreamWaitEvent(to, event, 0);
  }
  cudaStream_t stream;
  cudaEvent_t event;
};

// ---- calls ----

// The streams of the ranks reach a call at their own times: what a peer's stream has written is read behind a barrier.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(barrier_at_the_beginning) {
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  pull<<<1, 32, 0, stream>>>(r, right, true, 1);
}

// Volatile loads of a peer's data are no flags: they need the barrier, too.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(data_by_volatile_loads) {
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  pull_volatile<<<1, 32, 0, stream>>>(r, right);
}

// The next work of a stream overwrites an argument: the call ends when the peer has read it.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(barrier_at_the_end) {
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  pull<<<1, 32, 0, stream>>>(r, true, right, 1);
  fill<<<1, 32, 0, stream>>>(r.data(), 9);
}

// Calls that meet once each use two slots of scratch in turn.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(scratch_of_calls_by_parity) {
  for (unsigned call = 1; call <= 3; ++call) exchange<<<1, 32, 0, stream>>>(r, call, right ? call % 2 : 0, false);
}

// Where calls share one slot of scratch, each begins with a barrier.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(scratch_of_calls_by_barrier) {
  for (unsigned call = 1; call <= 3; ++call) exchange<<<1, 32, 0, stream>>>(r, call, 0, right);
}

// Flags grow from call to call: a peer that is early may have raised them before a reset.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(flags_without_reset) {
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  WRONG(cudaMemsetAsync(r.flag() + 64, 0, 64, stream))
  pull<<<1, 32, 0, stream>>>(r, true, true, 1);
}

// An output is cleared before the barrier behind which the peer puts into it.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(cleared_before_the_barrier) {
  RIGHT(cudaMemsetAsync(r.data(), 0, 128, stream))
  raise<<<1, 1, 0, stream>>>(r.flag(1 - r.rank), 1);
  WRONG(cudaMemsetAsync(r.data(), 0, 128, stream))
  wait_for<<<1, 1, 0, stream>>>(r.flag(), 1);
  fill<<<1, 32, 0, stream>>>(r.data(1 - r.rank), 5);
  raise<<<1, 1, 0, stream>>>(r.flag(1 - r.rank), 2);
  wait_for<<<1, 1, 0, stream>>>(r.flag(), 2);
  move<<<1, 32, 0, stream>>>(r.out(), r.data());
}

// Two streams that communicate at a time have flags of their own.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(flags_of_each_stream) {
  Side side;
  cudaStream_t streams[2] = {stream, side.stream};
  for (int i = 0; i < 2; ++i) {
    unsigned* const own = r.data() + 32 * i;
    const int slot = right ? i : 0;
    fill<<<1, 32, 0, streams[i]>>>(own, r.rank);
    raise<<<1, 1, 0, streams[i]>>>(r.flag(1 - r.rank) + slot, 1);
    wait_for<<<1, 1, 0, streams[i]>>>(r.flag() + slot, 1);
    move<<<1, 32, 0, streams[i]>>>(r.out() + 32 * i, r.data(1 - r.rank) + 32 * i);
  }
}

// ---- copy engines ----

// A copy to the peer, and a flag behind it on the same stream.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(copy_then_flag) {
  Side side;
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  cudaMemcpyAsync(r.data(1 - r.rank) + 64, r.data(), 128, cudaMemcpyDeviceToDevice, stream);
  raise<<<1, 1, 0, right ? stream : side.stream>>>(r.flag(1 - r.rank), 1);
  wait_for<<<1, 1, 0, stream>>>(r.flag(), 1);
  move<<<1, 32, 0, stream>>>(r.out(), r.data() + 64);
}

// A copy from the peer behind a wait on the same stream.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(wait_then_copy) {
  Side side;
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  raise<<<1, 1, 0, stream>>>(r.flag(1 - r.rank), 1);
  wait_for<<<1, 1, 0, right ? stream : side.stream>>>(r.flag(), 1);
  cudaMemcpyAsync(r.data() + 64, r.data(1 - r.rank), 128, cudaMemcpyDeviceToDevice, stream);
}

// The copy of a side stream waits for an event that is recorded behind the kernel.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(event_behind_the_kernel) {
  Side side;
  WRONG(side.order(side.stream, stream))
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  RIGHT(side.order(side.stream, stream))
  cudaMemcpyAsync(r.data(1 - r.rank) + 64, r.data(), 128, cudaMemcpyDeviceToDevice, side.stream);
  raise<<<1, 1, 0, side.stream>>>(r.flag(1 - r.rank), 1);
  wait_for<<<1, 1, 0, stream>>>(r.flag(), 1);
  move<<<1, 32, 0, stream>>>(r.out(), r.data() + 64);
}

// The stream of the call waits for the copy of the side stream before it raises the flag.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(side_stream_is_joined) {
  Side side;
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  side.order(side.stream, stream);
  cudaMemcpyAsync(r.data(1 - r.rank) + 64, r.data(), 128, cudaMemcpyDeviceToDevice, side.stream);
  RIGHT(side.order(stream, side.stream))
  raise<<<1, 1, 0, stream>>>(r.flag(1 - r.rank), 1);
  wait_for<<<1, 1, 0, stream>>>(r.flag(), 1);
  move<<<1, 32, 0, stream>>>(r.out(), r.data() + 64);
}

// The source of a copy on a side stream is overwritten behind an event.
// wrong: unsynchronised: two streams of one rank, which nothing orders
PAIR_OF_HOST(source_of_a_copy_on_a_side_stream) {
  Side side;
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  side.order(side.stream, stream);
  cudaMemcpyAsync(r.data(1 - r.rank) + 64, r.data(), 128, cudaMemcpyDeviceToDevice, side.stream);
  RIGHT(side.order(stream, side.stream))
  fill<<<1, 32, 0, stream>>>(r.data(), 9);
}

// A pull is acknowledged behind the copy.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(acknowledged_behind_the_copy) {
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  raise<<<1, 1, 0, stream>>>(r.flag(1 - r.rank), 1);
  wait_for<<<1, 1, 0, stream>>>(r.flag(), 1);
  WRONG((raise<<<1, 1, 0, stream>>>(r.flag(1 - r.rank) + 1, 1)))
  cudaMemcpyAsync(r.out(), r.data(1 - r.rank), 128, cudaMemcpyDeviceToDevice, stream);
  RIGHT((raise<<<1, 1, 0, stream>>>(r.flag(1 - r.rank) + 1, 1)))
  wait_for<<<1, 1, 0, stream>>>(r.flag() + 1, 1);
  fill<<<1, 32, 0, stream>>>(r.data(), 9);
}

// ---- bulk copies ----

struct Tile {
  uint32_t words[32];
};
__device__ inline uint32_t address(const void* shared) { return uint32_t(__cvta_generic_to_shared(shared)); }
__device__ inline void bulk_put(unsigned* to, const Tile* tile) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;" ::"l"(to), "r"(address(tile)) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void bulk_add(unsigned* to, const Tile* tile) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 128;" ::"l"(to), "r"(address(tile)) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void bulk_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ inline void bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void fence_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ inline void bulk_get(Tile* tile, const unsigned* from, uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(address(barrier)) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(address(tile)), "l"(from), "r"(address(barrier)) : "memory");
}
__device__ inline void wait_for_bytes(uint64_t* barrier, unsigned phase) {
  unsigned done = 0;
  while (!done) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(address(barrier)), "r"(phase) : "memory");
  }
}

// The bytes of a bulk put have been written before its flag is raised; that its source has been read is not enough.
// wrong: unsynchronised: nobody has waited for its completion
PAIR(bulk_put_is_complete, 1, 32) {
  __shared__ alignas(128) Tile tile;
  if (r.rank == 0) {
    tile.words[threadIdx.x] = threadIdx.x;
    fence_proxy();
    __syncwarp();
    if (threadIdx.x == 0) {
      bulk_put(r.data(1), &tile);
      RIGHT(bulk_written())
      WRONG(bulk_read())
      store_release(r.flag(1), 1);
    }
  } else {
    wait(r.flag(), 1);
    r.out()[threadIdx.x] = r.data()[threadIdx.x];
  }
}

// A tile that is being put is not written before it has been read.
// wrong: unsynchronised: nobody has waited for its completion
PAIR(tile_is_read_before_it_is_filled_again, 1, 32) {
  __shared__ alignas(128) Tile tile;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      RIGHT(bulk_read())
    }
    __syncwarp();
    tile.words[threadIdx.x] = round;
    fence_proxy();
    __syncwarp();
    if (threadIdx.x == 0) bulk_put(r.data(1 - r.rank) + 32 * round, &tile);
  }
  if (threadIdx.x == 0) bulk_written();
}

// Stores into a tile reach a bulk put by a proxy fence.
// wrong: unsynchronised: execute fence.proxy.async after the first
PAIR(proxy_fence_before_a_bulk_put, 1, 32) {
  __shared__ alignas(128) Tile tile;
  tile.words[threadIdx.x] = threadIdx.x;
  RIGHT(fence_proxy())
  __syncwarp();
  if (threadIdx.x == 0) {
    bulk_put(r.data(1 - r.rank), &tile);
    bulk_written();
  }
}

// The bytes of a bulk get have come when its mbarrier says so.
// wrong: unsynchronised: nobody has waited for its completion
PAIR(bulk_get_is_complete, 1, 32) {
  __shared__ alignas(128) Tile tile;
  __shared__ uint64_t barrier;
  r.data()[threadIdx.x] = 10 * r.rank;
  __syncwarp();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&barrier)) : "memory");
    fence_proxy();
    store_release(r.flag(1 - r.rank), 1);
    wait(r.flag(), 1);
    fence_proxy();
    bulk_get(&tile, r.data(1 - r.rank), &barrier);
  }
  __syncwarp();
  RIGHT(wait_for_bytes(&barrier, 0))
  r.out()[threadIdx.x] = tile.words[threadIdx.x];
  WRONG(wait_for_bytes(&barrier, 0))
}

// Bulk additions of two ranks to the same words; a put among them is none.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(bulk_additions_of_two_ranks, 1, 32) {
  __shared__ alignas(128) Tile tile;
  tile.words[threadIdx.x] = threadIdx.x;
  fence_proxy();
  __syncwarp();
  if (threadIdx.x == 0) {
    RIGHT(bulk_add(r.data(0), &tile))
    WRONG(r.rank ? bulk_add(r.data(0), &tile) : bulk_put(r.data(0), &tile))
    bulk_written();
  }
}
