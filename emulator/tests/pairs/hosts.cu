// Host code and the memory that it shares with GPUs: pinned, registered and managed.
#include "pairs.cuh"

namespace {

template <class T>
T* pinned(int count) {
  void* memory = nullptr;
  cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocMapped);
  return static_cast<T*>(memory);
}

__global__ void add_to(unsigned* to, unsigned value) { to[threadIdx.x] += value; }
__global__ void fill_in(unsigned* to, unsigned value) { to[threadIdx.x] = value + threadIdx.x; }
__global__ void answer(volatile unsigned* flag, unsigned* data) {
  data[0] = 7;
  __threadfence_system();
  flag[0] = 1;
}
__global__ void answer_early(volatile unsigned* flag, unsigned* data) {
  flag[0] = 1;
  __threadfence_system();
  data[0] = 7;
}
__global__ void ask(const volatile unsigned* flag, const unsigned* data, unsigned* out) {
  while (!flag[0]) {}
  __threadfence_system();
  *out = data[0];
}

__constant__ unsigned weights[32];
__global__ void weigh(unsigned* to) { to[threadIdx.x] = weights[threadIdx.x]; }

}  // namespace

// The host reads what an asynchronous copy has brought, once the stream is empty.
// wrong: unsynchronised: rank 0's read by `host code`
PAIR_OF_HOST(host_reads_a_copy) {
  unsigned* const from = pinned<unsigned>(32);
  fill_in<<<1, 32, 0, stream>>>(r.data(), 5);
  cudaMemcpyAsync(from, r.data(), 128, cudaMemcpyDeviceToHost, stream);
  RIGHT(cudaStreamSynchronize(stream))
  unsigned sum = 0;
  for (int i = 0; i < 32; ++i) sum += from[i];
  cudaMemcpyAsync(r.out(), &sum, 4, cudaMemcpyHostToDevice, stream);
}

// The host fills a buffer again that an asynchronous copy reads, once an event says that it has been read.
// wrong: unsynchronised: host code
PAIR_OF_HOST(host_refills_a_buffer) {
  unsigned* const from = pinned<unsigned>(32);
  cudaEvent_t read;
  cudaEventCreate(&read);
  for (unsigned round = 0; round < 2; ++round) {
    if (right && round) cudaEventSynchronize(read);
    for (unsigned i = 0; i < 32; ++i) from[i] = round + i;
    cudaMemcpyAsync(r.data() + 32 * round, from, 128, cudaMemcpyHostToDevice, stream);
    cudaEventRecord(read, stream);
  }
}

// Two buffers by turns: one is filled while the other is on its way.
// wrong: unsynchronised: host code
PAIR_OF_HOST(host_fills_two_buffers_by_turns) {
  unsigned* buffers[2] = {pinned<unsigned>(32), pinned<unsigned>(32)};
  cudaEvent_t read[2];
  for (cudaEvent_t& each : read) cudaEventCreate(&each);
  for (unsigned round = 0; round < 4; ++round) {
    const unsigned which = right ? round % 2 : 0;
    if (round > 1) cudaEventSynchronize(read[round % 2]);
    for (unsigned i = 0; i < 32; ++i) buffers[which][i] = round + i;
    cudaMemcpyAsync(r.data(), buffers[which], 128, cudaMemcpyHostToDevice, stream);
    cudaEventRecord(read[round % 2], stream);
  }
}

// A kernel writes the host's memory, and the host reads it behind the kernel.
// wrong: unsynchronised: rank 0's read by `host code`
PAIR_OF_HOST(host_reads_what_a_kernel_writes) {
  unsigned* const mapped = pinned<unsigned>(32);
  fill_in<<<1, 32, 0, stream>>>(mapped, 3);
  if (right) cudaDeviceSynchronize();
  else cudaStreamSynchronize(cudaStreamPerThread);
  if (mapped[31] == 34) add_to<<<1, 1, 0, stream>>>(r.out(), 1);
}

// Managed memory is the host's only while no kernel uses it.
// wrong: unsynchronised: host code
PAIR_OF_HOST(host_writes_managed_memory) {
  unsigned* managed;
  cudaMallocManaged(&managed, 128);
  for (int i = 0; i < 32; ++i) managed[i] = 1;
  add_to<<<1, 32, 0, stream>>>(managed, 3);
  RIGHT(cudaStreamSynchronize(stream))
  managed[3] = 5;
  add_to<<<1, 32, 0, stream>>>(managed, 3);
}

