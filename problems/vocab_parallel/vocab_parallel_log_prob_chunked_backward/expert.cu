// VocabParallelLogProbChunkedBackward: owners find what the filter keeps of a token; every rank writes its own columns.
//
// What moves: as in the forward kernel a warp reads a rank's shard of a token once and sends what the filter needs to the
// token's owner (pkb/vocab_shards_cuda.h). The owner joins the W summaries and answers each rank with three numbers: the
// least logit that stays, the logarithm of the normaliser, and how many of the rank's logits that equal the least stay,
// as top-p may part equal ones. With these every rank reads its shard again and writes its gradients. So neither logits
// nor gradients cross the link, where the baseline sends all of both. Words carry the number of the call
// (pkb/tagged_cuda.h). One place for them is enough: a rank has all answers when all owners have read its summaries, or
// its logits, and owners answer what a rank has sent, or begun, in the same call.
//
// Bound: memory, one read of the logits and one write of gradients twice as wide; chunks change nothing.
//
// Left on the table: the second read, since nearly all gradients are 0 and only those that stay need their logit. Top-p
// alone needs whole rows, which cross the link to the owner; there, and at small sizes, a block gathers and filters a row.
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vocab_shards_cuda.h"

using pkb::kInfinity;
using pkb::kPerVector;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;
using namespace pkb::vocab;

namespace {

constexpr int kAnswerWords = 4;  // two pairs, of which the last word is not used

template <typename T>
struct Gradients : Shards<T> {
  const T* incoming;        // gradient of each token's log-probability
  float* out;               // of this rank's shard
  pkb::TaggedPair* answers;  // in scratch, two a token
};

// What a rank is told of a token.
struct Answer {
  float least, log_normaliser;  // logits from `least` on stay,
  float equals;                 // but of those that equal it so many
};

// Sends a rank its answer, by one thread. `before` are logits at the border on the ranks before it, `own` those on it.
template <typename T>
__device__ void answer(const Gradients<T>& g, const pkb::Device& comm, int64_t token, int place,
                       const pkb::FilterCut& cut, float before, float own) {
  const float stay = cut.stay == kInfinity ? kInfinity : fminf(fmaxf(cut.stay - before, 0.0f), own);
  const float least = cut.border == 0 ? -kInfinity : pkb::value_of<T>(cut.border);
  pkb::TaggedPair* to = comm.peer(g.answers + 2 * token, comm.group_member(g.group, place));
  const uint32_t tag = uint32_t(comm.epoch);
  pkb::store_tagged(to, uint2{__float_as_uint(least), __float_as_uint(cut.log_normaliser())}, tag);
  pkb::store_tagged(to + 1, uint2{__float_as_uint(stay), 0}, tag);
}

template <typename T>
__device__ Answer answer_of(const Gradients<T>& g, const pkb::Device& comm, int64_t token) {
  const uint32_t tag = uint32_t(comm.epoch);
  const uint2 first = pkb::wait_tagged(g.answers + 2 * token, tag);
  const uint2 second = pkb::wait_tagged(g.answers + 2 * token + 1, tag);
  return Answer{__uint_as_float(first.x), __uint_as_float(first.y), __uint_as_float(second.x)};
}

// Writes this rank's gradients of a token, by a warp; rows are whole numbers of packets of kLanes.
template <typename T, int kLanes>
__device__ void write_row(const Gradients<T>& g, const pkb::Device& comm, int64_t token) {
  using Packet = pkb::Packet<T, kLanes>;
  const Answer known = answer_of(g, comm, token);
  const float gamma = pkb::to_float(g.incoming[token]);
  const int64_t target = g.target[token] - int64_t(comm.group_rank(g.group)) * g.shard;
  const T* row = g.logits + token * g.shard;
  float* out = g.out + token * g.shard;
  const bool parts_equals = known.equals != kInfinity;
  float used = 0.0f;  // logits that equal the least and stay, so far
  constexpr int kUnroll = pkb::kLoadsAtOnce;
  for (int64_t begin = 0; begin < g.shard; begin += 32 * kUnroll * kLanes) {
    Packet packets[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = begin + (u * 32 + pkb::lane_id()) * kLanes;
      if (at < g.shard) packets[u] = pkb::load_packet<T, kLanes>(row + at);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = begin + (u * 32 + pkb::lane_id()) * kLanes;
      pkb::Packet<float, kLanes> gradients;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const float x = at < g.shard ? pkb::to_float(packets[u].lanes[i]) : -kInfinity;
        bool stays = x >= known.least && at < g.shard;
        if (parts_equals) {
          const unsigned equal = __ballot_sync(pkb::kAllLanes, stays && x == known.least);
          if (stays && x == known.least) stays = used + pkb::lanes_before(equal) < known.equals;
          used += __popc(equal);
        }
        gradients.lanes[i] =
            stays ? gamma * ((at + i == target ? 1.0f : 0.0f) - __expf(x - known.log_normaliser)) : 0.0f;
      }
      if (at >= g.shard) continue;
      constexpr int kStore = kLanes < 4 ? kLanes : 4;  // numbers of 16 bytes
#pragma unroll
      for (int i = 0; i < kLanes; i += kStore) {
        using Unit = typename pkb::UnitOf<int(sizeof(float)) * kStore>::type;
        Unit unit;
        memcpy(&unit, gradients.lanes + i, sizeof(unit));
        __stcs(reinterpret_cast<Unit*>(out + at + i), unit);
      }
    }
  }
}

