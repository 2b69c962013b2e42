// Mistakes of collectives that have shipped, each rebuilt from its description in a few lines. The wrong program is how it
// was, the right one how it was mended.
#include "pairs.cuh"

__global__ void fill(unsigned* to, unsigned value) { to[threadIdx.x] = value + threadIdx.x; }

template <bool right>
__global__ void reduce_in_one_stage(Rank r) {
  meet(r, 1, 0);
  r.out()[threadIdx.x] = r.data(0)[threadIdx.x] + r.data(1)[threadIdx.x];
  RIGHT(meet(r, 1, 1))
}

// A one-stage all-reduce has no barrier at its end: the input that a peer still reads belongs to the next kernel.
// https://github.com/ROCm/aiter/pull/3514
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(all_reduce_returns_early) {
  fill<<<1, 32, 0, stream>>>(r.data(), r.rank);
  reduce_in_one_stage<right><<<1, 32, 0, stream>>>(r);
  fill<<<1, 32, 0, stream>>>(r.data(), 9);
}

template <bool right>
__global__ void scatter_parts(Rank r) {
  meet(r, 1, 0);
  const int part = 32 * r.rank + threadIdx.x;
  r.out()[part] = r.data(0)[part] + r.data(1)[part];
  RIGHT(meet(r, 1, 1))
}

// A reduce-scatter returns as soon as its own part is done, and its caller fills the input with NaN.
// https://github.com/ROCm/aiter/pull/4082
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(reduce_scatter_returns_early) {
  fill<<<1, 64, 0, stream>>>(r.data(), r.rank);
  scatter_parts<right><<<1, 32, 0, stream>>>(r);
  cudaMemsetAsync(r.data(), 0xff, 256, stream);
}

// Each GPU raises a byte of a signal of 8 bytes, and the owner polls the 8 bytes as one word.
// https://github.com/vllm-project/vllm/pull/2760
// wrong: weak_order: of different sizes
PAIR(bytes_of_one_signal, 1, 1) {
  r.data(1 - r.rank)[r.rank] = 7;
  auto* const theirs = reinterpret_cast<uint8_t*>(r.flag(1 - r.rank));
  for (int to = 0; to < 2; ++to) {
    RIGHT(store_release(r.flag(to) + r.rank, 1))
    WRONG(__threadfence_system(); asm volatile("st.volatile.u8 [%0], %1;" ::"l"((to == r.rank ? reinterpret_cast<uint8_t*>(r.flag()) : theirs) + r.rank), "r"(1) : "memory"))
  }
  RIGHT(for (int from = 0; from < 2; ++from) wait(r.flag() + from, 1))
  WRONG(unsigned long long all; do {
    asm volatile("ld.volatile.u64 %0, [%1];" : "=l"(all) : "l"(r.flag()) : "memory");
  } while (all != 0x101);
  __threadfence_system())
  r.out()[0] = r.data()[1 - r.rank];
}

// The sums of the first stage go out behind volatile flags without a fence.
// https://github.com/vllm-project/vllm/pull/2760
// wrong: weak_order: is stored without release order
PAIR(second_stage_without_a_fence, 1, 2) {
  const int i = threadIdx.x;
  r.data()[i] = r.rank + i;
  meet(r, 1);
  if (i == r.rank) r.data()[32 + i] = r.data(0)[i] + r.data(1)[i];
  __syncthreads();
  RIGHT(__threadfence_system())
  store_relaxed(r.flag(i) + r.rank, 1);
  wait(r.flag() + i, 1);
  __syncthreads();
  r.out()[i] = r.data(i)[32 + i];
}

template <bool right>
__global__ void reduce_registered(Rank r) {
  if (threadIdx.x < 2) {
    RIGHT(store_release(r.flag(threadIdx.x) + r.rank, 1); wait(r.flag() + threadIdx.x, 1))
    WRONG(store_relaxed(r.flag(threadIdx.x) + r.rank, 1); while (!load_relaxed_gpu(r.flag() + threadIdx.x)) {})
  }
  __syncthreads();
  r.out()[threadIdx.x] = r.data(0)[threadIdx.x] + r.data(1)[threadIdx.x];
  meet(r, 1);
}

