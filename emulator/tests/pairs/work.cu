// Work that blocks and warps of one GPU share: split and stream-K products, look-back scans, tile schedulers, roles of warps.
#include "pairs.cuh"

// Stream-K: a block that ends a tile's work waits for partial sums of the others, behind flags.
// wrong: weak_order: release
PAIR_OF_ONE(stream_k_fixup, 3, 64) {
  unsigned* partial = r.data();
  unsigned* flags = r.flag();
  const unsigned b = blockIdx.x, t = threadIdx.x;
  unsigned acc = b * 100 + t;
  if (b) {
    partial[b * 64 + t] = acc;
    __syncthreads();
    if (t == 0) {
      RIGHT(__threadfence())
      atomicExch(flags + b, 1u);
    }
  } else {
    for (unsigned peer = 1; peer < gridDim.x; ++peer) {
      if (t == 0) { while (load_acquire_gpu(flags + peer) == 0) {} }
      __syncthreads();
      acc += partial[peer * 64 + t];
    }
    r.out()[t] = acc;
    CHECK(acc == 3 * t + 300);
  }
}

// Split-K in order: the semaphore counts blocks, each adds its own to the tile of the one before.
// wrong: unsynchronised: rank 0's
PAIR_OF_ONE(split_k_in_turn, 4, 64) {
  const unsigned b = blockIdx.x, t = threadIdx.x;
  unsigned* lock = r.flag();
  if (t == 0) while (load_acquire_gpu(lock) != b) {}
  RIGHT(__syncthreads())
  unsigned v = b ? r.out()[t] : 0;
  r.out()[t] = v + b + 1;
  __syncthreads();
  if (t == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(lock) : "memory");
}

// Split-K as old libraries wrote it: volatile semaphore, threadfences on both sides.
// wrong: weak_order: fence
PAIR_OF_ONE(split_k_volatile, 4, 64) {
  const unsigned b = blockIdx.x, t = threadIdx.x;
  volatile unsigned* lock = r.flag();
  if (t == 0) { while (*lock != b) {} RIGHT(__threadfence()) }
  __syncthreads();
  unsigned v = b ? r.out()[t] : 0;
  r.out()[t] = v + b + 1;
  __threadfence();
  __syncthreads();
  if (t == 0) *lock = b + 1;
}

// Decoupled look-back with flag and value in one 64-bit word: nothing else to order.
// wrong: value: line
PAIR_OF_ONE(look_back_packed, 6, 32) {
  unsigned long long* tiles = reinterpret_cast<unsigned long long*>(r.data());
  __shared__ unsigned tile, prefix;
  if (threadIdx.x == 0) tile = atomicAdd(r.flag(), 1u);
  __syncthreads();
  const unsigned id = tile;
  if (threadIdx.x == 0) {
    const unsigned own = id + 1;
    auto put = [&](unsigned long long state, unsigned value) { asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(tiles + id), "l"(state << 32 | value) : "memory"); };
    unsigned sum = 0;
    if (id == 0) put(2, own);
    else {
      put(1, own);
      for (int at = int(id) - 1;;) {
        unsigned long long w;
        do asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(w) : "l"(tiles + at) : "memory"); while (w >> 32 == 0);
        sum += unsigned(w);
        if (w >> 32 == 2) break;
        --at;
      }
      put(2, right ? sum + own : sum);
    }
    prefix = sum;
  }
  __syncthreads();
  CHECK(prefix == id * (id + 1) / 2);
  r.out()[id * 32 + threadIdx.x] = prefix + threadIdx.x;
}

