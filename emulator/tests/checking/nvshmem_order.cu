// Pairs of programs of two PEs: the second of each, by the argument "wrong", lacks an order that NVSHMEM's documentation asks for.
//
// Above each stand the class of the finding and words of its message.
#include <nvshmem.h>

#include <cstring>

constexpr int kCount = 64;

struct Memory {
  int *source, *target, *result, *flag;
  uint64_t* signals;
};

#define RIGHT(...) \
  if constexpr (right) { __VA_ARGS__; }
#define WRONG(...) \
  if constexpr (!right) { __VA_ARGS__; }
#define CASE(name) \
  template <bool right> __global__ void name([[maybe_unused]] Memory m)
#define SENDER nvshmem_my_pe() == 0
#define FIRST threadIdx.x == 0
constexpr int kPeer = 1;

// A source is written again after quiet.
// wrong: unsynchronised: call it before the second
CASE(source_after_quiet) {
  if (SENDER && FIRST) {
    nvshmem_int_put_nbi(m.target, m.source, kCount, kPeer);
    RIGHT(nvshmem_quiet())
    WRONG(nvshmem_fence())  // orders, and completes nothing
    m.source[3] = 7;
  }
}

// What a get brings is read after quiet.
// wrong: unsynchronised: call it before the second
CASE(result_after_quiet) {
  if (SENDER && FIRST) {
    nvshmem_int_get_nbi(m.target, m.source, kCount, kPeer);
    RIGHT(nvshmem_quiet())
    WRONG(nvshmem_fence())
    m.result[0] = m.target[5];
  }
}

// A block puts together, meets, and one of its threads completes the put for all.
// wrong: unsynchronised: call it before the second
CASE(quiet_of_one_thread) {
  if (SENDER) {
    nvshmemx_int_put_nbi_block(m.target, m.source, kCount, kPeer);
    __syncthreads();
    RIGHT(if (FIRST) nvshmem_quiet())
    WRONG(if (FIRST) __threadfence_system())
    __syncthreads();
    m.source[threadIdx.x] = 1;
  }
}

// Warps get parts of their own.
// wrong: unsynchronised: call it before the second
CASE(get_of_warps) {
  const int warp = threadIdx.x / 32;
  if (SENDER) {
    nvshmemx_int_get_nbi_warp(m.target + 32 * warp, m.source + 32 * warp, 32, kPeer);
    RIGHT(nvshmem_quiet())
    __syncwarp();
    m.result[threadIdx.x] = m.target[threadIdx.x];
  }
}

// A flag behind a fence brings the put before it.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(flag_behind_a_fence) {
  if (FIRST && SENDER) {
    nvshmem_int_put_nbi(m.target, m.source, kCount, kPeer);
    RIGHT(nvshmem_fence())
    nvshmem_int_p(m.flag, 1, kPeer);
  } else if (FIRST) {
    nvshmem_int_wait_until(m.flag, NVSHMEM_CMP_EQ, 1);
    m.result[0] = m.target[5];
  }
}

// A fence of CUDA is none of NVSHMEM's.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(fence_of_the_library) {
  if (FIRST && SENDER) {
    nvshmem_int_put_nbi(m.target, m.source, kCount, kPeer);
    RIGHT(nvshmem_quiet())
    WRONG(__threadfence_system())
    nvshmem_int_p(m.flag, 1, kPeer);
  } else if (FIRST) {
    nvshmem_int_wait_until(m.flag, NVSHMEM_CMP_EQ, 1);
    m.result[0] = m.target[5];
  }
}

// The flag is put, too: an element is stored as a whole.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(flag_that_is_put) {
  if (FIRST && SENDER) {
    nvshmem_int_put_nbi(m.target, m.source, kCount, kPeer);
    RIGHT(nvshmem_fence())
    nvshmem_int_put_nbi(m.flag, m.source + 1, 1, kPeer);
  } else if (FIRST) {
    nvshmem_int_wait_until(m.flag, NVSHMEM_CMP_NE, 0);
    m.result[0] = m.target[5];
  }
}

// A blocking put returns when its source has been read, and is delivered behind a fence.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(blocking_put) {
  if (FIRST && SENDER) {
    nvshmem_int_put(m.target, m.source, kCount, kPeer);
    m.source[0] = 8;
    RIGHT(nvshmem_fence())
    nvshmem_int_put(m.flag, m.source + 1, 1, kPeer);
  } else if (FIRST) {
    nvshmem_int_wait_until(m.flag, NVSHMEM_CMP_NE, 0);
    m.result[0] = m.target[5];
  }
}

