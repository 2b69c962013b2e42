// ImportanceSamplingLoss: logits are formed, and folded into their normaliser, in registers, and seven sums cross the
// link at once.
//
// What moves: hidden states and output matrix go through the tensor cores (pkb/gemm_sm90.h). A tile's sums are never
// stored: of each token, a warp keeps the largest logit and the sum of exponentials of the tile's columns
// (pkb/online_softmax_cuda.h), and the label's logit if it is among them. A second kernel joins the parts of a token by
// a warp, forms its ratio and loss, and adds up; its last block sends the seven statistics to all ranks as words that
// carry the number of the call (pkb/tagged_cuda.h), and divides. What belongs to a token is rounded after each
// operation, as in the reference: a rounding of a logit of 16 moves a ratio by 3 %, and of few tokens the mean. Words
// lie in two halves by turns; each rank needs those of all others in every call. Nobody touches a peer's arguments or
// outputs.
//
// Bound: arithmetic, 2 T H V operations. The baseline stores T V logits, reads them three times, and reduces seven
// scalars one after another.
//
// Left on the table: exponentials stand between two tiles of a warpgroup, a fifth of the products' time at 1024
// channels. Ignored tokens are multiplied as well. float32, and rows that are no multiples of 16 bytes, run on CUDA
// cores, and store the logits of 4096 ids at a time.
#include <algorithm>

#include "pkb/gemm_linear.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"
#include "pkb/online_softmax_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using pkb::kAllLanes;
using pkb::kInfinity;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kChunk = 4096;  // ids whose logits are stored at a time, where they are
constexpr float kMaxDelta = 20.0f;

// What is kept of a token's logits: of each part of the vocabulary, and the label's.
struct Tokens {
  const int64_t* labels;
  float2* parts;  // (tokens, parts): largest logit, sum of exponentials relative to it
  float* label_logits;
  int64_t tokens;
  int parts_each;
};

// Hooks that keep parts instead of storing sums.
struct KeepParts : pkb::gemm::Plain {
  Tokens of;
  int V;
  KeepParts(const Tokens& of, int64_t V) : of(of), V(int(V)) {}

  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const pkb::gemm::Tile& tile, float (&sums)[Shape::kSums],
                                         const pkb::gemm::Block& block, int consumer, uint32_t) const {
    const int thread = threadIdx.x % 128, lane = thread % 32, column = tile.col + lane % 4 * 2, left = V - column;
    const int first = tile.out_row + block.in_cluster * pkb::gemm::kBlockM + consumer * pkb::gemm::kStoreRows +
                      thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < Shape::kSums; i += 2) {
      T a, b;
      pkb::round_to(a, b, sums[i], sums[i + 1]);
      sums[i] = pkb::to_float(a);
      sums[i + 1] = pkb::to_float(b);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = first + half * 8;
      const int label = token < int(of.tokens) ? int(of.labels[token]) - column : -1;  // its place among the columns
      float most = -kInfinity;
#pragma unroll
      for (int i = half * 2; i < Shape::kSums; i += i % 2 ? 3 : 1) {
        const int at = i / 4 * 8 + i % 2;
        if (at >= left) continue;
        most = fmaxf(most, sums[i]);
        if (label == at) of.label_logits[token] = sums[i];
      }
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      float sum = 0.0f;
#pragma unroll
      for (int i = half * 2; i < Shape::kSums; i += i % 2 ? 3 : 1) {
        if (i / 4 * 8 + i % 2 < left) sum += __expf(sums[i] - most);
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      if (lane % 4 == 0 && token < int(of.tokens)) {
        of.parts[int64_t(token) * of.parts_each + tile.col / Shape::kBlockN] = make_float2(most, sum);
      }
    }
    return false;
  }
};

template <class T, class Shape>
void multiply(const T* hidden, const T* weight, Tokens tokens, int64_t H, int64_t V, cudaStream_t stream) {
  pkb::gemm::Product product = pkb::gemm::tiles<Shape>(tokens.tokens, V, H);
  product.a[0] = pkb::gemm::operand_map<T>(hidden, tokens.tokens, H, H, pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(weight, V, H, H, pkb::gemm::kBlockK);
  product.destinations = 0;
  pkb::gemm::launch<T, Shape>(product, KeepParts(tokens, V), stream);
}

// Keeps the part of stored logits (tokens, columns), of ids from `first` on; a warp a token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    keep_stored(const T* logits, const __grid_constant__ Tokens of, int64_t first, int columns, int part) {
  const int64_t step = int64_t(gridDim.x) * kWarps;
  for (int64_t token = blockIdx.x * int64_t(kWarps) + pkb::warp_id(); token < of.tokens; token += step) {
    const T* row = logits + token * columns;
    pkb::SoftmaxSum sum;
#pragma unroll 4
    for (int i = pkb::lane_id(); i < columns; i += 32) sum.add({pkb::to_float(row[i])});
    sum = pkb::join_parts(pkb::Warp(), sum);
    if (pkb::lane_id() != 0) continue;
    of.parts[token * of.parts_each + part] = make_float2(sum.most, sum.sum);
    const int64_t label = of.labels[token] - first;
    if (label >= 0 && label < columns) of.label_logits[token] = pkb::to_float(row[label]);
  }
}

