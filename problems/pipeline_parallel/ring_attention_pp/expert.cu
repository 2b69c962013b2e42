// RingAttentionPP: the last product of a stage stores its tiles to the next stage while it multiplies others.
//
// What moves: the product with the weights of queries, keys and values takes these as they lie, transposed
// (pkb/gemm_sm90.h); in a stage, heads go to the ranks that own them and results come back from registers of flash
// attention (pkb/sequence_attention_cuda.h); and every tile of the last product goes from shared memory into the output
// and into the next stage's scratch. That is used in two halves by turns: a stage may be a call ahead of the next one.
// One kernel before all others waits for what the call needs: the stage before has stored, ranks of the own stage have
// begun, and the next stage has begun the call before.
//
// Bound: arithmetic, 2 tokens h d (3 D + D_out) + 4 h d pairs operations a rank and stage; stages follow each other.
//
// Left on the table: a stage begins when the whole output of the one before is there; rows could follow each other
// through the stages, and ranks of idle stages could help. Float32 runs on CUDA cores, with transposed weights.
#include <cmath>

#include "pkb/gemm_simt.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"
#include "pkb/sequence_attention_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

constexpr int kTile = 32, kTileRows = 8;

// Waits until this rank may read what the rank before has stored, if any, and write to scratch of others: of those of its
// own stage, since their last call has ended, and of the next one's half that was read two calls ago. Word r of the
// signal pad says that rank r has stored.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    enter(int before, int next, int64_t stage_group, const __grid_constant__ pkb::Device comm) {
  comm.signal_begun();
  if (threadIdx.x == 0 && next >= 0) comm.wait_begun(next, 1);
  comm.wait_all_begun(0, stage_group);
  if (threadIdx.x == 0 && before >= 0) comm.wait(before);
}

// out = a b^T, with a (rows, depth) and b (cols, depth), and in `also` too, if given.
template <class T>
struct Product {
  const T *a, *b;
  T *out, *also;
  int64_t rows, cols, depth;
};

template <class Shape, class T>
void launch_product(const Product<T>& g, cudaStream_t stream) {
  namespace gemm = pkb::gemm;
  gemm::Product product = gemm::tiles<Shape>(g.rows, g.cols, g.depth);
  product.a[0] = gemm::operand_map<T>(g.a, g.rows, g.depth, g.depth, gemm::kBlockM);
  product.b[0] = gemm::operand_map<T>(g.b, g.cols, g.depth, g.depth, gemm::kBlockK);
  product.out[0] = gemm::operand_map<T>(g.out, g.rows, g.cols, g.cols, gemm::kStoreRows);
  if (g.also) {
    product.out[1] = gemm::operand_map<T>(g.also, g.rows, g.cols, g.cols, gemm::kStoreRows);
    product.destinations = 2;
  }
  gemm::launch<T, Shape>(product, gemm::Plain(), stream);
}

template <class T>
__global__ void __launch_bounds__(kTile * kTileRows) transpose(const T* from, T* to, int64_t rows, int64_t cols) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t row0 = int64_t(blockIdx.y) * kTile, col0 = int64_t(blockIdx.x) * kTile;
  const int x = int(threadIdx.x) % kTile, y = int(threadIdx.x) / kTile;
  for (int i = y; i < kTile; i += kTileRows) {
    if (row0 + i < rows && col0 + x < cols) tile[i][x] = from[(row0 + i) * cols + col0 + x];
  }
  __syncthreads();
  for (int i = y; i < kTile; i += kTileRows) {
    if (row0 + x < rows && col0 + i < cols) to[(col0 + i) * rows + row0 + x] = tile[x][i];
  }
}