// Decoupled look-back with separate flag and values, warp-wide window, fences between.
// wrong: weak_order: acquire
PAIR_OF_ONE(look_back_window, 6, 64) {
  unsigned *flags = r.flag(), *aggregate = r.data(), *inclusive = r.data() + 64;
  __shared__ unsigned tile, prefix;
  if (threadIdx.x == 0) tile = atomicAdd(r.flag() + 100, 1u);
  __syncthreads();
  const int id = int(tile);
  if (threadIdx.x < 32) {
    const int lane = int(threadIdx.x);
    if (lane == 0) {
      (id ? aggregate : inclusive)[id] = 1;
      __threadfence();
      *(volatile unsigned*)(flags + id) = id ? 1 : 2;
    }
    unsigned sum = 0;
    if (id) {
      int end = id - 1;
      for (;;) {
        const int at = end - lane;
        unsigned flag = 2, value = 0;
        do {
          if (at >= 0) flag = *(volatile unsigned*)(flags + at);
        } while (__any_sync(~0u, flag == 0));
        RIGHT(__threadfence())
        if (at >= 0) value = flag == 2 ? *(volatile unsigned*)(inclusive + at) : *(volatile unsigned*)(aggregate + at);
        const unsigned done = __ballot_sync(~0u, flag == 2);
        const int first = done ? __ffs(int(done)) - 1 : 31;
        unsigned part = lane <= first ? value : 0;
        for (int d = 16; d; d /= 2) part += __shfl_xor_sync(~0u, part, d);
        sum += part;
        if (done) break;
        end -= 32;
      }
      if (lane == 0) {
        *(volatile unsigned*)(inclusive + id) = sum + 1;
        __threadfence();
        *(volatile unsigned*)(flags + id) = 2;
      }
    }
    if (lane == 0) prefix = sum;
  }
  __syncthreads();
  CHECK(prefix == unsigned(id));
}

// A persistent scheduler: the tile's number goes through shared memory, which two barriers guard.
// wrong: unsynchronised: `st.shared
PAIR_OF_ONE(persistent_tiles, 3, 64) {
  __shared__ unsigned next;
  for (;;) {
    if (threadIdx.x == 0) next = atomicAdd(r.flag(), 1u);
    __syncthreads();
    const unsigned tile = next;
    RIGHT(__syncthreads())
    if (tile >= 12) break;
    r.out()[tile * 64 + threadIdx.x] = tile;
  }
}

// Named barriers: a producer warp fills what a consumer warp reads; bar.arrive on one side, bar.sync on the other.
// wrong: unsynchronised: shared
PAIR_OF_ONE(named_barriers_ring, 1, 64) {
  __shared__ unsigned ring[2][32];
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (unsigned i = 0; i < 6; ++i) {
      if (right && i >= 2) asm volatile("bar.sync %0, 64;" ::"r"(3 + i % 2) : "memory");  // empty
      ring[i % 2][lane] = i * 32 + lane;
      asm volatile("bar.arrive %0, 64;" ::"r"(1 + i % 2) : "memory");  // full
    }
  } else {
    for (unsigned i = 0; i < 6; ++i) {
      asm volatile("bar.sync %0, 64;" ::"r"(1 + i % 2) : "memory");
      unsigned v = ring[i % 2][31 - lane];
      r.out()[i * 32 + lane] = v;
      if (right && i < 4) asm volatile("bar.arrive %0, 64;" ::"r"(3 + i % 2) : "memory");
    }
  }
}

// Grid barrier by hand, sense reversing by the sign bit as cooperative groups do it.
// wrong: weak_order: fence
PAIR_OF_ONE(grid_barrier_by_sign_bit, 4, 64) {
  unsigned* arrived = r.flag();
  for (unsigned round = 0; round < 3; ++round) {
    r.data()[round * 256 + blockIdx.x * 64 + threadIdx.x] = round + blockIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned nb = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
      RIGHT(__threadfence())
      const unsigned old = atomicAdd(arrived, nb);
      while ((((old ^ *(volatile unsigned*)arrived) & 0x80000000u) == 0)) {}
      RIGHT(__threadfence())
    }
    __syncthreads();
    CHECK(r.data()[round * 256 + (blockIdx.x + 1) % 4 * 64 + threadIdx.x] == round + (blockIdx.x + 1) % 4);
  }
}

// Bits of a mask say which parts are ready; the reader waits for all.
// wrong: weak_order: release
PAIR_OF_ONE(ready_mask, 5, 32) {
  unsigned* mask = r.flag();
  if (blockIdx.x) {
    r.data()[blockIdx.x * 32 + threadIdx.x] = blockIdx.x;
    RIGHT(__threadfence())
    __syncwarp();
    if (threadIdx.x == 0) atomicOr(mask, 1u << blockIdx.x);
  } else {
    if (threadIdx.x == 0) while (atomicAnd(mask, ~0u) != 30u) {}
    __syncwarp();
    __threadfence();
    unsigned s = 0;
    for (int i = 1; i < 5; ++i) s += r.data()[i * 32 + threadIdx.x];
    CHECK(s == 10);
  }
}