// What ranks add up, or compare: statistics of valid tokens.
struct Statistics {
  float count, loss, ratio, k3, entropy, smallest, largest;

  __device__ static Statistics of_none() { return {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, kInfinity, -kInfinity}; }
  __device__ __forceinline__ void join(const Statistics& other) {
    count += other.count;
    loss += other.loss;
    ratio += other.ratio;
    k3 += other.k3;
    entropy += other.entropy;
    smallest = fminf(smallest, other.smallest);
    largest = fmaxf(largest, other.largest);
  }
};
constexpr int kNumbers = sizeof(Statistics) / sizeof(float);

// In scratch: a counter of blocks, and the numbers of all ranks in two halves, apart from those of blocks.
struct Scratch {
  const pkb::Device& comm;
  __device__ unsigned* counter() const { return comm.scratch<unsigned>(); }
  __device__ uint64_t* words(int sender) const {
    return comm.scratch<uint64_t>(256) + (comm.epoch % 2 * pkb::kMaxRanks + sender) * kNumbers;
  }
  __device__ Statistics* of_blocks() const { return comm.scratch<Statistics>(4096); }
};

template <class T>
struct Globals {
  Tokens of;
  const T *old_logprobs, *advantages;
  T *logprobs, *losses;
  float *loss, *metrics;
  int64_t ignore_index;
};

// The statistics of a block's threads, joined, in every thread. A barrier of the block must stand between two uses.
__device__ __forceinline__ Statistics join_block(Statistics own) {
  __shared__ Statistics all[kThreads];
  all[threadIdx.x] = own;
  for (int apart = kThreads / 2; apart > 0; apart /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < apart) all[threadIdx.x].join(all[threadIdx.x + apart]);
  }
  __syncthreads();
  return all[0];
}

template <class T>
__device__ __forceinline__ float rounded(float x) {
  return pkb::to_float(T(x));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    reduce(const __grid_constant__ Globals<T> g, const __grid_constant__ pkb::Device comm) {
  const int64_t step = int64_t(gridDim.x) * kWarps;
  Statistics own = Statistics::of_none();
  for (int64_t token = blockIdx.x * int64_t(kWarps) + pkb::warp_id(); token < g.of.tokens; token += step) {
    pkb::SoftmaxSum sum;
    for (int part = pkb::lane_id(); part < g.of.parts_each; part += 32) {
      const float2 of_part = g.of.parts[token * g.of.parts_each + part];
      pkb::SoftmaxSum other;
      other.most = of_part.x;
      other.sum = of_part.y;
      sum.join(other);
    }
    sum = pkb::join_parts(pkb::Warp(), sum);
    if (pkb::lane_id() != 0) continue;
    if (g.of.labels[token] == g.ignore_index) {
      g.logprobs[token] = g.losses[token] = T(0.0f);
      continue;
    }
    const float logprob = rounded<T>(g.of.label_logits[token] - sum.log());
    const float difference = rounded<T>(logprob - pkb::to_float(g.old_logprobs[token]));
    const float delta = fminf(fmaxf(difference, -kMaxDelta), kMaxDelta), ratio = rounded<T>(expf(delta));
    const float loss = -rounded<T>(ratio * pkb::to_float(g.advantages[token]));
    g.logprobs[token] = T(logprob);
    g.losses[token] = T(loss);
    own.join(Statistics{1.0f, loss, ratio, rounded<T>(ratio - delta) - 1.0f, -logprob, ratio, ratio});
  }
  const Scratch scratch{comm};
  own = join_block(own);
  if (threadIdx.x == 0) scratch.of_blocks()[blockIdx.x] = own;
  if (!pkb::arrives_last(scratch.counter())) return;

  Statistics of_thread = Statistics::of_none();
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
    float numbers[kNumbers];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      numbers[i] = __ldcg(reinterpret_cast<const float*>(scratch.of_blocks() + block) + i);
    }
    of_thread.join(reinterpret_cast<const Statistics&>(numbers));
  }
  const Statistics of_rank = join_block(of_thread);
  const int r = int(threadIdx.x);
  __shared__ Statistics of_ranks[pkb::kMaxRanks];
  if (r < comm.world_size) {
    const uint32_t tag = uint32_t(comm.epoch);
    float numbers[kNumbers];
    reinterpret_cast<Statistics&>(numbers) = of_rank;
    if (r != comm.rank) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        pkb::store_tagged(comm.peer(scratch.words(comm.rank) + i, r), numbers[i], tag);
      }
      comm.hold();
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) numbers[i] = pkb::wait_tagged(scratch.words(r) + i, tag);
    }
    of_ranks[r] = reinterpret_cast<const Statistics&>(numbers);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  Statistics all = Statistics::of_none();
  for (int rank = 0; rank < comm.world_size; ++rank) all.join(of_ranks[rank]);
  const float count = fmaxf(all.count, 1.0f);
  *g.loss = all.loss / count;
  const float metrics[] = {all.ratio / count, all.smallest, all.largest, all.k3 / count, all.entropy / count};