// The input is copied into a registered buffer; the barrier behind it is relaxed, and loads with the scope of its own GPU.
// https://github.com/ROCm/aiter/pull/4812
// wrong: weak_order: loads the flag with .gpu scope
PAIR_OF_HOST(relaxed_start_barrier) {
  fill<<<1, 32, 0, stream>>>(r.data() + 64, r.rank);
  cudaMemcpyAsync(r.data(), r.data() + 64, 128, cudaMemcpyDeviceToDevice, stream);
  reduce_registered<right><<<1, 32, 0, stream>>>(r);
}

__global__ void announce(Rank r) { store_release(r.flag(1 - r.rank) + 32, 1); wait(r.flag() + 32, 1); }
__global__ void first_call(Rank r) { meet(r, 1); }

// The handles of barriers are exchanged before each rank resets its own: a peer may have signalled by then.
// https://github.com/apache/tvm/pull/16797
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(barrier_reset_behind_the_exchange) {
  RIGHT(cudaMemsetAsync(r.flag() + 64, 0, 64, stream))
  announce<<<1, 1, 0, stream>>>(r);
  WRONG(cudaMemsetAsync(r.flag() + 64, 0, 64, stream))
  first_call<<<1, 32, 0, stream>>>(r);
}

// A signal pad is zeroed on another stream than the one that tells the peers of it.
// https://github.com/pytorch/pytorch/pull/196546
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_HOST(signal_pad_zeroed_late) {
  cudaStream_t other;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaMemsetAsync(r.flag() + 64, 0, 64, other);
  RIGHT(cudaStreamSynchronize(other))
  announce<<<1, 1, 0, stream>>>(r);
  first_call<<<1, 32, 0, stream>>>(r);
}

// The slot of a signal is the sender's number in its group: a signal of one group ends the wait of another.
// https://github.com/pytorch/pytorch/issues/192581
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(slots_of_two_groups, 1, 1) {
  // Rank 0 is in the groups {0, 1} and {0, 2}; both others have the number 1 there.
  if (r.rank == 1 || r.rank == 2) {
    r.data(0)[r.rank] = 7;
    store_release(r.flag(0) + (right ? 4 * r.rank : 0) + 1, 1);
  } else if (r.rank == 0) {
    wait(r.flag() + (right ? 4 : 0) + 1, 1);
    r.out()[0] = r.data()[1];
    wait(r.flag() + (right ? 8 : 0) + 1, 1);
    r.out()[1] = r.data()[2];
  }
}

// A flag says that a payload is there, and none that the peer has read it before the next call overwrites it.
// https://github.com/lightseekorg/tokenspeed/pull/1017
// wrong: unsynchronised: no flag or barrier leads from
PAIR(payload_of_the_next_call, 1, 1) {
  for (unsigned call = 1; call <= 3; ++call) {
    RIGHT(wait(r.flag() + 1, call - 1))
    r.data()[0] = 10 * call + r.rank;
    store_release(r.flag(1 - r.rank), call);
    wait(r.flag(), call);
    r.out()[call] = r.data()[0] + r.data(1 - r.rank)[0];
    store_release(r.flag(1 - r.rank) + 1, call);
  }
}

// Signals of two buffers in turn are polled for any value but 0: one of two calls before is as good.
// https://github.com/NVIDIA/nccl/pull/2306
// wrong: value: line
PAIR(signals_without_generation, 1, 1) {
  for (unsigned call = 1; call <= 4; ++call) {
    const int parity = call % 2;
    if (call > 2) wait(r.flag() + 2, call - 2);
    r.data(1 - r.rank)[parity] = 10 * call;
    store_release(r.flag(1 - r.rank) + parity, call);
    wait(r.flag() + parity, right ? call : 1);
    CHECK(r.data()[parity] == 10 * call);
    store_release(r.flag(1 - r.rank) + 2, call);
  }
}

// Chunks that are under way together add to one counter, which says how many have come and not which.
// https://github.com/NVIDIA/nvshmem/issues/84
// wrong: unsynchronised: no flag or barrier leads from
PAIR(one_counter_for_chunks, 4, 1) {
  if (r.rank == 0) {
    const unsigned chunk = blockIdx.x;  // the blocks overtake each other
    r.data(1)[chunk] = 7;
    add_release(r.flag(1) + (right ? chunk : 0), 1);
  } else if (blockIdx.x == 0) {
    for (unsigned chunk = 0; chunk < 4; ++chunk) {
      wait(r.flag() + (right ? chunk : 0), right ? 1 : chunk + 1);
      r.out()[chunk] = r.data()[chunk];
    }
  }
}

