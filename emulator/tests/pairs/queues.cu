// Locks, queues and epochs of several GPUs, waits that back off, and objects of libcu++, and a mistake of each.
#include <cuda/atomic>
#include <cuda/semaphore>

#include "pairs.cuh"

__device__ inline void back_off(unsigned& pause) {
  __nanosleep(pause);
  pause = pause < 256 ? 2 * pause : pause;
}

// ---- locks ----

// A ticket lock of both GPUs: whoever leaves releases the next ticket to the system.
// wrong: weak_order: reaches it from another GPU: use .sys
PAIR(ticket_lock, 2, 1) {
  unsigned* const next = r.flag(0);
  unsigned* const serving = r.flag(0) + 1;
  for (int i = 0; i < 2; ++i) {
    const unsigned ticket = add_relaxed(next, 1);
    while (load_acquire(serving) != ticket) {}
    r.data(0)[0] += 1;
    RIGHT(store_release(serving, ticket + 1))
    WRONG(store_release_gpu(serving, ticket + 1))
  }
}

// A queue lock: each waits at a word of its own, which the one before it hands over.
// wrong: weak_order: is stored without release order
PAIR(queue_lock, 1, 1) {
  unsigned* const tail = r.flag(0);
  unsigned* const mine = r.flag() + 8;  // [0]: I wait; [1]: who comes after me, plus 1
  const unsigned me = unsigned(r.rank) + 1;
  for (int round = 0; round < 4; ++round) {
    store_relaxed(mine, 1);
    store_relaxed(mine + 1, 0);
    const unsigned before = exchange_acquire(tail, me);
    if (before) {
      store_release(r.flag(int(before) - 1) + 9, me);
      while (load_acquire(mine)) {}
    }
    r.data(0)[0] += me;
    unsigned after = load_acquire(mine + 1);
    if (!after) {
      fence_sys();
      if (swap_relaxed(tail, me, 0) == me) continue;
      while (!(after = load_acquire(mine + 1))) {}
    }
    RIGHT(store_release(r.flag(int(after) - 1) + 8, 0))
    WRONG(store_relaxed(r.flag(int(after) - 1) + 8, 0))
  }
}

// Readers count themselves in and out; a writer waits until all are out.
// wrong: weak_order: is stored without release order
PAIR(readers_and_writer, 1, 1) {
  unsigned* const readers = r.flag(0);
  if (r.rank == 0) {
    while (load_acquire(readers) != 1) {}
    r.data()[0] = 7;
  } else {
    r.out()[0] = r.data(0)[0];
    RIGHT(add_release(readers, 1))
    WRONG(add_relaxed(readers, 1))
  }
}

// ---- queues ----

// A bounded queue whose slots carry sequence numbers: a consumer gives its slot to the producer one lap later.
// wrong: weak_order: is stored without release order
PAIR(queue_with_sequence_numbers, 1, 1) {
  constexpr unsigned kSlots = 2, kItems = 5;
  unsigned *const slots = r.data(1), *const sequence = r.flag(1);
  if (r.rank == 0) {
    for (unsigned i = 0; i < kItems; ++i) {
      while (load_acquire(sequence + i % kSlots) != i / kSlots * 2) {}  // even: empty
      slots[i % kSlots] = 10 * i;
      store_release(sequence + i % kSlots, i / kSlots * 2 + 1);
    }
  } else {
    for (unsigned i = 0; i < kItems; ++i) {
      while (load_acquire(sequence + i % kSlots) != i / kSlots * 2 + 1) {}
      r.out()[i] = slots[i % kSlots];
      RIGHT(store_release(sequence + i % kSlots, i / kSlots * 2 + 2))
      WRONG(store_relaxed(sequence + i % kSlots, i / kSlots * 2 + 2))
    }
  }
}

// A task that another GPU steals: what the owner has written of it comes with the swap that takes it.
// wrong: weak_order: is loaded without acquire order
PAIR(stolen_task, 1, 1) {
  unsigned* const top = r.flag(0);
  if (r.rank == 0) {
    r.data()[3] = 30;
    store_release(top, 1);
  } else {
    while (load_relaxed(top) != 1) {}
    const unsigned before = right ? swap_acquire(top, 1, 2) : swap_relaxed(top, 1, 2);
    if (before == 1) r.out()[0] = r.data(0)[3];
  }
}