#pragma unroll
  for (int i = 0; i < 5; ++i) g.metrics[i] = metrics[i];
}

// Keeps stored logits apart from other buffers of T.
template <class T>
struct Logit {
  T element;
};

template <class T>
void launch(Globals<T> g, const T* hidden, const T* weight, int64_t H, int64_t V, const pkb::Comm& comm) {
  const cudaStream_t stream = comm.cuda_stream();
  const int64_t tokens = g.of.tokens;
  const bool on_tensor_cores = sizeof(T) == 2 && pkb::gemm::fits(H, 8, 1) && tokens > 0;
  const bool is_large = pkb::gemm::is_large(tokens, V);
  const int64_t columns = !on_tensor_cores ? kChunk : is_large ? pkb::gemm::Deep::kBlockN : pkb::gemm::Small::kBlockN;
  g.of.parts_each = pkb::gemm::divide_up(V, columns);
  g.of.parts = pkb::kept_memory<float2>(std::max<int64_t>(tokens * g.of.parts_each, 1));
  g.of.label_logits = pkb::kept_memory<float>(std::max<int64_t>(tokens, 1));
  const unsigned blocks = pkb::blocks_for(tokens, kWarps);
  if (on_tensor_cores) {
    if constexpr (sizeof(T) == 2) {
      using pkb::gemm::TransposedB;
      if (is_large) multiply<T, TransposedB<pkb::gemm::Deep>>(hidden, weight, g.of, H, V, stream);
      else multiply<T, TransposedB<pkb::gemm::Small>>(hidden, weight, g.of, H, V, stream);
    }
  } else if (tokens > 0) {
    T* logits = reinterpret_cast<T*>(pkb::kept_memory<Logit<T>>(tokens * std::min(kChunk, V)));
    for (int part = 0; part < g.of.parts_each; ++part) {
      const int64_t first = part * kChunk, ids = std::min(kChunk, V - first);
      pkb::gemm::linear<T>(hidden, weight + first * H, logits, tokens, ids, H, stream);
      keep_stored<T><<<blocks, kThreads, 0, stream>>>(logits, g.of, first, int(ids), part);
      PKB_CUDA_LAUNCHED();
    }
  }
  reduce<T><<<blocks, kThreads, 0, stream>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView hidden_states, TensorView weight, TensorView labels, TensorView old_logprobs,
              TensorView advantages, int64_t ignore_index, TensorView loss,
              Optional<TensorView>, TensorView per_token_logprobs,
              TensorView per_token_loss, TensorView metrics, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, float>(hidden_states.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& tensor) { return static_cast<T*>(tensor.data_ptr()); };
    const auto float_of = [](const TensorView& tensor) { return static_cast<float*>(tensor.data_ptr()); };
    Globals<T> g{};
    g.of.labels = static_cast<const int64_t*>(labels.data_ptr());
    g.of.tokens = labels.numel();
    g.old_logprobs = of(old_logprobs);
    g.advantages = of(advantages);
    g.logprobs = of(per_token_logprobs);
    g.losses = of(per_token_loss);
    g.loss = float_of(loss);
    g.metrics = float_of(metrics);
    g.ignore_index = ignore_index;
    launch<T>(g, of(hidden_states), of(weight), weight.size(1), weight.size(0), comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