// The tail of a channel is published by one warp, whose wait covers its own rows and not those of the others.
// https://github.com/AMD-AGI/Primus-Turbo/pull/482
// wrong: weak_order: is stored without release order
PAIR(tail_of_a_channel, 1, 128) {
  if (r.rank == 0) {
    r.data(1)[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) {
      RIGHT(store_release(r.flag(1), 128))
      WRONG(store_relaxed(r.flag(1), 128))
    }
  } else {
    if (threadIdx.x == 0) wait(r.flag(), 128);
    __syncthreads();
    r.out()[threadIdx.x] = r.data()[threadIdx.x];
  }
}

// A table of routes is cleared behind the synchronisation after which early peers write into it.
// https://github.com/NVIDIA/Megatron-LM/pull/7263
// wrong: unsynchronised: no flag or barrier leads from
PAIR_OF_FOUR(routes_cleared_late, 1, 32) {
  RIGHT(r.data()[threadIdx.x] = ~0u)
  meet(r, 1);
  WRONG(r.data()[threadIdx.x] = ~0u)
  if (threadIdx.x < 4) r.data(threadIdx.x)[r.rank] = 10 + r.rank;
  meet(r, 2);
  r.out()[threadIdx.x] = r.data()[threadIdx.x];
}

// Words that carry their own flag, in three buffers in turn: a call clears as many words as it uses itself, and an earlier
// one has used more.
// https://github.com/NVIDIA/TensorRT-LLM/pull/6237
// wrong: value: line
PAIR(cleared_by_its_own_length, 1, 1) {
  unsigned used[3] = {};
  for (unsigned call = 1; call <= 6; ++call) {
    const unsigned count = call % 3 == 1 ? 4 : call % 3 == 2 ? 1 : 2;
    unsigned* const own = r.data() + 8 * (call % 3);
    unsigned* const theirs = r.data(1 - r.rank) + 8 * (call % 3);
    const unsigned words = call > 3 ? 4 : count;
    for (unsigned i = 0; i < words; ++i) store_relaxed(theirs + i, 10 * call);
    for (unsigned i = 0; i < words; ++i) {
      unsigned value;
      while ((value = load_relaxed(own + i)) == 0) {}
      CHECK(value == 10 * call);
    }
    used[call % 3] = words;
    // The buffer of the call before is free: both have come to this one.
    const unsigned clears = right ? used[(call + 2) % 3] : words;
    if (call > 1) {
      for (unsigned i = 0; i < clears; ++i) store_relaxed(r.data() + 8 * ((call + 2) % 3) + i, 0);
    }
    store_release(r.flag(1 - r.rank), call);
    wait(r.flag(), call);
  }
}

// Blocks count that they have read a buffer, without release order, and the last one clears it.
// https://github.com/NVIDIA/TensorRT-LLM/pull/8612
// wrong: weak_order: is stored without release order
PAIR(read_counted_without_release, 2, 1) {
  r.out()[blockIdx.x] = r.data()[0];
  RIGHT(asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(r.flag()) : "memory"))
  WRONG(asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(r.flag()) : "memory"))
  if (blockIdx.x == 0) {
    while (load_acquire_gpu(r.flag()) != 2) {}
    r.data()[0] = 5;
  }
}

// A barrier in rounds sets flags with no fence before them: puts arrive behind it.
// https://github.com/NVIDIA/nvshmem/pull/36
// wrong: weak_order: is stored without release order
PAIR_OF_FOUR(dissemination_barrier, 1, 1) {
  r.data((r.rank + 2) % 4)[0] = r.rank;
  for (int round = 0; round < 2; ++round) {
    RIGHT(__threadfence_system())
    store_relaxed(r.flag((r.rank + (1 << round)) % 4) + round, 1);
    wait(r.flag() + round, 1);
  }
  r.out()[0] = r.data()[0];
}
