// Barriers, buffers that are used again, counters, locks and collectives of several steps.
#include "pairs.cuh"

// ---- barriers ----

// A counter of all ranks in the memory of rank 0.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(counter_barrier, 1, 1) {
  r.data()[0] = r.rank;
  add_both(r.flag(0), 1);
  RIGHT(wait(r.flag(0), 4))
  WRONG(wait(r.flag(0), 3))
  unsigned sum = 0;
  for (int i = 0; i < 4; ++i) sum += r.data(i)[0];
  r.out()[0] = sum;
}

// A counter that hands on: each arrival releases what its rank has written.
// wrong: weak_order: is stored without release order
PAIR_OF_FOUR(counter_barrier_releases, 1, 1) {
  r.data()[0] = r.rank;
  RIGHT(add_release(r.flag(0), 1))
  WRONG(add_relaxed(r.flag(0), 1))
  wait(r.flag(0), 4);
  unsigned sum = 0;
  for (int i = 0; i < 4; ++i) sum += r.data(i)[0];
  r.out()[0] = sum;
}

// Each rank notifies all others and waits for all of them.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(notify_all, 1, 32) {
  if (threadIdx.x == 0) r.data()[0] = r.rank;
  __syncwarp();
  if (threadIdx.x < 4) store_release(r.flag(threadIdx.x) + r.rank, 1);
  RIGHT(if (threadIdx.x < 4) wait(r.flag() + threadIdx.x, 1))
  WRONG(if (threadIdx.x < 3) wait(r.flag() + threadIdx.x, 1))
  __syncwarp();
  if (threadIdx.x < 4) r.out()[threadIdx.x] = r.data(threadIdx.x)[0];
}

// The slot of a flag is its sender's number in the memory of the receiver.
// wrong: deadlock: nobody can go on
PAIR(slot_of_the_sender, 1, 1) {
  r.data(1 - r.rank)[0] = 7;
  RIGHT(store_release(r.flag(1 - r.rank) + r.rank, 1))
  WRONG(store_release(r.flag(1 - r.rank) + (1 - r.rank), 1))
  wait(r.flag() + (1 - r.rank), 1);
  r.out()[0] = r.data()[0];
}

// In a ring the data of a neighbour comes with the flag of that neighbour.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(flag_of_the_right_neighbour, 1, 1) {
  r.data()[0] = r.rank;
  store_release(r.flag(r.next()), 1);
  store_release(r.flag(r.previous()) + 1, 1);
  RIGHT(wait(r.flag() + 1, 1))
  WRONG(wait(r.flag(), 1))
  r.out()[0] = r.data(r.next())[0];
}

// The second barrier waits for the second epoch.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(epochs_of_barriers, 1, 32) {
  r.data(1 - r.rank)[threadIdx.x] = 1;
  meet(r, 1);
  r.out()[threadIdx.x] = r.data()[threadIdx.x];
  meet(r, right ? 2 : 1);
  r.data(1 - r.rank)[threadIdx.x] = 2;
}

// A barrier that counts up to the ranks times the round is not reset.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(counter_of_rounds, 1, 1) {
  for (unsigned round = 1; round <= 2; ++round) {
    r.data()[round] = 10 * round + r.rank;
    add_both(r.flag(0), 1);
    wait(r.flag(0), right ? 2 * round : 2);
    r.out()[round] = r.data(1 - r.rank)[round];
  }
}

// The flag is taken down by its reader before its writer may raise it again.
// wrong: deadlock: nobody can go on
PAIR(flag_taken_down, 1, 1) {
  for (int round = 0; round < 3; ++round) {
    if (r.rank == 0) {
      RIGHT(while (load_acquire(r.flag(1)) != 0) {})
      store_release(r.flag(1), 1);
    } else {
      wait(r.flag(), 1);
      store_release(r.flag(), 0);
    }
  }
}

// Both sides of a barrier by its sense turn the sense with each round.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(sense_of_a_barrier, 1, 1) {
  unsigned sense = 0;
  for (unsigned round = 0; round < 2; ++round) {
    r.data()[round] = 10 * round + r.rank;
    if (right || round == 0) sense ^= 1;
    if (add_both(r.flag(0), 1) == 1) {
      store_relaxed(r.flag(0), 0);
      store_release(r.flag(0) + 1, sense);
    } else {
      while (load_acquire(r.flag(0) + 1) != sense) {}
    }
    r.out()[round] = r.data(1 - r.rank)[round];
  }
}