// A signal brings its own data, with all that a block's warps have put.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(signal_of_a_block) {
  if (SENDER) {
    RIGHT(nvshmemx_int_put_signal_nbi_block(m.target, m.source, kCount, m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer))
    WRONG(nvshmemx_int_put_nbi_block(m.target, m.source, kCount, kPeer))
    WRONG(if (FIRST) nvshmemx_signal_op(m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer))
  } else {
    if (FIRST) nvshmem_signal_wait_until(m.signals, NVSHMEM_CMP_EQ, 1);
    __syncthreads();
    m.result[threadIdx.x] = m.target[threadIdx.x];
  }
}

// Of two puts with a signal each, the signal of one says nothing of the other.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(signal_of_the_other_put) {
  if (FIRST && SENDER) {
    nvshmem_int_put_signal_nbi(m.target, m.source, 32, m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer);
    nvshmem_int_put_signal_nbi(m.target + 32, m.source + 32, 32, m.signals + 1, 1, NVSHMEM_SIGNAL_SET, kPeer);
  } else if (FIRST) {
    nvshmem_signal_wait_until(m.signals + !right, NVSHMEM_CMP_EQ, 1);
    m.result[0] = m.target[0];
  }
}

// Nor does it bring a put before it, though both wait for their sources.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(put_before_a_signalled_put) {
  if (FIRST && SENDER) {
    nvshmem_int_put(m.target, m.source, 32, kPeer);
    RIGHT(nvshmem_fence())
    nvshmem_int_put_signal(m.target + 32, m.source + 32, 32, m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer);
    m.source[40] = 1;
  } else if (FIRST) {
    nvshmem_signal_wait_until(m.signals, NVSHMEM_CMP_EQ, 1);
    m.result[0] = m.target[0];
  }
}

// Each thread signals for its own part.
// wrong: unsynchronised: no flag or barrier leads from
CASE(signals_of_threads) {
  const unsigned at = threadIdx.x;
  if (SENDER) {
    nvshmem_int_put_signal(m.target + at, m.source + at, 1, m.signals + at, 1, NVSHMEM_SIGNAL_SET, kPeer);
  } else {
    nvshmem_signal_wait_until(m.signals + at, NVSHMEM_CMP_EQ, 1);
    m.result[at] = m.target[right ? at : (at + 1) % 32];
  }
}

// The source of a signalled put that does not wait.
// wrong: unsynchronised: call it before the second
CASE(source_of_a_signalled_put) {
  if (SENDER && FIRST) {
    RIGHT(nvshmem_int_put_signal(m.target, m.source, kCount, m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer))
    WRONG(nvshmem_int_put_signal_nbi(m.target, m.source, kCount, m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer))
    m.source[0] = 8;
  }
}

// Whoever has seen the data lets the sender write its source again.
// wrong: unsynchronised: nvshmem_quiet()
CASE(acknowledged_source) {
  if (FIRST && SENDER) {
    nvshmem_int_put_signal_nbi(m.target, m.source, kCount, m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer);
    RIGHT(nvshmem_signal_wait_until(m.signals + 1, NVSHMEM_CMP_EQ, 1))
    m.source[3] = 7;
  } else if (FIRST) {
    nvshmem_signal_wait_until(m.signals, NVSHMEM_CMP_EQ, 1);
    m.result[0] = m.target[5];
    nvshmem_quiet();
    nvshmemx_signal_op(m.signals + 1, 1, NVSHMEM_SIGNAL_SET, 0);
  }
}

// A barrier completes what its PE has put; a sync does not.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
CASE(barrier_completes) {
  if (SENDER) nvshmemx_int_put_nbi_block(m.target, m.source, kCount, kPeer);
  RIGHT(nvshmemx_barrier_all_block())
  WRONG(nvshmemx_sync_all_block())
  m.result[threadIdx.x] = m.target[threadIdx.x];
}

// Two puts to the same place.
// wrong: unsynchronised: nvshmem_quiet()
CASE(puts_to_one_place) {
  if (FIRST && SENDER) {
    nvshmem_int_put_nbi(m.target, m.source, kCount, kPeer);
    RIGHT(nvshmem_fence())
    nvshmem_int_put_nbi(m.target + 8, m.source, 8, kPeer);
    nvshmem_fence();
    nvshmem_int_p(m.target + 8, 1, kPeer);
  }
}

// What has been got is put on.
// wrong: unsynchronised: call it before the second
CASE(put_of_what_was_got) {
  if (FIRST && SENDER) {
    nvshmem_int_get_nbi(m.target, m.source, kCount, kPeer);
    RIGHT(nvshmem_quiet())
    nvshmem_int_put_nbi(m.result, m.target, kCount, kPeer);
  }
}

// ---- of hosts ----

