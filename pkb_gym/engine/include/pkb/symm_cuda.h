// pkb::Comm on a GPU: the same interface as on the CPU, where each operation is enqueued on comm.stream; and
// pkb::Device, the same operations for use inside kernels. Include "pkb/symm.h".
//
//   __global__ void kernel(const float* x, float* out, pkb::Device comm);
//   kernel<<<blocks, threads, 0, comm.cuda_stream()>>>(..., comm.device());
//
// Every tensor begins at a multiple of 256 bytes (bulk copies ask for 16, tensor maps for 16). Peers' memory is ordinary
// global memory: loads, stores, atomics, cp.async.bulk and cudaMemcpyAsync reach it over NVLink.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#ifndef PKB_LIGHT_FFI
#include <stdexcept>
#include <string>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#endif

#include "pkb/host_comm.h"

namespace pkb {

// Throws, with the call and its message, where a CUDA call failed: PKB_CUDA(cudaFuncSetAttribute(...)).
inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorName(error) << ": " << cudaGetErrorString(error);
  }
}
#define PKB_CUDA(call) ::pkb::check_cuda((call), #call)
// After a launch.
#define PKB_CUDA_LAUNCHED() ::pkb::check_cuda(cudaGetLastError(), "kernel launch")

// All that this thread wrote before, and what other threads wrote before a barrier that it took part in, is visible to
// whoever acquires the value.
__device__ __forceinline__ void store_release(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void store_begun(uint64_t* word, uint64_t value) {  // of signal_begun()
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t load_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t device_now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// The communicator inside a kernel; pass comm.device() by value.
class Device : public CommData {
 public:
  // Rank r's counterpart of an address in this rank's segment.
  template <typename T>
  __device__ __forceinline__ T* peer(T* own, int r) const {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(own) - reinterpret_cast<uintptr_t>(segments[rank]) +
                                reinterpret_cast<uintptr_t>(segments[r]));
  }

  // This rank's symmetric scratch, `offset` bytes in. comm.peer(comm.scratch<T>(), r) is rank r's.
  template <typename T>
  __device__ __forceinline__ T* scratch(uint64_t offset = 0) const {
    return reinterpret_cast<T*>(segments[rank] + scratch_offset + offset);
  }

  // Ranks in the problem's group argument `index`; a negative index, which stands for None, is the world.
  __device__ __forceinline__ int group_size(int64_t index = -1) const {
    return index >= 0 ? groups[index].size : world_size;
  }
  // This rank's place in it, -1 if it is not in it.
  __device__ __forceinline__ int group_rank(int64_t index = -1) const {
    return index >= 0 ? groups[index].rank : rank;
  }
  // The rank at one of its places.
  __device__ __forceinline__ int group_member(int64_t index, int place_in_group) const {
    return index >= 0 ? groups[index].ranks[place_in_group] : place_in_group;
  }

  // Word `slot` (0 .. kUserSignals-1) of rank r's signal pad.
  __device__ __forceinline__ uint64_t* signal_word(int slot, int r) const {
    return reinterpret_cast<uint64_t*>(segments[r] + signal_offset) + slot;
  }

  // Sets word `slot` of rank r to `value`, by one thread. What that thread wrote before, and what other threads wrote
  // before a barrier that it took part in, is visible to whoever waits for it.
  __device__ __forceinline__ void signal(int slot, int r, uint64_t value) const {
    store_release(signal_word(slot, r), value);
    if (stats) count(&stats->signals, 1);
  }
  __device__ __forceinline__ void signal(int slot, int r) const { signal(slot, r, epoch); }

  // Waits until word `slot` of this rank is at least `value`, by one thread; a barrier then releases the others.
  __device__ __forceinline__ void wait(int slot, uint64_t value) const {
    const uint64_t* word = signal_word(slot, rank);
    if (load_acquire(word) < value) wait_slowly(word, slot, value, place, stats);
    hold();
  }
  __device__ __forceinline__ void wait(int slot) const { wait(slot, epoch); }

  // In some checked calls this rank stands still here, while others go on as far as they may: after its waits, and once
  // it has signalled that it has begun. Belongs behind every wait that is not one of these, so that a missing synchronisation
  // is seen whatever a kernel waits by.
  __device__ __forceinline__ void hold() const {
    if (!hold_ns) return;
    const uint64_t begin = device_now_ns();
    while (device_now_ns() - begin < hold_ns) {
    }
  }

  // Signals the other ranks of the group that this call has begun here: now they may access this rank's arguments and
  // outputs; called by all threads, of which those of the first block do it. GPUs make visible to all what the stream did
  // before, as a kernel begins after it; PTX promises it for a release alone.
  __device__ __forceinline__ void signal_begun(int64_t group_index = -1) const {
    const int thread = thread_of_block();
    if (block_of_grid() == 0 && thread < group_size(group_index) && thread != group_rank(group_index)) {
      store_begun(signal_word(kBegunSlot + rank, group_member(group_index, thread)), epoch);
    }
    hold();
  }

  // Waits until rank r has begun this call, or the call `before` calls ago and so has ended those before that; by one
  // thread. Needs r's signal_begun().
  __device__ __forceinline__ void wait_begun(int r, uint64_t before = 0) const {
    if (epoch > before) wait(kBegunSlot + r, epoch - before);
  }
  // The same for all other ranks of the group; called by all threads of a block.
  __device__ __forceinline__ void wait_all_begun(uint64_t before = 0, int64_t group_index = -1) const {
    const int thread = thread_of_block();
    if (thread < group_size(group_index) && thread != group_rank(group_index)) {
      wait_begun(group_member(group_index, thread), before);
    }
    __syncthreads();
  }

  // Signals block b of rank r that this block, the b-th of this rank, has reached a phase (0 .. kMaxPhases-1) of the
  // call; by one thread, as signal(). Phases grow within a call. At most kMaxBlocks blocks do so.
  __device__ __forceinline__ void signal_block(int phase, int r) const {
    signal(kBlockSlot + block_of_grid() * kMaxRanks + rank, r, epoch * kMaxPhases + uint64_t(phase) + 1);
  }

  // Waits until block b of rank r has reached a phase, by one thread; all blocks of all ranks must be resident at once.
  __device__ __forceinline__ void wait_block(int phase, int r) const {
    wait(kBlockSlot + block_of_grid() * kMaxRanks + r, epoch * kMaxPhases + uint64_t(phase) + 1);
  }

  // Block b of every rank of the group meets block b of the others; called by all threads of the block, of at least
  // as many threads as there are ranks. Its halves may stand apart, with work between them that needs no other rank.
  __device__ __forceinline__ void barrier_blocks(int phase = 0, int64_t group_index = -1) const {
    arrive_blocks(phase, group_index);
    wait_blocks(phase, group_index);
  }
  __device__ __forceinline__ void arrive_blocks(int phase = 0, int64_t group_index = -1) const {
    const int thread = thread_of_block();
    __syncthreads();
    if (thread < group_size(group_index) && thread != group_rank(group_index)) {
      signal_block(phase, group_member(group_index, thread));
    }
  }
  __device__ __forceinline__ void wait_blocks(int phase = 0, int64_t group_index = -1) const {
    const int thread = thread_of_block();
    if (thread < group_size(group_index) && thread != group_rank(group_index)) {
      wait_block(phase, group_member(group_index, thread));
    }
    __syncthreads();
  }

  // Copies `bytes` from `from` to rank r's counterpart of `to`; called by all threads of a one-dimensional block.
  __device__ void put(void* to, const void* from, uint64_t bytes, int r) const {
    copy(peer(static_cast<char*>(to), r), from, bytes);
    if (stats && r != rank && threadIdx.x == 0) count(&stats->put_bytes, bytes);
  }

  // Copies `bytes` from rank r's counterpart of `from` to `to`; called by all threads of a one-dimensional block.
  __device__ void get(void* to, const void* from, uint64_t bytes, int r) const {
    copy(to, peer(static_cast<const char*>(from), r), bytes);
    if (stats && r != rank && threadIdx.x == 0) count(&stats->got_bytes, bytes);
  }

 private:
  static constexpr int kBlockSlot = kUserSignals + kBarrierSignals;
  static constexpr int kBegunSlot = kBlockSlot + kBlockSignals;

  __device__ __forceinline__ static int thread_of_block() {
    return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  }
  __device__ __forceinline__ static int block_of_grid() {
    return int(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  }

  __device__ static void count(uint64_t* counter, uint64_t amount) {
    atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(amount));
  }

  __device__ static void copy(void* to, const void* from, uint64_t bytes) {
    const uint64_t misfit = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % sizeof(uint4);
    const uint64_t wide = misfit ? 0 : bytes / sizeof(uint4);
    for (uint64_t i = threadIdx.x; i < wide; i += blockDim.x) {
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
    }
    for (uint64_t i = wide * sizeof(uint4) + threadIdx.x; i < bytes; i += blockDim.x) {
      static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
    }
  }

  // Out of line and without `this`: the report must burden neither registers nor stack of kernels whose waits are short.
  __device__ __noinline__ static void wait_slowly(const uint64_t* word, int slot, uint64_t value, Place* place,
                                                  Stats* stats) {
    const uint64_t begin = stats ? device_now_ns() : 0;
    volatile Place* where = place;
    bool reported = false;
    for (uint32_t polls = 0; load_acquire(word) < value; ++polls) {
      if (polls == 1u << 16) {  // some hundredths of a second: for the report when a deadline passes
        where->slot = slot;
        where->want = value;
        where->state = State::kWaiting;
        reported = true;
      }
    }
    if (reported) where->state = State::kInCall;
    if (stats) {
      count(&stats->wait_ns, device_now_ns() - begin);
      count(&stats->waits, 1);
    }
  }
};

static_assert(sizeof(Device) == sizeof(CommData), "Device adds behaviour to CommData, never fields");

// The kernels behind Comm's operations; templates, so that only what is used is compiled.
namespace enqueued {

template <int kThreads>
__global__ void signal(Device comm, int slot, int r, uint64_t value) {
  comm.signal(slot, r, value);
}

template <int kThreads>
__global__ void wait(Device comm, int slot, uint64_t value) {
  comm.wait(slot, value);
}

template <int kThreads>
__global__ void barrier(Device comm, int64_t group_index, int slot_base, uint64_t count) {
  const int i = int(threadIdx.x);
  const int own = comm.group_rank(group_index);
  if (i < comm.group_size(group_index) && i != own) {
    comm.signal(slot_base + own, comm.group_member(group_index, i), count);
    comm.wait(slot_base + i, count);
  }
}

}  // namespace enqueued

// The communicator on the host. Each operation is enqueued on comm.stream and happens in its order. Those that launch a
// kernel are templates, as their kernels are: a binary holds what it uses.
class Comm : public HostComm {
 public:
  // What kernels are given, by value.
  Device device() const {
    Device view;
    static_cast<CommData&>(view) = *this;
    return view;
  }

  cudaStream_t cuda_stream() const { return static_cast<cudaStream_t>(stream); }

  // Copies `bytes` from `from` to rank r's counterpart of `to`, by a copy engine.
  void put(void* to, const void* from, uint64_t bytes, int r) const {
    check_rank(r);
    PKB_CUDA(cudaMemcpyAsync(peer(static_cast<char*>(to), r), from, bytes, cudaMemcpyDeviceToDevice, cuda_stream()));
  }

  // Copies `bytes` from rank r's counterpart of `from` to `to`, by a copy engine.
  void get(void* to, const void* from, uint64_t bytes, int r) const {
    check_rank(r);
    PKB_CUDA(
        cudaMemcpyAsync(to, peer(static_cast<const char*>(from), r), bytes, cudaMemcpyDeviceToDevice, cuda_stream()));
  }

  // Sets word `slot` (0 .. kUserSignals-1) of rank r to `value`, after everything that was enqueued before.
  template <int kThreads = 1>
  void signal(int slot, int r, uint64_t value) const {
    check_rank(r);
    check_slot(slot);
    enqueued::signal<kThreads><<<1, kThreads, 0, cuda_stream()>>>(device(), slot, r, value);
    PKB_CUDA_LAUNCHED();
  }
  template <int kThreads = 1>
  void signal(int slot, int r) const {
    signal<kThreads>(slot, r, epoch);
  }

  // What is enqueued afterwards waits until word `slot` of this rank is at least `value`.
  template <int kThreads = 1>
  void wait(int slot, uint64_t value) const {
    check_slot(slot);
    enqueued::wait<kThreads><<<1, kThreads, 0, cuda_stream()>>>(device(), slot, value);
    PKB_CUDA_LAUNCHED();
  }
  template <int kThreads = 1>
  void wait(int slot) const {
    wait<kThreads>(slot, epoch);
  }

  // The streams of all ranks of a group meet (the world by default). What each wrote before is visible to all afterwards.
  template <int kThreads = kMaxRanks>
  void barrier(int64_t group_index = -1) const {
    check_group(group_index);
    const int which = int(group_index < 0 ? 0 : group_index + 1);
    const uint64_t count = ++barrier_counts[which];
    enqueued::barrier<kThreads>
        <<<1, kThreads, 0, cuda_stream()>>>(device(), group_index, kUserSignals + which * kMaxRanks, count);
    PKB_CUDA_LAUNCHED();
  }
};

}  // namespace pkb