// One block meets the other rank, and the others of the grid learn of it by a flag.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(barrier_of_the_first_block, 3, 32) {
  if (blockIdx.x == 0) {
    r.data()[threadIdx.x] = r.rank;
    meet(r, 1);
    if (threadIdx.x == 0) store_release_gpu(r.flag() + 8, 1);
  }
  RIGHT(while (!load_acquire_gpu(r.flag() + 8)) {})
  r.out()[32 * blockIdx.x + threadIdx.x] = r.data(1 - r.rank)[threadIdx.x];
}

// Two levels: the blocks of a GPU by its scope, then the ranks by that of the system.
// wrong: weak_order: is loaded without acquire order
PAIR(barrier_of_two_levels, 2, 1) {
  r.data()[blockIdx.x] = r.rank;
  add_both_gpu(r.flag() + 8, 1);
  if (blockIdx.x == 0) {
    RIGHT(while (load_acquire_gpu(r.flag() + 8) != 2) {})
    WRONG(while (load_relaxed_gpu(r.flag() + 8) != 2) {})
    store_release(r.flag(1 - r.rank), 1);
  }
  wait(r.flag(), 1);
  r.out()[blockIdx.x] = r.data(1 - r.rank)[1 - blockIdx.x];
}

// ---- buffers that are used again ----

// Two buffers by parity, and a credit before one is filled again.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(double_buffer, 1, 1) {
  for (unsigned round = 1; round <= 4; ++round) {
    unsigned* const slot = r.data(1) + round % 2;
    if (r.rank == 0) {
      RIGHT(if (round > 2) wait(r.flag(0), round - 2))
      *slot = round;
      store_release(r.flag(1), round);
    } else {
      wait(r.flag(1), round);
      r.out()[round] = *slot;
      store_release(r.flag(0), round);
    }
  }
}

// With barriers in each round two buffers are enough, and one is not.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(parity_by_barriers, 1, 32) {
  for (unsigned round = 1; round <= 3; ++round) {
    const int slot = right ? 32 * (round % 2) : 0;
    r.data(1 - r.rank)[slot + threadIdx.x] = round;
    meet(r, round);
    r.out()[threadIdx.x] = r.data()[slot + threadIdx.x];
  }
}

// A credit is acquired: the write behind it comes after the read that it stands for.
// wrong: weak_order: is loaded without acquire order
PAIR(credit_is_acquired, 1, 1) {
  for (unsigned round = 1; round <= 3; ++round) {
    if (r.rank == 0) {
      RIGHT(wait(r.flag(0), round - 1))
      WRONG(wait_relaxed(r.flag(0), round - 1))
      r.data(1)[0] = round;
      store_release(r.flag(1), round);
    } else {
      wait(r.flag(1), round);
      r.out()[round] = r.data()[0];
      store_release(r.flag(0), round);
    }
  }
}

// Back-pressure: a queue of four slots has at most four messages.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(credits_of_a_queue, 1, 1) {
  for (unsigned i = 0; i < 8; ++i) {
    if (r.rank == 0) {
      const unsigned most = right ? 4 : 5;
      if (i >= most) wait(r.flag(0), i - most + 1);
      r.data(1)[i % 4] = i;
      store_release(r.flag(1), i + 1);
    } else {
      wait(r.flag(1), i + 1);
      r.out()[i] = r.data()[i % 4];
      store_release(r.flag(0), i + 1);
    }
  }
}

// Consumers give a slot back together: the block has read it before one thread returns the credit.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(credit_of_a_block, 1, 64) {
  for (unsigned round = 1; round <= 2; ++round) {
    if (r.rank == 0) {
      if (threadIdx.x == 0) wait(r.flag(0), round - 1);
      __syncthreads();
      r.data(1)[threadIdx.x] = round;
      __syncthreads();
      if (threadIdx.x == 0) store_release(r.flag(1), round);
    } else {
      if (threadIdx.x == 0) wait(r.flag(1), round);
      __syncthreads();
      r.out()[threadIdx.x] = r.data()[threadIdx.x];
      RIGHT(__syncthreads())
      if (threadIdx.x == 0) store_release(r.flag(0), round);
    }
  }
}

// ---- atomics and locks ----

// Ranks accumulate in one word.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(accumulate, 1, 1) {
  RIGHT(atomicAdd_system(r.data(0), r.rank))
  WRONG(r.data(0)[0] += r.rank)
}

// Atomics of several GPUs on one word have the scope of the system.
// wrong: weak_order: accesses the flag with .gpu scope
PAIR_OF_FOUR(scope_of_atomics, 1, 1) {
  RIGHT(atomicAdd_system(r.data(0), r.rank))
  WRONG(atomicAdd(r.data(0), r.rank))
}

