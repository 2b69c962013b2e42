// LoadBalancingLoss: one kernel reads the logits once, and forms probabilities, choices and both sums on the way.
//
// What moves: a warp, or eight of its lanes where there are up to eight experts, holds a token's logits in registers, an
// expert or more a lane. Softmax and choice are reductions over lanes; the sums over tokens, one for each expert, stay
// where the experts are, and leave the block once. Tokens of weight 0 are not read. The last block to be done forms this
// rank's loss, and gives it to all ranks as a word that carries the number of the call (pkb/tagged_cuda.h). The baseline
// makes about ten passes, among them a sort of each token's experts.
//
// Bound: memory, one read of the logits of tokens that count; at k = 8 of 128 experts the choice, k reductions of a warp a
// token, comes near it.
//
// Left on the table: the choice finds the k largest one by one. A lane loads an expert at a time, two bytes of 16.
//
// Loss: W. Fedus, B. Zoph, N. Shazeer, Switch Transformers, arXiv:2101.03961, equations 4 to 6.
#include <algorithm>

#include "pkb/routing_cuda.h"
#include "pkb/select_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr int kArrived = 0;  // word of the signal pad: blocks that are done
constexpr int kMaxExperts = 1024, kMaxLayers = 256;
// Scratch: sums of this rank, 0 between calls, then the words of even and of odd calls.
constexpr uint64_t kSumsBytes = (2 * kMaxExperts + 32) * sizeof(float);

enum class Mask { kNone, kInt64, kBool, kFloat };

template <class T>
struct Logits {
  const T* layers[kMaxLayers];
  const void* mask;
  int64_t rows, tokens;  // of a layer's tensor, of all of them
  int64_t weights;       // of the mask, for rows in turn
  Mask kind;
  int experts, top_k;
  float* loss;

  __device__ __forceinline__ float weight(int64_t row) const {
    const int64_t i = kind == Mask::kNone ? 0 : row % weights;
    switch (kind) {
      case Mask::kInt64: return float(static_cast<const int64_t*>(mask)[i]);
      case Mask::kBool: return static_cast<const uint8_t*>(mask)[i] ? 1.0f : 0.0f;
      case Mask::kFloat: return static_cast<const float*>(mask)[i];
      default: return 1.0f;
    }
  }
};

// Lane l of kLanes has experts l, l + kLanes, ...
template <class T, int kLanes, int kEach>
__global__ void __launch_bounds__(kThreads)
    form_loss(const __grid_constant__ Logits<T> g, const __grid_constant__ pkb::Device comm) {
  constexpr int kTogether = 32 / kLanes;  // tokens of a warp
  __shared__ float of_block[2 * kLanes * kEach + 1];
  const int lane = pkb::lane_id() % kLanes, thread = int(threadIdx.x);
  for (int i = thread; i < 2 * kLanes * kEach + 1; i += kThreads) of_block[i] = 0.0f;
  __syncthreads();

  float probabilities[kEach] = {}, choices[kEach] = {}, weights = 0.0f;
  const int64_t warps = int64_t(gridDim.x) * (kThreads / 32);
  const int64_t warp = int64_t(blockIdx.x) * (kThreads / 32) + pkb::warp_id();
  for (int64_t first = warp * kTogether; first < g.tokens; first += warps * kTogether) {
    const int64_t row = first + pkb::lane_id() / kLanes;
    const float weight = row < g.tokens ? g.weight(row) : 0.0f;
    if (!__any_sync(pkb::kAllLanes, weight != 0.0f)) continue;
    float x[kEach];
    uint32_t keys[kEach];
    float highest = -pkb::kInfinity;
    const int64_t layer = weight != 0.0f ? row / g.rows : 0;
    const T* logits = g.layers[layer] + (row - layer * g.rows) * g.experts;
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      const int expert = each * kLanes + lane;
      const bool exists = expert < g.experts;
      x[each] = exists ? (weight != 0.0f ? pkb::to_float(logits[expert]) : 0.0f) : -pkb::kInfinity;
      keys[each] = exists ? pkb::key_of<float>(x[each]) : 0;
      highest = fmaxf(highest, x[each]);
    }
    highest = pkb::reduce_lanes<kLanes>(highest, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0.0f;
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      x[each] = __expf(x[each] - highest);
      sum += x[each];
    }
    sum = pkb::reduce_lanes<kLanes>(sum, [](float a, float b) { return a + b; });
    const uint32_t chosen = pkb::choose_largest<kLanes>(keys, g.top_k);
    const float scale = weight / sum;
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      probabilities[each] += scale * x[each];
      choices[each] += chosen >> each & 1 ? weight : 0.0f;
    }
    weights += weight;
  }

