// Put, get and signals: what a flag between two ranks needs.
#include "pairs.cuh"

// Rank 0 puts a word and releases its flag.
// wrong: weak_order: is stored without release order
PAIR(put_with_signal, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    RIGHT(store_release(r.flag(1), 1))
    WRONG(store_relaxed(r.flag(1), 1))
  } else {
    wait(r.flag(), 1);
    r.out()[0] = r.data()[0];
  }
}

// A fence of system scope between the data and a relaxed flag.
// wrong: weak_order: has a fence of too small a scope beside it: use .sys
PAIR(put_with_fence, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    RIGHT(__threadfence_system())
    WRONG(__threadfence())
    store_relaxed(r.flag(1), 1);
  } else {
    wait(r.flag(), 1);
    r.out()[0] = r.data()[0];
  }
}

// The data, then the flag.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(data_before_flag, 1, 1) {
  if (r.rank == 0) {
    RIGHT(r.data(1)[0] = 7)
    store_release(r.flag(1), 1);
    WRONG(r.data(1)[0] = 7)
  } else {
    wait(r.flag(), 1);
    r.out()[0] = r.data()[0];
  }
}

// The reader acquires.
// wrong: weak_order: is loaded without acquire order
PAIR(signal_wait, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    store_release(r.flag(1), 1);
  } else {
    RIGHT(wait(r.flag(), 1))
    WRONG(wait_relaxed(r.flag(), 1))
    r.out()[0] = r.data()[0];
  }
}

// A loop that polls by relaxed loads, and a fence behind it.
// wrong: weak_order: its thread executes no fence of .sys scope after it
PAIR(fence_behind_the_loop, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    store_release(r.flag(1), 1);
  } else {
    wait_relaxed(r.flag(), 1);
    RIGHT(fence_sys())
    WRONG(fence_gpu())
    r.out()[0] = r.data()[0];
  }
}

// A flag for another GPU has system scope.
// wrong: weak_order: stores the flag with .gpu scope
PAIR(scope_of_the_store, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    RIGHT(store_release(r.flag(1), 1))
    WRONG(store_release_gpu(r.flag(1), 1))
  } else {
    wait(r.flag(), 1);
    r.out()[0] = r.data()[0];
  }
}

// So has the load of a flag that another GPU stores.
// wrong: weak_order: loads the flag with .gpu scope
PAIR(scope_of_the_load, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    store_release(r.flag(1), 1);
  } else {
    RIGHT(wait(r.flag(), 1))
    WRONG(while (!load_acquire_gpu(r.flag())) {})
    r.out()[0] = r.data()[0];
  }
}

// A volatile flag behind a fence, as libraries have had it for years.
// wrong: weak_order: is stored without release order
PAIR(volatile_flag, 1, 1) {
  volatile unsigned* const theirs = r.flag(1 - r.rank);
  volatile unsigned* const own = r.flag();
  r.data(1 - r.rank)[0] = 7;
  RIGHT(__threadfence_system())
  *theirs = 1;
  while (!*own) {}
  __threadfence_system();
  r.out()[0] = r.data()[0];
}

// The flag is no plain word.
// wrong: weak_order: is stored by a plain store
PAIR(plain_flag, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    __threadfence_system();
    RIGHT(store_relaxed(r.flag(1), 1))
    WRONG(r.flag(1)[0] = 1)
  } else {
    wait(r.flag(), 1);
    r.out()[0] = r.data()[0];
  }
}

// All threads put, and one signals behind a block barrier.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(put_by_a_block, 1, 64) {
  if (r.rank == 0) {
    r.data(1)[threadIdx.x] = threadIdx.x;
    RIGHT(__syncthreads())
    if (threadIdx.x == 0) store_release(r.flag(1), 1);
  } else {
    if (threadIdx.x == 0) wait(r.flag(), 1);
    __syncthreads();
    r.out()[threadIdx.x] = r.data()[threadIdx.x];
  }
}

// The thread that signals executes the fence: it covers what the block has stored before the barrier.
// wrong: weak_order: is stored without release order
PAIR(fence_of_the_signalling_thread, 1, 64) {
  if (r.rank == 0) {
    r.data(1)[threadIdx.x] = threadIdx.x;
    WRONG(fence_sys())
    __syncthreads();
    if (threadIdx.x == 0) {
      RIGHT(fence_sys())
      store_relaxed(r.flag(1), 1);
    }
  } else {
    if (threadIdx.x == 0) wait(r.flag(), 1);
    __syncthreads();
    r.out()[threadIdx.x] = r.data()[threadIdx.x];
  }
}

// One thread waits for all; a block barrier tells the others.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(wait_by_one_thread, 1, 64) {
  if (r.rank == 0) {
    r.data(1)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) store_release(r.flag(1), 1);
  } else {
    if (threadIdx.x == 0) wait(r.flag(), 1);
    RIGHT(__syncthreads())
    r.out()[threadIdx.x] = r.data()[threadIdx.x];
  }
}

