// Log-probabilities of targets under the filtered softmax of logits that are split over ranks along the vocabulary
// (pkb/vocab_shards_cuda.h): one kernel, of whole rows or of summaries.
//
// By summaries, a warp scans rows of its rank's shard, joins summaries of some of the tokens that its rank owns, and takes
// results of others; nothing waits before all rows of its warp have been sent. Words lie in two halves of scratch by
// turns, and each rank needs words of all others in every call, so that none can be two calls ahead.
#pragma once

#include "pkb/launch_cuda.h"
#include "pkb/vocab_shards_cuda.h"

namespace pkb {
namespace vocab {

template <typename T>
struct LogProbs : Shards<T> {
  float* logprobs;
  uint64_t* results;  // tagged words in scratch: log-probabilities of the others' tokens
};

// Rank r does tokens [r * T / W, (r + 1) * T / W), a row at a time a block, and writes the results to all outputs. Rows
// lie in shared memory, or in `memory`. All blocks are resident together on every rank, since they wait for each other.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) filter_rows(const LogProbs<T> g, const Device comm,
                                                              char* memory, int64_t row_bytes) {
  extern __shared__ uint4 shared[];
  T* row = reinterpret_cast<T*>(memory ? memory + blockIdx.x * row_bytes : reinterpret_cast<char*>(shared));
  const int64_t tokens = g.tokens / comm.group_size(g.group), first = comm.group_rank(g.group) * tokens;
  comm.signal_begun(g.group);
  comm.wait_all_begun(0, g.group);
  for (int64_t i = blockIdx.x; i < tokens; i += gridDim.x) {
    const int64_t token = first + i;
    const float own = logit_of(g, comm, token, g.target[token]);
    __syncthreads();
    const int vectors = gather_row(g, comm, token, row);
    __syncthreads();
    const Vectors<T> logits{reinterpret_cast<const uint4*>(row), vectors};
    const float result = log_prob<T>(cut_of<T>(Block(), logits, g.filter), own);
    const int thread = threadIdx.x;
    if (thread < comm.group_size(g.group)) *comm.peer(g.logprobs + token, comm.group_member(g.group, thread)) = result;
  }
  comm.barrier_blocks(0, g.group);
}

// Joins the summaries of a token that this rank owns, and sends the result to the others.
template <typename T>
__device__ void join(const LogProbs<T>& g, const Device& comm, int64_t token, int entries, WarpMemory& memory) {
  const int W = comm.group_size(g.group), lane = lane_id();
  const int64_t target = g.target[token];
  const List list = receive(g, comm, token, entries, memory);
  const bool exists = target >= 0 && target < int64_t(g.shard) * W;
  const float own = exists ? memory.target_logits[target / g.shard] : __int_as_float(0x7fffffff);
  const float result = log_prob<T>(cut_of<T>(Warp(), list, g.filter), own);
  if (lane == comm.group_rank(g.group)) {
    g.logprobs[token] = result;
  } else if (lane < W) {
    store_tagged(comm.peer(g.results + token, comm.group_member(g.group, lane)), result, uint32_t(comm.epoch));
  }
  __syncwarp();
}

template <typename T, typename Summary>
__global__ void __launch_bounds__(kScanThreads, 1) scan_shards(const LogProbs<T> g, const Device comm) {
  extern __shared__ uint4 shared[];
  WarpMemory& memory = reinterpret_cast<WarpMemory*>(shared)[warp_id()];
  const int W = comm.group_size(g.group), rank = comm.group_rank(g.group);
  // Neighbouring rows are different blocks', so that few rows occupy all multiprocessors.
  const int64_t warps = int64_t(gridDim.x) * kScanWarps, warp = int64_t(warp_id()) * gridDim.x + blockIdx.x;
  Summary summary{};
  summarise(g, comm, memory, warp, warps, summary);

  comm.hold();
  for (int64_t token = warp * W + rank; token < g.tokens; token += warps * W) {
    join(g, comm, token, summary.entries(), memory);
  }
  for (int64_t token = warp * 32 + lane_id(); token < g.tokens; token += warps * 32) {
    if (int(token % W) != rank) g.logprobs[token] = wait_tagged(g.results + token, uint32_t(comm.epoch));
  }
}

// ---- Host ----

template <typename T>
void launch_rows(const LogProbs<T>& g, int W, const Comm& comm) {
  allow_shared_memory<filter_rows<T>>(int(kRowBytesInShared));
  const RowPlan plan = plan_rows(g, W, comm);
  filter_rows<T><<<plan.blocks, plan.threads, plan.shared_bytes(), comm.cuda_stream()>>>(g, comm.device(), plan.memory,
                                                                                         plan.row_bytes);
  PKB_CUDA_LAUNCHED();
}

template <typename T, typename Summary>
void launch_scan(LogProbs<T> g, const Comm& comm) {
  constexpr int kSharedBytes = kScanWarps * sizeof(WarpMemory);
  allow_shared_memory<scan_shards<T, Summary>>(kSharedBytes);
  g.summaries = comm.scratch<uint64_t>(comm.epoch % 2 * quarter_of_scratch(comm));
  g.results = g.summaries + g.tokens * (g.entries() + 2);
  // All blocks are resident together on every rank, since they wait for each other.
  const auto blocks = unsigned(std::min<int64_t>(multiprocessors(), g.tokens));
  scan_shards<T, Summary><<<blocks, kScanThreads, kSharedBytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

// Writes the log-probability of every token to the outputs of all ranks of a group. Throws if a group cannot share the
// tokens evenly. A k of 0 or less, and a p of 1 or more, are no filters.
inline void filtered_log_probs(const tvm::ffi::TensorView& logits, const tvm::ffi::TensorView& target, int64_t group,
                               int64_t k, double p, const tvm::ffi::TensorView& logprobs, const Comm& comm) {
  const int W = comm.group(group).size;
  with_type<__nv_bfloat16, __half, float>(logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    LogProbs<T> g{shards_of<T>(logits, target, group, k, p, W), static_cast<float*>(logprobs.data_ptr()), nullptr};
    if (g.tokens == 0) return;
    if (!summaries_pay(g, W, 1, comm)) launch_rows(g, W, comm);
    else if (g.filter.k > 0) launch_scan<T, Largest<T>>(g, comm);
    else launch_scan<T, Mass<T>>(g, comm);
  });
}

}  // namespace vocab
}  // namespace pkb