// All rows of this rank, a warp each.
template <typename T>
__device__ void write_rows(const Gradients<T>& g, const pkb::Device& comm) {
  const int warps_of_block = int(blockDim.x) / 32;
  const int64_t warps = int64_t(gridDim.x) * warps_of_block;
  for (int64_t token = int64_t(pkb::warp_id()) * gridDim.x + blockIdx.x; token < g.tokens; token += warps) {
    if (g.shard % kPerVector<T> == 0) write_row<T, kPerVector<T>>(g, comm, token);
    else write_row<T, 1>(g, comm, token);
  }
}

// Blocks gather rows of tokens that this rank owns, from all ranks whose call has begun, and answer. A rank has all
// answers when all others have read its logits.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    gradients_of_rows(const __grid_constant__ Gradients<T> g, const __grid_constant__ pkb::Device comm, char* memory,
                      int64_t row_bytes) {
  extern __shared__ uint4 shared[];
  __shared__ int equals[pkb::kMaxRanks];
  T* row = reinterpret_cast<T*>(memory ? memory + blockIdx.x * row_bytes : reinterpret_cast<char*>(shared));
  const int W = comm.group_size(g.group), thread = int(threadIdx.x);
  const int64_t tokens = g.tokens / W, first = comm.group_rank(g.group) * tokens;
  comm.signal_begun(g.group);
  comm.wait_all_begun(0, g.group);
  for (int64_t i = blockIdx.x; i < tokens; i += gridDim.x) {
    const int64_t token = first + i;
    __syncthreads();  // the row before has been answered
    const int vectors = gather_row(g, comm, token, row);
    if (thread < W) equals[thread] = 0;
    __syncthreads();
    const pkb::Vectors<T> logits{reinterpret_cast<const uint4*>(row), vectors};
    const pkb::FilterCut cut = pkb::cut_of<T>(pkb::Block(), logits, g.filter);
    if (cut.stay != kInfinity) {
      for (int at = thread; at < g.shard * W; at += int(blockDim.x)) {
        if (pkb::key_of<T>(pkb::to_float(row[at])) == cut.border) atomicAdd(equals + at / g.shard, 1);
      }
    }
    __syncthreads();
    if (thread < W) {
      int before = 0;
      for (int r = 0; r < thread; ++r) before += equals[r];
      __threadfence_system();  // the block has read the row: with this answer its owner may end the call
      answer(g, comm, token, thread, cut, float(before), float(equals[thread]));
    }
  }
  comm.hold();
  write_rows(g, comm);
}