// One warp puts; __syncwarp stands before the signal of its first lane.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(put_by_a_warp, 1, 32) {
  if (r.rank == 0) {
    r.data(1)[threadIdx.x] = threadIdx.x;
    RIGHT(__syncwarp())
    if (threadIdx.x == 0) store_release(r.flag(1), 1);
  } else {
    wait(r.flag(), 1);
    r.out()[threadIdx.x] = r.data()[threadIdx.x];
  }
}

// Each block has a flag of its own, and reads what that block of the peer has put.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(flag_of_each_block, 2, 32) {
  const int block = blockIdx.x;
  r.data(1 - r.rank)[32 * block + threadIdx.x] = threadIdx.x;
  __syncwarp();
  if (threadIdx.x == 0) store_release(r.flag(1 - r.rank) + block, 1);
  RIGHT(wait(r.flag() + block, 1))
  WRONG(wait(r.flag() + 1 - block, 1))
  r.out()[32 * block + threadIdx.x] = r.data()[32 * block + threadIdx.x];
}

// The last of a rank's blocks signals for all of them.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(last_block_signals, 3, 32) {
  r.data(1 - r.rank)[32 * blockIdx.x + threadIdx.x] = threadIdx.x;
  __syncwarp();
  if (threadIdx.x == 0) {
    const unsigned before = add_both_gpu(r.flag() + 8, 1);
    RIGHT(if (before == gridDim.x - 1) store_release(r.flag(1 - r.rank), 1))
    WRONG(if (before == 0) store_release(r.flag(1 - r.rank), 1))
    wait(r.flag(), 1);
  }
  __syncwarp();
  r.out()[32 * blockIdx.x + threadIdx.x] = r.data()[32 * blockIdx.x + threadIdx.x];
}

// The counter of the blocks hands on what each has stored.
// wrong: weak_order: is stored without release order
PAIR(counter_of_blocks, 3, 32) {
  r.data(1 - r.rank)[32 * blockIdx.x + threadIdx.x] = threadIdx.x;
  __syncwarp();
  if (threadIdx.x == 0) {
    unsigned before;
    RIGHT(before = add_both_gpu(r.flag() + 8, 1))
    WRONG(before = add_relaxed_gpu(r.flag() + 8, 1))
    if (before == gridDim.x - 1) store_release(r.flag(1 - r.rank), 1);
    wait(r.flag(), 1);
  }
  __syncwarp();
  r.out()[32 * blockIdx.x + threadIdx.x] = r.data()[32 * blockIdx.x + threadIdx.x];
}

// A get: the reader waits until the owner has written.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(get_of_what_is_ready, 1, 1) {
  r.data()[0] = 10 + r.rank;
  store_release(r.flag(1 - r.rank), 1);
  RIGHT(wait(r.flag(), 1))
  r.out()[0] = r.data(1 - r.rank)[0];
}

// The loads of a get come behind the wait.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(no_prefetch_before_the_wait, 1, 1) {
  r.data()[0] = 10 + r.rank;
  store_release(r.flag(1 - r.rank), 1);
  unsigned early = 0;
  WRONG(early = r.data(1 - r.rank)[0])
  wait(r.flag(), 1);
  RIGHT(early = r.data(1 - r.rank)[0])
  r.out()[0] = early;
}

// Each lane polls the flag of one rank until a vote says that all are up; a vote orders no memory of other lanes.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(vote_on_flags, 1, 32) {
  if (threadIdx.x == 0) r.data()[0] = r.rank;
  __syncwarp();
  if (threadIdx.x < 4) store_release(r.flag(threadIdx.x) + r.rank, 1);
  bool seen;
  do {
    seen = threadIdx.x >= 4 || load_acquire(r.flag() + threadIdx.x) == 1;
  } while (!__all_sync(~0u, seen));
  RIGHT(__syncwarp())
  if (threadIdx.x < 4) r.out()[threadIdx.x] = r.data(3 - threadIdx.x)[0];
}

// One volatile load of a vector polls the flags of all ranks, and a fence follows.
// wrong: weak_order: is loaded without acquire order
PAIR_OF_FOUR(flags_as_a_vector, 1, 1) {
  r.data()[0] = r.rank;
  for (int to = 0; to < 4; ++to) store_release(r.flag(to) + r.rank, 1);
  unsigned a, b, c, d;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(r.flag()) : "memory");
  } while (!(a && b && c && d));
  RIGHT(__threadfence_system())
  for (int i = 0; i < 4; ++i) r.out()[i] = r.data(i)[0];
}

// A flag that is taken down by the swap that sees it, and a fence behind.
// wrong: weak_order: is loaded without acquire order
PAIR(poll_by_swaps, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    store_release(r.flag(1), 1);
  } else {
    while (atomicCAS_system(r.flag(), 1, 0) != 1) {}
    RIGHT(__threadfence_system())
    r.out()[0] = r.data()[0];
  }
}