template <bool right>
__global__ void put_alone(Memory m) {
  if (SENDER && FIRST) nvshmem_int_put_nbi(m.target, m.source, kCount, kPeer);
}
static __global__ void read_target(Memory m) { m.result[threadIdx.x] = m.target[threadIdx.x]; }
static __global__ void write_source(Memory m) { m.source[threadIdx.x] = 9; }

// The end of a kernel completes no put: the stream's quiet does.
// wrong: unsynchronised: call it before the second
template <bool right>
void quiet_on_stream(Memory m) {
  put_alone<right><<<1, 1>>>(m);
  RIGHT(nvshmemx_quiet_on_stream(nullptr))
  write_source<<<1, kCount>>>(m);
}

// A put on a stream, and the source's next use there.
// wrong: unsynchronised: call it before the second
template <bool right>
void put_on_stream(Memory m) {
  if (SENDER) {
    RIGHT(nvshmemx_int_put_on_stream(m.target, m.source, kCount, kPeer, nullptr))
    WRONG(nvshmemx_int_put_nbi_on_stream(m.target, m.source, kCount, kPeer, nullptr))
  }
  write_source<<<1, kCount>>>(m);
}

// The barrier of a stream completes, too.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
template <bool right>
void barrier_on_stream(Memory m) {
  if (SENDER) nvshmemx_putmem_nbi_on_stream(m.target, m.source, kCount * sizeof(int), kPeer, nullptr);
  RIGHT(nvshmemx_barrier_all_on_stream(nullptr))
  WRONG(nvshmemx_sync_all_on_stream(nullptr))
  read_target<<<1, kCount>>>(m);
}

// A barrier of hosts that have waited for their kernels.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
template <bool right>
void barrier_of_hosts(Memory m) {
  put_alone<right><<<1, 1>>>(m);
  cudaDeviceSynchronize();
  RIGHT(nvshmem_barrier_all())
  WRONG(nvshmem_sync_all())
  read_target<<<1, kCount>>>(m);
}

// The signal of a stream brings its own put.
// wrong: weak_order: call nvshmem_fence() or nvshmem_quiet()
template <bool right>
void signal_on_stream(Memory m) {
  if (SENDER) {
    RIGHT(nvshmemx_int_put_signal_nbi_on_stream(m.target, m.source, kCount, m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer, nullptr))
    WRONG(nvshmemx_int_put_nbi_on_stream(m.target, m.source, kCount, kPeer, nullptr))
    WRONG(nvshmemx_signal_op_on_stream(m.signals, 1, NVSHMEM_SIGNAL_SET, kPeer, nullptr))
  } else {
    nvshmemx_signal_wait_until_on_stream(m.signals, NVSHMEM_CMP_EQ, 1, nullptr);
    read_target<<<1, kCount>>>(m);
  }
}

static __global__ void fill(int* source) { source[threadIdx.x] = 100 + int(threadIdx.x); }

int main(int argc, char** argv) {
  nvshmem_init();
  const bool is_right = !strcmp(argv[2], "right");
  Memory m;
  int** const buffers[] = {&m.source, &m.target, &m.result, &m.flag};
  for (int** each : buffers) *each = static_cast<int*>(nvshmem_calloc(kCount, sizeof(int)));
  m.signals = static_cast<uint64_t*>(nvshmem_calloc(kCount, sizeof(uint64_t)));
  fill<<<1, kCount>>>(m.source);
  cudaDeviceSynchronize();
  nvshmem_barrier_all();
#define KERNEL(name, threads) \
  if (!strcmp(argv[1], #name)) is_right ? name<true><<<1, threads>>>(m) : name<false><<<1, threads>>>(m)
#define HOST(name) \
  if (!strcmp(argv[1], #name)) is_right ? name<true>(m) : name<false>(m)
  KERNEL(source_after_quiet, 1);
  KERNEL(result_after_quiet, 1);
  KERNEL(quiet_of_one_thread, kCount);
  KERNEL(get_of_warps, kCount);
  KERNEL(flag_behind_a_fence, 1);
  KERNEL(fence_of_the_library, 1);
  KERNEL(flag_that_is_put, 1);
  KERNEL(blocking_put, 1);
  KERNEL(signal_of_a_block, kCount);
  KERNEL(signal_of_the_other_put, 1);
  KERNEL(put_before_a_signalled_put, 1);
  KERNEL(signals_of_threads, 32);
  KERNEL(source_of_a_signalled_put, 1);
  KERNEL(acknowledged_source, 1);
  KERNEL(barrier_completes, kCount);
  KERNEL(puts_to_one_place, 1);
  KERNEL(put_of_what_was_got, 1);
  HOST(quiet_on_stream);
  HOST(put_on_stream);
  HOST(barrier_on_stream);
  HOST(barrier_of_hosts);
  HOST(signal_on_stream);
  const int error = cudaDeviceSynchronize();
  nvshmem_finalize();
  return error;
}