// A list without locks: what a thread has written of its node comes with the head that it swaps in.
// wrong: weak_order: is stored without release order
PAIR_OF_FOUR(list_without_locks, 1, 1) {
  unsigned* const head = r.flag(0);  // number of the rank plus 1
  unsigned* const mine = r.data() + 16;
  mine[0] = 100 + unsigned(r.rank);
  for (unsigned seen = load_relaxed(head);;) {
    mine[1] = seen;
    RIGHT(fence_sys())
    const unsigned before = swap_relaxed(head, seen, unsigned(r.rank) + 1);
    if (before == seen) break;
    seen = before;
  }
  add_release(r.flag(0) + 4, 1);
  if (r.rank != 0) return;
  wait_relaxed(r.flag(0) + 4, 2);
  unsigned sum = 0;
  for (unsigned at = exchange_acquire(head, 0); at; at = r.data(int(at) - 1)[17]) sum += r.data(int(at) - 1)[16];
  r.out()[0] = sum;
}

// ---- epochs ----

// Epochs of a byte wrap around: those of two rounds are compared by their difference.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(epochs_that_wrap, 1, 32) {
  const int other = 1 - r.rank;
  unsigned epoch = 253;
  store_release(r.flag(), epoch);  // where both stand
  meet(r, 1);
  if (threadIdx.x) return;
  for (int round = 0; round < 5; ++round) {
    epoch = (epoch + 1) % 256;
    r.data(other)[round] = epoch;
    store_release(r.flag(other), epoch);
    if constexpr (right) {
      while (int8_t(load_acquire(r.flag()) - epoch) < 0) {}
    } else {
      while (load_acquire(r.flag()) < epoch) {}
    }
    r.out()[round] = r.data()[round];
  }
}

// Flags of two buffers by turns keep one bit: a third round would find that of the first.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(bit_of_a_round, 1, 1) {
  const int other = 1 - r.rank;
  for (unsigned round = 0; round < 4; ++round) {
    const unsigned slot = round % 2, mark = right ? round / 2 + 1 : 1;
    r.data(other)[8 * round + slot] = round;
    store_release(r.flag(other) + slot, mark);
    while (load_acquire(r.flag() + slot) != mark) {}
    r.out()[round] = r.data()[8 * round + slot];
    store_release(r.flag(other) + 8 + slot, round + 1);
    while (load_acquire(r.flag() + 8 + slot) < round + 1) {}
  }
}

// ---- waits that back off ----

// A relaxed poll that sleeps between two looks, and a fence behind it.
// wrong: weak_order: its thread executes no fence of .sys scope after it
PAIR(poll_with_back_off, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    store_release(r.flag(1), 1);
  } else {
    unsigned pause = 8;
    while (!load_relaxed(r.flag())) back_off(pause);
    RIGHT(fence_sys())
    r.out()[0] = r.data()[0];
  }
}

// A wait with a bound gives up, and then does not read.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(wait_that_gives_up, 1, 1) {
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    store_release(r.flag(1), 1);
  } else {
    unsigned turns = 0;
    bool is_there = false;
    while (!is_there && ++turns < 3) is_there = load_acquire(r.flag());
    if (!right || is_there) r.out()[0] = r.data()[0];
  }
}

// ---- libcu++ ----

// An atomic of the scope of a GPU is none for its peers.
// wrong: weak_order: reaches it from another GPU: use .sys
PAIR(scope_of_an_atomic_ref, 1, 1) {
  constexpr auto kScope = right ? cuda::thread_scope_system : cuda::thread_scope_device;
  cuda::atomic_ref<unsigned, kScope> flag(*r.flag(1));
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    flag.store(1, cuda::memory_order_release);
  } else {
    while (!flag.load(cuda::memory_order_acquire)) {}
    r.out()[0] = r.data()[0];
  }
}

// A fence of the scope of a GPU beside a relaxed atomic.
// wrong: weak_order: has a fence of too small a scope beside it: use .sys
PAIR(scope_of_an_atomic_fence, 1, 1) {
  cuda::atomic_ref<unsigned, cuda::thread_scope_system> flag(*r.flag(1));
  if (r.rank == 0) {
    r.data(1)[0] = 7;
    cuda::atomic_thread_fence(cuda::memory_order_release, right ? cuda::thread_scope_system : cuda::thread_scope_device);
    flag.store(1, cuda::memory_order_relaxed);
  } else {
    while (!flag.load(cuda::memory_order_acquire)) {}
    r.out()[0] = r.data()[0];
  }
}

// A semaphore of the blocks of a grid lets one of them in at a time.
// wrong: unsynchronised: race on
PAIR_OF_ONE(semaphore_of_blocks, 4, 1) {
  auto& permits = *reinterpret_cast<cuda::counting_semaphore<cuda::thread_scope_device, 2>*>(r.flag() + 16);
  unsigned* const is_made = r.flag() + 32;
  if (blockIdx.x == 0) {
    new (&permits) cuda::counting_semaphore<cuda::thread_scope_device, 2>(right ? 1 : 2);
    store_release_gpu(is_made, 1);
  }
  while (!load_acquire_gpu(is_made)) {}
  for (int round = 0; round < 4; ++round) {
    permits.acquire();
    r.data()[0] += 1;
    permits.release();
  }
}
