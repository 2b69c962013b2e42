// MoETokenPreprocess: one kernel counts, exchanges and adds up; nothing waits for the host.
//
// What moves: the mask is read once, by blocks that each take a run of one expert's entries and add its sum to the expert's
// count. The last block to be done sends each count to the rank that hosts the expert, as a word that carries the number
// of the call (pkb/tagged_cuda.h), and forms all four results from those that come in. Counts are whole numbers, so that
// sums are exact in any order. The baseline copies counts to the host between its kernels.
//
// Bound: memory, one read of the mask.
//
// Left on the table: the mask holds a bit in every four or eight bytes. At size published the work of the last block,
// two passes through the L2 cache and a crossing of the link, takes longer than the read.
#include <algorithm>

#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr int kArrived = 0;  // word of the signal pad: blocks that are done
constexpr int kMaxExperts = 4096;
// Scratch: counts, 0 between calls, then the words of even and of odd calls.
constexpr uint64_t kCountBytes = kMaxExperts * sizeof(double), kHalf = kMaxExperts * sizeof(pkb::TaggedPair);

template <class T>
struct Counting {
  const T* mask;
  int experts, local;       // of the group, and of a rank
  int64_t entries;          // of an expert
  int runs;                 // in which blocks read them
  int64_t *input_splits, *output_splits;
  T *tokens, *sums;         // tokens_per_local_expert, sum_per_local_expert
};

// Sum of a run of one expert's entries, by a block.
template <class T>
__device__ __forceinline__ T sum_of_run(const Counting<T>& g, int expert, int run) {
  constexpr int kLanes = pkb::kVectorBytes / int(sizeof(T));
  const T* from = g.mask + expert * g.entries;
  const int64_t begin = g.entries * run / g.runs, end = g.entries * (run + 1) / g.runs;
  // To the first vector, and from the last one on, element by element.
  const int64_t misfit = int64_t(reinterpret_cast<uintptr_t>(from + begin) % pkb::kVectorBytes / sizeof(T));
  const int64_t head = min(end, begin + (misfit ? kLanes - misfit : 0)), tail = end - (end - head) % kLanes;
  T sum = 0;
  for (int64_t i = begin + threadIdx.x; i < head; i += kThreads) sum += from[i];
  for (int64_t i = tail + threadIdx.x; i < end; i += kThreads) sum += from[i];
  for (int64_t i = head + threadIdx.x * kLanes; i < tail; i += pkb::kLoadsAtOnce * kThreads * kLanes) {
    pkb::Packet<T, kLanes> packets[pkb::kLoadsAtOnce] = {};
#pragma unroll
    for (int k = 0; k < pkb::kLoadsAtOnce; ++k) {
      const int64_t at = i + k * kThreads * kLanes;
      if (at < tail) packets[k] = pkb::load_packet<T, kLanes>(from + at);
    }
#pragma unroll
    for (int k = 0; k < pkb::kLoadsAtOnce; ++k) {
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) sum += packets[k].lanes[lane];
    }
  }
  return pkb::reduce_block<kThreads>(sum, [](T a, T b) { return a + b; });
}

template <class T>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    count(const __grid_constant__ Counting<T> g, int64_t group, const __grid_constant__ pkb::Device comm) {
  const int members = comm.group_size(group), own = comm.group_rank(group), thread = int(threadIdx.x);
  const uint32_t tag = uint32_t(comm.epoch);
  T* counts = comm.scratch<T>();
  comm.signal_begun();
  for (int i = int(blockIdx.x); i < g.experts * g.runs; i += int(gridDim.x)) {
    const T sum = sum_of_run(g, i / g.runs, i % g.runs);
    if (thread == 0) atomicAdd(counts + i / g.runs, sum);
  }
  if (!pkb::arrives_last(reinterpret_cast<unsigned*>(comm.signal_word(kArrived, comm.rank)))) return;

  const auto word = [&](int receiver, int sender, int expert) {
    auto* here = comm.scratch<pkb::TaggedPair>(kCountBytes + comm.epoch % 2 * kHalf);
    return comm.peer(here, comm.group_member(group, receiver)) + sender * g.local + expert;
  };
  __shared__ T of_experts[kMaxExperts];
  // Who has begun the last call has read what came in the one before, whatever group it was in.
  comm.wait_all_begun(1);
  for (int expert = thread; expert < g.experts; expert += kThreads) {
    const T sum = __ldcg(counts + expert);
    of_experts[expert] = sum;
    counts[expert] = 0;
    const int receiver = expert / g.local;
    if (receiver != own) {
      const auto bits = uint64_t(__double_as_longlong(double(sum)));
      pkb::store_tagged(word(receiver, own, expert % g.local), make_uint2(uint32_t(bits), uint32_t(bits >> 32)), tag);
    }
  }
  __syncthreads();
  if (thread < members) {
    T sum = 0;
    for (int i = 0; i < g.local; ++i) sum += of_experts[thread * g.local + i];
    g.input_splits[thread] = int64_t(sum);
  }
  comm.hold();
  for (int i = thread; i < g.experts; i += kThreads) {
    const int sender = i / g.local, expert = i % g.local;
    T sum = of_experts[own * g.local + expert];
    if (sender != own) {
      const uint2 words = pkb::wait_tagged(word(own, sender, expert), tag);
      sum = T(__longlong_as_double(int64_t(words.x | uint64_t(words.y) << 32)));
    }
    g.tokens[i] = sum;
  }
  __syncthreads();
  if (thread < members) {
    T sum = 0;
    for (int i = 0; i < g.local; ++i) sum += g.tokens[thread * g.local + i];
    g.output_splits[thread] = int64_t(sum);
  }
  for (int expert = thread; expert < g.local; expert += kThreads) {
    T sum = 0;
    for (int sender = 0; sender < members; ++sender) sum += g.tokens[sender * g.local + expert];
    g.sums[expert] = sum;
  }
}

}  // namespace

void solution(TensorView expert_mask, int64_t num_experts, int64_t group, TensorView input_splits,
              TensorView output_splits, TensorView tokens_per_local_expert, TensorView sum_per_local_expert,
              pkb::Comm comm) {
  pkb::with_type<float, double>(expert_mask.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Counting<T> g{};
    g.mask = static_cast<const T*>(expert_mask.data_ptr());
    g.experts = int(num_experts);
    g.local = g.experts / comm.group(group).size;
    g.entries = expert_mask.size(1) * expert_mask.size(2);
    // Enough runs to occupy the GPU, and none of less than a few kilobytes.
    const int64_t most = std::max<int64_t>(2 * pkb::max_blocks() / num_experts, 1);
    g.runs = int(std::clamp<int64_t>(g.entries * sizeof(T) / (pkb::kCopyTile / 2), 1, most));
    g.input_splits = static_cast<int64_t*>(input_splits.data_ptr());
    g.output_splits = static_cast<int64_t*>(output_splits.data_ptr());
    g.tokens = static_cast<T*>(tokens_per_local_expert.data_ptr());
    g.sums = static_cast<T*>(sum_per_local_expert.data_ptr());
    if (num_experts > kMaxExperts) TVM_FFI_THROW(ValueError) << "at most " << kMaxExperts << " experts";
    const unsigned blocks = unsigned(std::min<int64_t>(num_experts * g.runs, pkb::max_blocks()));
    count<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, group, comm.device());
    PKB_CUDA_LAUNCHED();
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
