// UlyssesAttention: a product, attention of each token's heads to each other, and a product; nothing is exchanged.
//
// What moves: nothing crosses the link. A head goes to the rank that its group belongs to and comes back, and there it
// meets only heads of its own token and group, which were made from this rank's activation and weights: the exchanges
// cancel, and each rank attends within its own tokens, in groups of h / W heads. Products take weights as they lie,
// transposed (pkb/gemm_linear.h). Heads of a token are rows below each other in the first product's result, so that
// flash attention takes a token as a sequence (pkb/attention_cuda.h), on tensor cores where a group is large enough to
// fill a tile of them.
//
// Bound: arithmetic, 2 tokens h d (3 H + D_out) operations a rank; at small sizes three launches.
//
// Left on the table: with one head a group, and for the first one of a group under a mask, queries and keys need not
// be computed; float32 runs on CUDA cores.
#include <cmath>

#include "pkb/attention_cuda.h"
#include "pkb/gemm_linear.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

using pkb::attention::Tile;

constexpr int kFewHeads = 32;        // of a group: tensor cores would multiply mostly what is masked
constexpr int kBlocksOfGroups = 8;   // a multiprocessor

// A tile is a token's group of heads, which are rows of the first product's result.
template <class T>
struct Hooks : pkb::attention::Plain<T> {
  T* context;  // (tokens, heads, head)
  int groups, of_group, head;
  bool is_causal;

  __device__ Tile tile(int index) const {
    const int token = index / groups, heads = groups * of_group;
    const int row = 3 * heads * token + index % groups * of_group;
    return {row, 0, of_group, row, 0, of_group, is_causal ? 0 : pkb::attention::kNoMask, index};
  }
  __device__ T* out_row(const Tile& tile, int i) const {
    return context + (int64_t(tile.index) * of_group + i) * head;
  }
};

constexpr int kWideThreads = 256;

// Heads wider than flash attention takes. A block takes a token's group, and in it one query after the other: warps
// form scores, all threads the exponentials of all of them, and each its own elements of the result.
template <class T>
__global__ void __launch_bounds__(kWideThreads)
    attend_wide(const T* qkv, T* context, int64_t tiles, int groups, int of_group, int head, float scale, bool is_causal) {
  extern __shared__ float scores[];  // (of_group,)
  const int thread = int(threadIdx.x), lane = thread % 32;
  const int64_t part = int64_t(groups) * of_group * head;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t within = tile % groups * of_group * head;
    const T *q = qkv + tile / groups * 3 * part + within, *k = q + part, *v = k + part;
    T* out = context + tile / groups * part + within;
    for (int i = 0; i < of_group; ++i) {
      const int keys = is_causal ? i + 1 : of_group;
      for (int j = thread / 32; j < keys; j += kWideThreads / 32) {
        float sum = 0.0f;
        for (int e = lane; e < head; e += 32) {
          sum += pkb::to_float(q[int64_t(i) * head + e]) * pkb::to_float(k[int64_t(j) * head + e]);
        }
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        if (lane == 0) scores[j] = sum * scale;
      }
      __syncthreads();
      float largest = scores[0], total = 0.0f;
      for (int j = 1; j < keys; ++j) largest = fmaxf(largest, scores[j]);
      for (int j = 0; j < keys; ++j) total += expf(scores[j] - largest);
      for (int e = thread; e < head; e += kWideThreads) {
        float sum = 0.0f;
        for (int j = 0; j < keys; ++j) sum += expf(scores[j] - largest) * pkb::to_float(v[int64_t(j) * head + e]);
        out[int64_t(i) * head + e] = T(sum / total);
      }
      __syncthreads();
    }
  }
}

template <class T>
void attend(const T* qkv, T* context, int64_t tokens, int heads, int head, const pkb::Comm& comm, bool is_causal) {
  Hooks<T> hooks;
  hooks.context = context;
  hooks.groups = comm.world_size;
  hooks.of_group = heads / comm.world_size;
  hooks.head = head;
  hooks.is_causal = is_causal;
  const int64_t rows = 3 * tokens * heads, part = int64_t(heads) * head;
  pkb::attention::Forward<T> work;
  work.q = {qkv, rows, head, head};
  work.k = {qkv + part, rows - heads, head, head};
  work.v = {qkv + 2 * part, rows - 2 * heads, head, head};
  work.head = head;
  work.scale = float(1.0 / std::sqrt(double(head)));
  work.tiles = int(tokens) * hooks.groups;
  if (head > pkb::attention::kMaxHead) {
    const int blocks = std::min(work.tiles, pkb::multiprocessors() * kBlocksOfGroups), bytes = hooks.of_group * 4;
    attend_wide<<<unsigned(blocks), kWideThreads, size_t(bytes), comm.cuda_stream()>>>(
        qkv, context, work.tiles, hooks.groups, hooks.of_group, head, work.scale, is_causal);
    PKB_CUDA_LAUNCHED();
  } else if (hooks.of_group < kFewHeads || hooks.of_group > pkb::attention::kTileRows) {
    const int blocks = std::min(work.tiles, pkb::multiprocessors() * kBlocksOfGroups);
    pkb::attention::launch_simt(work, hooks, blocks, comm.cuda_stream());
  } else {
    pkb::attention::launch(work, hooks, std::min(work.tiles, pkb::multiprocessors()), comm.cuda_stream());
  }
}

}  // namespace

void solution(TensorView hidden_states, TensorView w_qkv, TensorView w_o, int64_t group, int64_t num_heads, bool causal,
              TensorView out, pkb::Comm comm) {
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  pkb::with_type<__nv_bfloat16, __half, float>(hidden_states.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (hidden_states.numel() == 0 || out.numel() == 0) return;
    const auto of = [](const TensorView& tensor) { return static_cast<T*>(tensor.data_ptr()); };
    const cudaStream_t stream = comm.cuda_stream();
    const int64_t tokens = hidden_states.size(0) * hidden_states.size(1), H = hidden_states.size(2);
    const int64_t width = w_qkv.size(0) / 3, D_out = w_o.size(0);
    T* qkv = pkb::kept_memory<T>(4 * tokens * width);
    T* context = qkv + 3 * tokens * width;
    pkb::gemm::linear<T>(of(hidden_states), of(w_qkv), qkv, tokens, 3 * width, H, stream);
    const bool is_causal = causal && comm.world_size * hidden_states.size(1) > 1;
    attend<T>(qkv, context, tokens, int(num_heads), int(width / num_heads), comm, is_causal);
    pkb::gemm::linear<T>(context, of(w_o), of(out), tokens, D_out, width, stream);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