#pragma unroll
  for (int each = 0; each < kEach; ++each) {
    const int expert = each * kLanes + lane;
    atomicAdd(of_block + expert, probabilities[each]);
    atomicAdd(of_block + kLanes * kEach + expert, choices[each]);
  }
  if (lane == 0) atomicAdd(of_block + 2 * kLanes * kEach, weights);
  __syncthreads();
  float* sums = comm.scratch<float>();
  for (int i = thread; i < 2 * kLanes * kEach + 1; i += kThreads) {
    if (of_block[i] != 0.0f) atomicAdd(sums + i, of_block[i]);
  }
  if (!pkb::arrives_last(reinterpret_cast<unsigned*>(comm.signal_word(kArrived, comm.rank)))) return;

  for (int i = thread; i < 2 * kLanes * kEach + 1; i += kThreads) {
    of_block[i] = __ldcg(sums + i);
    sums[i] = 0.0f;
  }
  __syncthreads();
  float loss = 0.0f;
  for (int i = thread; i < g.experts; i += kThreads) loss += of_block[i] * of_block[kLanes * kEach + i];
  loss = pkb::reduce_block<kThreads>(loss, [](float a, float b) { return a + b; });
  const float total = of_block[2 * kLanes * kEach];
  loss *= float(g.experts) / float(comm.world_size) / total / total;

  if (thread >= 32) return;
  const uint32_t tag = uint32_t(comm.epoch);
  const auto word = [&](int receiver, int sender) {
    return comm.peer(comm.scratch<uint64_t>(kSumsBytes), receiver) + comm.epoch % 2 * pkb::kMaxRanks + sender;
  };
  const bool has_peer = thread < comm.world_size && thread != comm.rank;
  if (has_peer) pkb::store_tagged(word(thread, comm.rank), loss, tag);
  comm.hold();
  const float of_rank = has_peer ? pkb::wait_tagged(word(comm.rank, thread), tag) : loss;
  float of_all = 0.0f;
  for (int r = 0; r < comm.world_size; ++r) of_all += __shfl_sync(pkb::kAllLanes, of_rank, r);
  if (thread == 0) *g.loss = of_all;
}

template <class T, int kLanes, int kEach>
void launch(const Logits<T>& g, const pkb::Comm& comm) {
  constexpr int kBlocksPerSm = 4;
  const int64_t of_block = kThreads / kLanes;  // tokens that a block looks at together
  const int64_t most = int64_t(pkb::multiprocessors()) * kBlocksPerSm;
  const unsigned blocks = unsigned(std::clamp<int64_t>((g.tokens + of_block - 1) / of_block, 1, most));
  form_loss<T, kLanes, kEach><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(Array<Tensor> gate_logits, int64_t num_experts, int64_t top_k, Optional<TensorView> attention_mask,
              TensorView loss, pkb::Comm comm) {
  if (int64_t(gate_logits.size()) > kMaxLayers || num_experts > kMaxExperts) {
    TVM_FFI_THROW(ValueError) << "expected at most " << kMaxLayers << " layers of " << kMaxExperts << " experts, got "
                              << gate_logits.size() << " of " << num_experts;
  }
  pkb::with_type<__nv_bfloat16, __half, float>(gate_logits[0].dtype(), [&](auto zero) {
    using T = decltype(zero);
    Logits<T> g{};
    for (size_t layer = 0; layer < gate_logits.size(); ++layer) {
      g.layers[layer] = static_cast<const T*>(gate_logits[layer].data_ptr());
    }
    g.rows = gate_logits[0].size(0);
    g.tokens = g.rows * int64_t(gate_logits.size());
    g.experts = int(num_experts);
    g.top_k = int(top_k);
    g.loss = static_cast<float*>(loss.data_ptr());
    if (attention_mask.has_value()) {
      const TensorView mask = attention_mask.value();
      g.mask = mask.data_ptr();
      g.weights = mask.numel();
      g.kind = mask.dtype().bits == 64 ? Mask::kInt64 : mask.dtype().bits == 32 ? Mask::kFloat : Mask::kBool;
    }
    if (num_experts <= 8) launch<T, 8, 1>(g, comm);
    else if (num_experts <= 32) launch<T, 32, 1>(g, comm);
    else if (num_experts <= 128) launch<T, 32, 4>(g, comm);
    else launch<T, 32, 32>(g, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