// Joins the summaries of a token that this rank owns and answers all ranks.
template <typename T>
__device__ void join(const Gradients<T>& g, const pkb::Device& comm, int64_t token, int entries, WarpMemory& memory) {
  const int W = comm.group_size(g.group), lane = pkb::lane_id();
  const pkb::List list = receive(g, comm, token, entries, memory);
  const pkb::FilterCut cut = pkb::cut_of<T>(pkb::Warp(), list, g.filter);
  float own = 0.0f;  // of rank `lane`, at the border
  if (lane < W && cut.stay != kInfinity) {
    const auto is_there = [&](float x) { return pkb::key_of<T>(x) == cut.border; };
    if (is_there(memory.values[lane])) own = memory.weights[lane];
    const float* others = memory.values + W + lane * (entries - 1);
    for (int i = 0; i < entries - 1; ++i) own += is_there(others[i]) ? 1.0f : 0.0f;
  }
  float before = 0.0f;
  for (int r = 0; r < W; ++r) {
    const float of_rank = __shfl_sync(pkb::kAllLanes, own, r);
    if (r < lane) before += of_rank;
  }
  if (lane < W) answer(g, comm, token, lane, cut, before, own);
  __syncwarp();
}

template <typename T, typename Summary>
__global__ void __launch_bounds__(kScanThreads, 1)
    gradients_of_shards(const __grid_constant__ Gradients<T> g, const __grid_constant__ pkb::Device comm) {
  extern __shared__ uint4 shared[];
  WarpMemory& memory = reinterpret_cast<WarpMemory*>(shared)[pkb::warp_id()];
  const int W = comm.group_size(g.group), rank = comm.group_rank(g.group);
  const int64_t warps = int64_t(gridDim.x) * kScanWarps, warp = int64_t(pkb::warp_id()) * gridDim.x + blockIdx.x;
  Summary summary{};
  summarise(g, comm, memory, warp, warps, summary);
  comm.hold();
  for (int64_t token = warp * W + rank; token < g.tokens; token += warps * W) {
    join(g, comm, token, summary.entries(), memory);
  }
  write_rows(g, comm);
}

template <typename T, typename Summary>
void launch_scan(Gradients<T> g, const pkb::Comm& comm) {
  constexpr int kSharedBytes = kScanWarps * sizeof(WarpMemory);
  pkb::allow_shared_memory<gradients_of_shards<T, Summary>>(kSharedBytes);
  g.answers = reinterpret_cast<pkb::TaggedPair*>(g.summaries);
  g.summaries += g.tokens * kAnswerWords;
  const auto blocks = unsigned(std::min<int64_t>(pkb::multiprocessors(), g.tokens));
  gradients_of_shards<T, Summary><<<blocks, kScanThreads, kSharedBytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

template <typename T>
void launch_rows(Gradients<T> g, int W, const pkb::Comm& comm) {
  pkb::allow_shared_memory<gradients_of_rows<T>>(int(kRowBytesInShared));
  if (g.tokens * kAnswerWords * sizeof(uint64_t) > quarter_of_scratch(comm)) {
    TVM_FFI_THROW(ValueError) << "answers for " << g.tokens << " tokens do not fit into scratch";
  }
  g.answers = reinterpret_cast<pkb::TaggedPair*>(g.summaries);
  const RowPlan plan = plan_rows(g, W, comm);
  gradients_of_rows<T><<<plan.blocks, plan.threads, plan.shared_bytes(), comm.cuda_stream()>>>(
      g, comm.device(), plan.memory, plan.row_bytes);
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView vocab_parallel_logits, TensorView target, TensorView grad_output, int64_t tp_group,
              Optional<int64_t> top_k, Optional<double> top_p, int64_t /* chunk_size */, TensorView grad_logits,
              pkb::Comm comm) {
  const int W = comm.group(tp_group).size;
  pkb::with_type<__nv_bfloat16, __half, float>(vocab_parallel_logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Gradients<T> g{shards_of<T>(vocab_parallel_logits, target, tp_group, top_k.value_or(0), top_p.value_or(1.0), W),
                   static_cast<const T*>(grad_output.data_ptr()), static_cast<float*>(grad_logits.data_ptr()), nullptr};
    if (g.tokens == 0) return;
    g.summaries = comm.scratch<uint64_t>();
    if (!summaries_pay(g, W, kAnswerWords, comm)) launch_rows(g, W, comm);
    else if (g.filter.k > 0) launch_scan<T, Largest<T>>(g, comm);
    else launch_scan<T, Mass<T>>(g, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