// A kernel raises a flag behind its data, for a host that polls without letting others go on.
// wrong: unsynchronised: rank 0's write by `st.global.u32`
PAIR_OF_HOST(host_polls_a_flag) {
  volatile unsigned* const flag = pinned<unsigned>(1);
  volatile unsigned* const data = pinned<unsigned>(1);
  flag[0] = data[0] = 0;
  if (right) answer<<<1, 1, 0, stream>>>(flag, const_cast<unsigned*>(data));
  else answer_early<<<1, 1, 0, stream>>>(flag, const_cast<unsigned*>(data));
  while (!flag[0]) {}
  if (data[0] != 7 && right) fill_in<<<1, 1, 0, stream>>>(r.failed(), __LINE__);
}

// The host raises a flag behind its data, for a kernel that runs.
// wrong: unsynchronised: rank 0's write by `host code`
PAIR_OF_HOST(host_raises_a_flag) {
  volatile unsigned* const flag = pinned<unsigned>(1);
  volatile unsigned* const data = pinned<unsigned>(1);
  flag[0] = data[0] = 0;
  ask<<<1, 1, 0, stream>>>(flag, const_cast<const unsigned*>(data), r.out());
  RIGHT(data[0] = 7)
  flag[0] = 1;
  WRONG(data[0] = 7)
}

// The host takes the data of one kernel after another, by flags.
// wrong: unsynchronised: rank 0's read by `host code`
PAIR_OF_HOST(host_polls_many_flags) {
  volatile unsigned* const flags = pinned<unsigned>(8);
  unsigned* const data = pinned<unsigned>(8);
  for (int i = 0; i < 8; ++i) flags[i] = 0;
  for (int i = 0; i < 8; ++i) answer<<<1, 1, 0, stream>>>(flags + i, data + i);
  unsigned sum = 0;
  for (int i = 0; i < 8; ++i) {
    while (right && !flags[i]) {}
    sum += data[i];
  }
  if (sum != 56) fill_in<<<1, 1, 0, stream>>>(right ? r.failed() : r.out(), __LINE__);
}

// A function of a stream fills a pinned buffer, and a copy on another stream waits for it.
// wrong: unsynchronised: rank 0's write by `host code`
PAIR_OF_HOST(stream_function_fills_a_buffer) {
  unsigned* const buffer = pinned<unsigned>(32);
  cudaStream_t side;
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaEvent_t filled;
  cudaEventCreate(&filled);
  const auto fill = [](void* to) {
    for (unsigned i = 0; i < 32; ++i) static_cast<unsigned*>(to)[i] = i;
  };
  cudaLaunchHostFunc(stream, fill, buffer);
  cudaEventRecord(filled, stream);
  RIGHT(cudaStreamWaitEvent(side, filled))
  cudaMemcpyAsync(r.data(), buffer, 128, cudaMemcpyHostToDevice, side);
  cudaStreamSynchronize(side);
}

// The host sums two results of two thousand words each, which two streams bring.
// wrong: unsynchronised: rank 0's read by `host code`
PAIR_OF_HOST(host_reads_long_results) {
  constexpr int kWords = 2048;
  unsigned* const results[] = {pinned<unsigned>(kWords), pinned<unsigned>(kWords)};
  for (unsigned* const result : results) {
    for (int k = 0; k < kWords; ++k) result[k] = 0;
  }
  cudaStream_t streams[2];
  for (int i = 0; i < 2; ++i) {
    cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
    fill_in<<<1, 1024, 0, streams[i]>>>(results[i] + 1024, 1);
  }
  cudaStreamSynchronize(streams[0]);
  RIGHT(cudaStreamSynchronize(streams[1]))
  unsigned sum = 0;
  for (unsigned* const result : results) {
    for (int k = 0; k < kWords; ++k) sum += *(volatile unsigned*)(result + k);
  }
  if (right && sum != 1024 * 1023 + 2 * 1024) fill_in<<<1, 1, 0, stream>>>(r.failed(), __LINE__);
}

// A constant table is filled before a kernel reads it: by its own stream, or behind a wait.
// wrong: unsynchronised: rank 0's read by `ld.const.u32`
PAIR_OF_HOST(constants_of_another_stream) {
  unsigned* const table = pinned<unsigned>(32);
  for (int i = 0; i < 32; ++i) table[i] = i;
  cudaStream_t side;
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaMemcpyToSymbolAsync(weights, table, 128, 0, cudaMemcpyHostToDevice, side);
  RIGHT(cudaStreamSynchronize(side))
  weigh<<<1, 32, 0, stream>>>(r.out());
  cudaStreamSynchronize(side);
}
