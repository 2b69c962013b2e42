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
  if (hooks.of_group < kFewHeads || hooks.of_group > pkb::attention::kTileRows) {
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