// A plain store among atomics loses updates.
// wrong: unsynchronised: make both relaxed or stronger
PAIR(no_store_among_atomics, 1, 1) {
  if (r.rank == 0) {
    RIGHT(atomicExch_system(r.data(0), 0))
    WRONG(r.data(0)[0] = 0)
  } else {
    atomicAdd_system(r.data(0), 1);
  }
}

// A sum of all is complete when all have added.
// wrong: value: line
PAIR_OF_FOUR(sum_of_all, 1, 1) {
  atomicAdd_system(r.data(0), r.rank + 1);
  add_release(r.flag(0), 1);
  if (r.rank == 0) {
    wait(r.flag(0), right ? 4 : 2);
    CHECK(load_relaxed(r.data(0)) == 10);
  }
}

// Fetch-and-add gives each message a slot; the slot has a flag of its own.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(slots_by_fetch_add, 1, 1) {
  const unsigned slot = add_both(r.flag(0), 1);
  r.data(0)[slot] = 10 + r.rank;
  store_release(r.flag(0) + 1 + slot, 1);
  if (r.rank == 0) {
    wait(r.flag(0), 4);
    for (int i = 0; i < 4; ++i) {
      RIGHT(wait(r.flag(0) + 1 + i, 1))
      r.out()[i] = r.data(0)[i];
    }
  }
}

// A lock by compare-and-swap: the unlock is a release.
// wrong: weak_order: is stored without release order
PAIR(unlock_releases, 1, 1) {
  while (swap_acquire(r.flag(0), 0, 1) != 0) {}
  r.data(0)[0] += 1;
  RIGHT(exchange_release(r.flag(0), 0))
  WRONG(exchange_relaxed(r.flag(0), 0))
}

// The lock is an acquire.
// wrong: weak_order: is loaded without acquire order
PAIR(lock_acquires, 1, 1) {
  RIGHT(while (swap_acquire(r.flag(0), 0, 1) != 0) {})
  WRONG(while (swap_relaxed(r.flag(0), 0, 1) != 0) {})
  r.data(0)[0] += 1;
  exchange_release(r.flag(0), 0);
}

// A test before the lock reads the guarded word by a strong load, or within the lock.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(no_look_at_the_guarded_word, 1, 1) {
  WRONG(if (r.data(0)[0] > 5) return)
  while (swap_acquire(r.flag(0), 0, 1) != 0) {}
  r.data(0)[0] += 1;
  exchange_release(r.flag(0), 0);
}

// A task is written before the number of tasks is raised.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(task_before_the_count, 1, 1) {
  if (r.rank == 0) {
    for (unsigned task = 0; task < 3; ++task) {
      RIGHT(r.data(0)[task] = 100 + task)
      add_release(r.flag(0), 1);
      WRONG(r.data(0)[task] = 100 + task)
    }
  } else {
    for (unsigned task = 0; task < 3; ++task) {
      wait(r.flag(0), task + 1);
      r.out()[task] = r.data(0)[task];
    }
  }
}

// What a sequence lock guards is read and written by strong accesses: a reader may meet a writer.
// wrong: unsynchronised: make both relaxed or stronger
PAIR(sequence_lock, 1, 1) {
  if (r.rank == 0) {
    store_relaxed(r.flag(0), 1);
    fence_sys();
    store_relaxed(r.data(0), 7);
    store_release(r.flag(0), 2);
  } else {
    unsigned before, value;
    do {
      while ((before = load_acquire(r.flag(0))) % 2) {}
      RIGHT(value = load_relaxed(r.data(0)))
      WRONG(value = r.data(0)[0])
      fence_sys();
    } while (load_relaxed(r.flag(0)) != before);
    r.out()[0] = value;
  }
}

// ---- collectives of several steps ----

// A ring all-gather: each rank passes on what it has received.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(ring_all_gather, 1, 32) {
  const int lane = threadIdx.x;
  r.data()[32 * r.rank + lane] = 100 * r.rank + lane;
  for (unsigned step = 1; step < 4; ++step) {
    const int chunk = (r.rank + 5 - step) % 4;
    RIGHT(wait(r.flag(), step - 1))
    WRONG(if (step > 2) wait(r.flag(), step - 2))
    r.data(r.next())[32 * chunk + lane] = r.data()[32 * chunk + lane];
    __syncwarp();
    if (lane == 0) store_release(r.flag(r.next()), step);
  }
  wait(r.flag(), 3);
  for (int i = 0; i < 4; ++i) r.out()[32 * i + lane] = r.data()[32 * i + lane];
}

