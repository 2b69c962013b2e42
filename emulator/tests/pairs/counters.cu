// Counters that more threads arrive at than a load looks at one by one, and a mistake of each.
#include "pairs.cuh"

ATOMIC(add_release_gpu, "add.release.gpu.u32")
ATOMIC(add_release_cta, "add.release.cta.u32")

__device__ inline unsigned thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline unsigned threads() { return gridDim.x * blockDim.x; }
__device__ inline void read_all(const Rank& r, int of, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    CHECK(r.data(of)[i] == i + 1);
  }
}

// The last of all threads reads what all have written: each executes a fence before it arrives.
// wrong: weak_order: is stored without release order
PAIR_OF_ONE(last_of_all_threads, 4, 64) {
  r.data()[thread()] = thread() + 1;
  RIGHT(fence_gpu())
  if (add_relaxed_gpu(r.flag(), 1) + 1 < threads()) return;
  fence_gpu();
  read_all(r, 0, threads());
}

// The last executes a fence, too.
// wrong: weak_order: without acquire
PAIR_OF_ONE(last_acquires, 4, 64) {
  r.data()[thread()] = thread() + 1;
  if (add_release_gpu(r.flag(), 1) + 1 < threads()) return;
  RIGHT(fence_gpu())
  read_all(r, 0, threads());
}

// A thread arrives behind its data.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_ONE(data_before_its_arrival, 4, 64) {
  RIGHT(r.data()[thread()] = thread() + 1)
  const unsigned before = add_both_gpu(r.flag(), 1);
  WRONG(r.data()[thread()] = thread() + 1)
  if (before + 1 < threads()) return;
  for (unsigned i = 0; i < threads(); ++i) r.out()[i] = r.data()[i];
}

// Arrivals of other blocks need the scope of the GPU.
// wrong: weak_order: scope
PAIR_OF_ONE(arrivals_of_other_blocks, 4, 64) {
  r.data()[thread()] = thread() + 1;
  RIGHT(add_release_gpu(r.flag(), 1))
  WRONG(add_release_cta(r.flag(), 1))
  if (thread() > 0) return;
  while (load_acquire_gpu(r.flag()) < threads()) {}
  read_all(r, 0, threads());
}

// Those of other GPUs need the scope of the system, also of the fence.
// wrong: weak_order: has a fence of too small a scope beside it: use .sys
PAIR(arrivals_of_other_ranks, 2, 64) {
  r.data()[thread()] = thread() + 1;
  RIGHT(fence_sys())
  WRONG(fence_gpu())
  add_relaxed(r.flag(0), 1);
  if (r.rank > 0 || thread() > 0) return;
  wait(r.flag(), 2 * threads());
  read_all(r, 1, threads());
}

// A store to the counter ends what it carried: who has waited for all releases it anew.
// wrong: weak_order: is stored without release order
PAIR_OF_ONE(counter_that_becomes_a_flag, 4, 64) {
  constexpr unsigned kOver = 1000;
  if (blockIdx.x < 2) {
    r.data()[thread()] = thread() + 1;
    add_release_gpu(r.flag(), 1);
  } else if (thread() == 128) {
    while (load_acquire_gpu(r.flag()) < 128) {}
    RIGHT(store_release_gpu(r.flag(), kOver))
    WRONG(store_relaxed_gpu(r.flag(), kOver))
  } else if (thread() == 192) {
    while (load_acquire_gpu(r.flag()) < kOver) {}
    read_all(r, 0, 128);
  }
}

// Rounds of a counter: what arrives after the store counts from there.
// wrong: weak_order: is stored without release order
PAIR_OF_ONE(arrivals_in_two_rounds, 2, 64) {
  for (unsigned round = 1; round <= 2; ++round) {
    r.data()[thread()] = thread() + round;
    if (round == 1) fence_gpu();
    RIGHT(if (round == 2) fence_gpu())
    const unsigned before = add_relaxed_gpu(r.flag() + round, 1);
    if (before + 1 == threads()) {
      fence_gpu();
      for (unsigned i = 0; i < threads(); ++i) {
        CHECK(r.data()[i] == i + round);
      }
      store_release_gpu(r.flag(), round);
    }
    while (load_acquire_gpu(r.flag()) < round) {}
  }
}