template <class T>
void multiply(const Product<T>& g, T* transposed, cudaStream_t stream) {
  namespace gemm = pkb::gemm;
  if constexpr (sizeof(T) == 2) {
    if (gemm::fits(g.depth, g.cols, 1)) {
      if (gemm::is_large(g.rows, g.cols)) launch_product<gemm::TransposedB<gemm::Deep>>(g, stream);
      else launch_product<gemm::TransposedB<gemm::Small>>(g, stream);
      return;
    }
  }
  const dim3 grid(unsigned(gemm::divide_up(g.depth, kTile)), unsigned(gemm::divide_up(g.cols, kTile)));
  transpose<<<grid, kTile * kTileRows, 0, stream>>>(g.b, transposed, g.cols, g.depth);
  PKB_CUDA_LAUNCHED();
  gemm::SimtProduct<T> product;
  product.a[0] = g.a;
  product.b[0] = transposed;
  product.out[0] = g.out;
  if (g.also) product.out[product.destinations++] = g.also;
  product.rows = g.rows;
  product.depth = product.a_stride = g.depth;
  product.cols = product.b_stride = product.out_stride = g.cols;
  gemm::launch_simt(product, stream);
}

template <class T>
void run(const TensorView& hidden_states, const TensorView& w_qkv, const TensorView& w_o,
         pkb::SequenceAttention<T> work, int64_t pp_group, const TensorView& out, const pkb::Comm& comm) {
  const cudaStream_t stream = comm.cuda_stream();
  const int64_t tokens = int64_t(work.samples) * work.positions, D = hidden_states.size(2), D_out = out.size(2);
  const int64_t width = int64_t(work.heads) * work.head, widths = 3 * width;
  pkb::Group stages{1, 0, {comm.rank}};
  if (pp_group >= 0) stages = comm.group(pp_group);
  const bool has_next = stages.rank + 1 < stages.size, has_before = stages.rank > 0;
  const int next = has_next ? stages.ranks[stages.rank + 1] : -1;
  const int before = has_before ? stages.ranks[stages.rank - 1] : -1;

  // Quarters of scratch: hidden states of even and of odd calls; then heads that are gathered, and the context of tokens.
  // They begin at the same places whatever the shapes of a call are.
  const uint64_t quarter = comm.scratch_bytes / 1024 * 256, hidden = tokens * std::max(D, D_out) * sizeof(T);
  const uint64_t gathered = 3 * work.gathered_bytes(comm.group(work.group).size);
  if (hidden > quarter || gathered + tokens * width * sizeof(T) > 2 * quarter) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold " << tokens << " tokens";
  }
  work.scratch_offset = 2 * quarter;
  T* context = comm.scratch<T>(2 * quarter + gathered);
  T* qkv = pkb::kept_memory<T>((tokens * widths + 127) / 128 * 128 + std::max(widths * D, width * D_out));
  T* transposed = qkv + (tokens * widths + 127) / 128 * 128;

  T* received = comm.scratch<T>(comm.epoch % 2 * quarter);
  if (comm.world_size > 1) {
    constexpr int kThreads = 32;
    enter<kThreads><<<1, kThreads, 0, stream>>>(before, next, work.group, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  const T* x = has_before ? received : static_cast<const T*>(hidden_states.data_ptr());
  multiply<T>({x, static_cast<const T*>(w_qkv.data_ptr()), qkv, nullptr, tokens, widths, D}, transposed, stream);

  work.q = qkv;
  work.k = qkv + width;
  work.v = qkv + 2 * width;
  work.stride = widths;
  work.out = context;
  work.launch(comm);

  T* to_next = has_next ? comm.peer(received, next) : nullptr;
  multiply<T>({context, static_cast<const T*>(w_o.data_ptr()), static_cast<T*>(out.data_ptr()), to_next, tokens, D_out,
               width},
              transposed, stream);
  if (has_next) comm.signal(comm.rank, next);
}

}  // namespace

void solution(TensorView hidden_states, TensorView w_qkv, TensorView w_o, int64_t num_heads,
              Optional<double> softmax_scale, bool causal, int64_t cp_group, int64_t pp_group, TensorView out,
              pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(hidden_states.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (hidden_states.numel() == 0 || out.numel() == 0) return;
    pkb::SequenceAttention<T> work{};
    work.samples = int(hidden_states.size(0));
    work.positions = int(hidden_states.size(1));
    work.heads = int(num_heads);
    work.head = int(w_qkv.size(0) / 3 / num_heads);
    work.scale = float(softmax_scale.value_or(1.0 / std::sqrt(double(work.head))));
    work.is_causal = causal;
    work.group = cp_group;
    run<T>(hidden_states, w_qkv, w_o, work, pp_group, out, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