// A ring reduce-scatter: the partial sum has arrived before one's own is added.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(ring_reduce_scatter, 1, 1) {
  for (unsigned step = 1; step < 4; ++step) {
    const int chunk = (r.rank + 4 - step) % 4;
    if (step > 1) {
      RIGHT(wait(r.flag(), step - 1))
    }
    r.data(r.next())[16 * step + chunk] = r.rank + (step > 1 ? r.data()[16 * (step - 1) + chunk] : 0);
    store_release(r.flag(r.next()), step);
  }
  wait(r.flag(), 3);
  r.out()[0] = r.rank + r.data()[16 * 3 + r.rank];
}

// A tree: a rank that passes data on has it from its parent.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(broadcast_tree, 1, 1) {
  const int parent = r.rank == 3 ? 1 : 0;  // 0 has the children 1 and 2, and 1 has 3
  if (r.rank == 0) r.data(0)[0] = 7;
  if (r.rank == 0) {
    for (int child = 1; child <= 2; ++child) store_release(r.flag(child), 1);
    WRONG(store_release(r.flag(3), 1))
  } else {
    RIGHT(wait(r.flag(), 1))
    WRONG(wait(r.flag(), 1))
    r.data()[0] = r.data(parent)[0];
    RIGHT(if (r.rank == 1) store_release(r.flag(3), 1))
  }
}

// What a third rank has written reaches the last by the flags of the one between.
// wrong: weak_order: is loaded without acquire order
PAIR_OF_FOUR(flags_in_a_chain, 1, 1) {
  if (r.rank == 0) {
    r.data(3)[0] = 7;
    store_release(r.flag(1), 1);
  } else if (r.rank == 1) {
    RIGHT(wait(r.flag(), 1))
    WRONG(wait_relaxed(r.flag(), 1))
    store_release(r.flag(3), 1);
  } else if (r.rank == 3) {
    wait(r.flag(), 1);
    r.out()[0] = r.data()[0];
  }
}

// Two shots of an all-reduce: the sums are complete before they are gathered.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(two_shots, 1, 64) {
  const int i = threadIdx.x, half = i / 32;
  r.data()[i] = r.rank + i;
  meet(r, 1);
  if (half == r.rank) r.data()[64 + i] = r.data(0)[i] + r.data(1)[i];
  RIGHT(meet(r, 2))
  WRONG(__syncthreads())
  r.out()[i] = r.data(half)[64 + i];
}

// Both halos have come before the edges are computed.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(halos_of_two_sides, 1, 1) {
  unsigned* const cells = r.data();
  r.data(r.next())[0] = r.rank;
  r.data(r.previous())[9] = r.rank;
  store_release(r.flag(r.next()), 1);
  store_release(r.flag(r.previous()) + 1, 1);
  wait(r.flag(), 1);
  RIGHT(wait(r.flag() + 1, 1))
  r.out()[0] = cells[0] + cells[9];
}

// Halos go out before the cells that they come from change.
// wrong: unsynchronised: no flag or barrier leads from
PAIR(cells_after_their_halo, 1, 1) {
  unsigned* const cells = r.data();
  cells[1] = r.rank;
  store_release(r.flag(1 - r.rank), 1);
  wait(r.flag(), 1);
  r.out()[0] = r.data(1 - r.rank)[1];
  store_release(r.flag(1 - r.rank) + 1, 1);
  RIGHT(wait(r.flag() + 1, 1))
  cells[1] = 5;
}

// All-to-all: each part has a place of its own at the receiver.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(place_of_each_sender, 1, 1) {
  for (int to = 0; to < 4; ++to) {
    RIGHT(r.data(to)[r.rank] = 10 * r.rank + to)
    WRONG(r.data(to)[r.rank / 2] = 10 * r.rank + to)
    store_release(r.flag(to) + r.rank, 1);
  }
  for (int from = 0; from < 4; ++from) wait(r.flag() + from, 1);
  for (int from = 0; from < 4; ++from) r.out()[from] = r.data()[from];
}

// A producer that has several consumers waits for the credits of all.
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(credits_of_all_consumers, 1, 1) {
  for (unsigned round = 1; round <= 2; ++round) {
    if (r.rank == 0) {
      for (int from = 1; from < (right ? 4 : 3); ++from) wait(r.flag(0) + from, round - 1);
      r.data(0)[0] = round;
      for (int to = 1; to < 4; ++to) store_release(r.flag(to), round);
    } else {
      wait(r.flag(), round);
      r.out()[round] = r.data(0)[0];
      store_release(r.flag(0) + r.rank, round);
    }
  }
}