// What a kernel itself has stored does not come back through the read-only cache.
// wrong: unsynchronised: may return stale bytes
PAIR(past_the_read_only_cache, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    store_release(r.flag(1), 1);
  } else {
    wait(r.flag(), 1);
    r.data()[1] = r.data()[0] + 1;
    RIGHT(r.out()[0] = r.data()[1])
    WRONG(r.out()[0] = load_nc(r.data() + 1))
  }
}

// A get, its acknowledgement, and the owner writes again.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(get_then_acknowledge, 1, 1) {
  if (r.rank == 0) {
    r.data()[0] = 7;
    store_release(r.flag(1), 1);
    wait(r.flag(), 1);
    r.data()[0] = 8;
  } else {
    wait(r.flag(), 1);
    WRONG(store_release(r.flag(0), 1))
    r.out()[0] = r.data(0)[0];
    RIGHT(store_release(r.flag(0), 1))
  }
}

// An acknowledgement is a release: the load before it has happened.
// wrong: weak_order: is stored without release order
PAIR(acknowledgement_releases, 1, 1) {
  if (r.rank == 0) {
    r.data()[0] = 7;
    store_release(r.flag(1), 1);
    wait(r.flag(), 1);
    r.data()[0] = 8;
  } else {
    wait(r.flag(), 1);
    r.out()[0] = r.data(0)[0];
    RIGHT(store_release(r.flag(0), 1))
    WRONG(store_relaxed(r.flag(0), 1))
  }
}

// A line is discarded when the peer has read it: a discard is a weak write.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(line_is_given_up, 1, 1) {
  if (r.rank == 0) {
    r.data()[0] = 7;
    store_release(r.flag(1), 1);
    RIGHT(wait(r.flag(), 1))
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(r.data()) : "memory");
  } else {
    wait(r.flag(), 1);
    r.out()[0] = r.data(0)[0];
    store_release(r.flag(0), 1);
  }
}

// A message of variable length: its length is a part of the data.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(length_before_flag, 1, 1) {
  if (r.rank == 0) {
    for (int i = 1; i <= 3; ++i) r.data(1)[i] = i;
    RIGHT(r.data(1)[0] = 3)
    store_release(r.flag(1), 1);
    WRONG(r.data(1)[0] = 3)
  } else {
    wait(r.flag(), 1);
    for (unsigned i = 1; i <= r.data()[0]; ++i) r.out()[i] = r.data()[i];
  }
}

// Chunks with a flag each; a stencil that reads one word of the next chunk waits for that one, too.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(flags_of_chunks, 1, 1) {
  if (r.rank == 0) {
    for (int chunk = 0; chunk < 3; ++chunk) {
      for (int i = 0; i < 4; ++i) r.data(1)[4 * chunk + i] = i;
      store_release(r.flag(1) + chunk, 1);
    }
  } else {
    for (int chunk = 0; chunk < 2; ++chunk) {
      wait(r.flag() + chunk, 1);
      RIGHT(wait(r.flag() + chunk + 1, 1))
      for (int i = 0; i < 4; ++i) r.out()[4 * chunk + i] = r.data()[4 * chunk + i] + r.data()[4 * chunk + i + 1];
    }
  }
}

// The data lies in a packet with its flag, which one store of 8 bytes writes.
// wrong: weak_order: is stored without release order
PAIR(packet_of_8_bytes, 1, 1) {
  auto* const packet = reinterpret_cast<unsigned long long*>(r.data(1));
  if (r.rank == 0) {
    RIGHT(asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(packet), "l"(1ull << 32 | 7) : "memory"))
    WRONG(r.data(1)[0] = 7; store_relaxed(r.data(1) + 1, 1))
  } else {
    unsigned value;
    RIGHT(unsigned long long both; do {
      asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(both) : "l"(packet) : "memory");
    } while (both >> 32 != 1);
    value = unsigned(both))
    WRONG(wait(r.data() + 1, 1); value = r.data()[0])
    r.out()[0] = value;
    CHECK(value == 7);
  }
}

// Packets of two rounds carry the number of the round.
// wrong: value: line
PAIR(packet_with_epoch, 1, 1) {
  for (unsigned round = 1; round <= 2; ++round) {
    const unsigned tag = right ? round : 1;
    unsigned long long both = (unsigned long long)tag << 32 | (10 * round + r.rank);
    auto* const to = reinterpret_cast<unsigned long long*>(r.data(1 - r.rank));
    auto* const from = reinterpret_cast<unsigned long long*>(r.data());
    if (round == 2) {  // the peer has taken the first
      while (load_relaxed(r.flag()) == 0) {}
    }
    asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
    do {
      asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(both) : "l"(from) : "memory");
    } while (both >> 32 != tag);
    CHECK(unsigned(both) == 10 * round + 1 - r.rank);
    store_relaxed(r.flag(1 - r.rank), round);
  }
}
