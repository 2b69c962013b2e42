// FSDPTensorParallel: pieces of the weights come in once, beside products that need none of them yet, and are multiplied
// where they lie: no weight is ever concatenated.
//
// What moves: a rank fetches the W1, W2 and W3 pieces of its FSDP group into scratch: large ones by copy engines, in the
// order of their use, so that W2 arrives beside x W1 and W3 beside x W2; small ones by one kernel, which also waits for
// the ranks' beginning. A piece of W1 or W2 is rows of the whole weight, that is, a segment of the sum that a product
// forms on the tensor cores (pkb/gemm_sm90.h); a piece of W3 is columns, and a product of its own. The gate is stored
// once; the product x W2 is multiplied by its silu in registers and stored over it. Partial outputs of a tensor-parallel
// group are added up in parts, and each sum is stored to all outputs. A barrier stands before the first access to peers,
// between partial outputs and sums, and at the end.
//
// Bound: arithmetic, 6 Bf D Ft operations a rank.
//
// Left on the table: the first pieces come in before anything is multiplied, though this rank's own segment could be;
// partial outputs are added up after the last product, not tile by tile beside it (pkb/gemm_reduce.h).
#include <algorithm>
#include <array>

#include "pkb/gemm_change.h"
#include "pkb/gemm_simt.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using pkb::gemm::Product;
using tvm::ffi::TensorView;

namespace {

using T = __nv_bfloat16;
constexpr int kThreads = pkb::kTransferThreads;

// Everything of a call. Ranks of an FSDP group are n_tp apart, those of a tensor-parallel group lie side by side.
struct Layer {
  const T* x;             // (rows, width)
  const T* pieces[3];     // this rank's of W1 and W2 (depth, inner), and of W3 (inner, depth)
  T* gathered[3];         // in scratch: room for the whole group's, one after another; this rank's stays empty
  T* hidden;              // in scratch: (rows, inner), the gate and then the product of both
  T* partial;             // (rows, width): the output, or in scratch where a group adds up
  T* out;
  int64_t rows, width, inner, depth;
  int tp, fsdp, tp_rank, fsdp_rank;

  __host__ __device__ int64_t piece() const { return depth * inner; }
  __host__ __device__ int rank_of(int j) const { return j * tp + tp_rank; }
  // Where the j-th piece of a weight lies after it has come in.
  const T* piece_of(int weight, int j) const {
    return j == fsdp_rank ? pieces[weight] : gathered[weight] + j * piece();
  }
};

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// ---- weights ----

// Fetches all pieces from ranks whose call has begun.
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    fetch_pieces(const __grid_constant__ Layer layer, const __grid_constant__ pkb::Device comm) {
  comm.signal_begun();
  comm.wait_all_begun();
  for (int k = 1; k < layer.fsdp; ++k) {
    const int j = (layer.fsdp_rank + k) % layer.fsdp;
    for (int weight = 0; weight < 3; ++weight) {
      const T* from = comm.peer(layer.pieces[weight], layer.rank_of(j));
      pkb::copy(reinterpret_cast<char*>(layer.gathered[weight] + j * layer.piece()),
                reinterpret_cast<const char*>(from), layer.piece() * sizeof(T), blockIdx.x, gridDim.x);
    }
  }
}

// Enqueues the copies of a weight's pieces after one another beside the call's stream, weight by weight, and lets that
// wait for a weight where it is used.
class Copies {
 public:
  void begin(const Layer& layer, const pkb::Comm& comm) const {
    PKB_CUDA(cudaEventRecord(begun_, comm.cuda_stream()));
    PKB_CUDA(cudaStreamWaitEvent(stream_, begun_));
    for (int weight = 0; weight < 3; ++weight) {
      for (int k = 1; k < layer.fsdp; ++k) {
        const int j = (layer.fsdp_rank + k) % layer.fsdp;
        PKB_CUDA(cudaMemcpyAsync(layer.gathered[weight] + j * layer.piece(),
                                 comm.peer(layer.pieces[weight], layer.rank_of(j)), layer.piece() * sizeof(T),
                                 cudaMemcpyDeviceToDevice, stream_));
      }
      PKB_CUDA(cudaEventRecord(arrived_[weight], stream_));
    }
  }
  void await(int weight, const pkb::Comm& comm) const {
    PKB_CUDA(cudaStreamWaitEvent(comm.cuda_stream(), arrived_[weight]));
  }
  static const Copies& get() {
    static const Copies copies;
    return copies;
  }

 private:
  Copies() {
    PKB_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    PKB_CUDA(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming));
    for (cudaEvent_t& event : arrived_) PKB_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  cudaStream_t stream_;
  cudaEvent_t begun_;
  std::array<cudaEvent_t, 3> arrived_;
};

// ---- products on tensor cores ----

// Multiplies sums by the silu of the gate, over which they are stored.
struct Gated : pkb::gemm::Plain {
  const T* gate;
  int64_t rows, cols;

  template <class Element, class Shape>
  __device__ __forceinline__ bool finish(const pkb::gemm::Tile& tile, float (&sums)[Shape::kSums],
                                         const pkb::gemm::Block& block, int consumer, uint32_t) const {
    pkb::gemm::visit_sums<Shape>(tile, block, consumer, [&](int i, int64_t row, int64_t col) {
      if (row >= rows || col >= cols) return;
      const auto two = *reinterpret_cast<const __nv_bfloat162*>(gate + row * cols + col);
      sums[i] *= silu(__low2float(two));
      sums[i + 1] *= silu(__high2float(two));
    });
    pkb::gemm::fence_async_global();  // before the copy engine stores over the gate
    return true;
  }
};

// x times W1 or W2, into the hidden matrix.
template <class Shape, class Hooks>
void multiply_in(const Layer& layer, int weight, const Hooks& hooks, cudaStream_t stream) {
  Product product = pkb::gemm::tiles<Shape>(layer.rows, layer.inner, layer.depth);
  product.segments = layer.fsdp;
  for (int j = 0; j < layer.fsdp; ++j) {
    const T* columns = layer.x + j * layer.depth;
    product.a[j] = pkb::gemm::operand_map(columns, layer.rows, layer.depth, layer.width, pkb::gemm::kBlockM);
    product.b[j] =
        pkb::gemm::operand_map(layer.piece_of(weight, j), layer.depth, layer.inner, layer.inner, pkb::gemm::kBlockK);
  }
  product.out[0] =
      pkb::gemm::operand_map<T>(layer.hidden, layer.rows, layer.inner, layer.inner, pkb::gemm::kStoreRows);
  pkb::gemm::launch<T, Shape>(product, hooks, stream);
}

// The hidden matrix times the j-th piece of W3, into its columns of the output.
template <class Shape>
void multiply_out(const Layer& layer, int j, cudaStream_t stream) {
  Product product = pkb::gemm::tiles<Shape>(layer.rows, layer.depth, layer.inner);
  product.a[0] =
      pkb::gemm::operand_map<T>(layer.hidden, layer.rows, layer.inner, layer.inner, pkb::gemm::kBlockM);
  product.b[0] =
      pkb::gemm::operand_map(layer.piece_of(2, j), layer.inner, layer.depth, layer.depth, pkb::gemm::kBlockK);
  product.out[0] = pkb::gemm::operand_map<T>(layer.partial + j * layer.depth, layer.rows, layer.depth, layer.width,
                                             pkb::gemm::kStoreRows);
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Plain(), stream);
}

template <class Await>
void on_tensor_cores(const Layer& layer, const Await& await, cudaStream_t stream) {
  using pkb::gemm::Deep;
  using pkb::gemm::Small;
  const Gated gated{{}, layer.hidden, layer.rows, layer.inner};
  const bool is_large = pkb::gemm::is_large(layer.rows, layer.inner);
  await(0);
  if (is_large) multiply_in<Deep>(layer, 0, pkb::gemm::Plain(), stream);
  else multiply_in<Small>(layer, 0, pkb::gemm::Plain(), stream);
  await(1);
  if (is_large) multiply_in<Deep>(layer, 1, gated, stream);
  else multiply_in<Small>(layer, 1, gated, stream);
  await(2);
  for (int k = 0; k < layer.fsdp; ++k) {
    const int j = (layer.fsdp_rank + k) % layer.fsdp;
    if (pkb::gemm::is_large(layer.rows, layer.depth)) multiply_out<Deep>(layer, j, stream);
    else multiply_out<Small>(layer, j, stream);
  }
}

// ---- products on CUDA cores ----

__global__ void __launch_bounds__(kThreads) apply_gate(T* hidden, const T* up, int64_t elements) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < elements) hidden[i] = T(silu(float(hidden[i])) * float(up[i]));
}

template <class Await>
void on_cuda_cores(const Layer& layer, T* up, const Await& await, cudaStream_t stream) {
  for (int weight = 0; weight < 2; ++weight) {
    pkb::gemm::SimtProduct<T> product;
    product.segments = layer.fsdp;
    for (int j = 0; j < layer.fsdp; ++j) {
      product.a[j] = layer.x + j * layer.depth;
      product.b[j] = layer.piece_of(weight, j);
    }
    product.out[0] = weight ? up : layer.hidden;
    product.rows = layer.rows;
    product.depth = layer.depth;
    product.cols = product.b_stride = product.out_stride = layer.inner;
    product.a_stride = layer.width;
    await(weight);
    pkb::gemm::launch_simt(product, stream);
  }
  const int64_t elements = layer.rows * layer.inner;
  apply_gate<<<unsigned((elements + kThreads - 1) / kThreads), kThreads, 0, stream>>>(layer.hidden, up, elements);
  PKB_CUDA_LAUNCHED();
  await(2);
  for (int j = 0; j < layer.fsdp; ++j) {
    pkb::gemm::SimtProduct<T> product;
    product.a[0] = layer.hidden;
    product.b[0] = layer.piece_of(2, j);
    product.out[0] = layer.partial + j * layer.depth;
    product.rows = layer.rows;
    product.depth = product.a_stride = layer.inner;
    product.cols = product.b_stride = layer.depth;
    product.out_stride = layer.width;
    pkb::gemm::launch_simt(product, stream);
  }
}

// ---- outputs ----

// Adds up this rank's part of the partial outputs of its tensor-parallel group and stores the sums to all of it.
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    add_partial(const __grid_constant__ Layer layer, const __grid_constant__ pkb::Device comm) {
  const int64_t lines = (layer.rows * layer.width + 63) / 64, total = layer.rows * layer.width;
  const int64_t begin = min(total, lines * layer.tp_rank / layer.tp * 64);
  const int64_t end = min(total, lines * (layer.tp_rank + 1) / layer.tp * 64);
  const int first = layer.fsdp_rank * layer.tp;
  pkb::add_up<T>(
      uint64_t(end - begin), layer.tp, [&](int i) { return comm.peer<const T>(layer.partial, first + i) + begin; },
      layer.tp, [&](int i) { return comm.peer(layer.out, first + i) + begin; }, blockIdx.x, gridDim.x);
}

// Takes room for so many elements from scratch; what the ranks take lies at the same offsets where they take the same.
struct Room {
  const pkb::Comm& comm;
  uint64_t used = 0;
  T* take(int64_t elements) {
    const uint64_t at = used;
    used += (uint64_t(elements) * sizeof(T) + 255) / 256 * 256;
    if (used > comm.scratch_bytes) {
      TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold " << used;
    }
    return comm.scratch<T>(at);
  }
};

}  // namespace

void solution(TensorView x_local, TensorView W1_shard, TensorView W2_shard, TensorView W3_shard, int64_t n_tp,
              int64_t n_fsdp, TensorView out, pkb::Comm comm) {
  if (x_local.dtype() != pkb::kDtype<T>) TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << x_local.dtype();
  if (n_tp * n_fsdp != comm.world_size) {
    TVM_FFI_THROW(ValueError) << n_tp << " x " << n_fsdp << " ranks are not " << comm.world_size;
  }
  const auto of = [](const TensorView& tensor) { return static_cast<const T*>(tensor.data_ptr()); };
  Layer layer{of(x_local), {of(W1_shard), of(W2_shard), of(W3_shard)}};
  layer.out = static_cast<T*>(out.data_ptr());
  layer.rows = x_local.size(0);
  layer.width = x_local.size(1);
  layer.depth = W1_shard.size(0);
  layer.inner = W1_shard.size(1);
  layer.tp = int(n_tp);
  layer.fsdp = int(n_fsdp);
  layer.tp_rank = comm.rank % layer.tp;
  layer.fsdp_rank = comm.rank / layer.tp;

  Room room{comm};
  for (T*& gathered : layer.gathered) gathered = room.take(layer.fsdp > 1 ? layer.fsdp * layer.piece() : 0);
  layer.hidden = room.take(layer.rows * layer.inner);
  layer.partial = layer.tp > 1 ? room.take(layer.rows * layer.width) : layer.out;

  const uint64_t fetched = 3 * (layer.fsdp - 1) * layer.piece() * sizeof(T);
  const bool by_engines = fetched >= pkb::kCopyEngineBytes;
  if (by_engines) {
    comm.barrier();
    Copies::get().begin(layer, comm);
  } else if (comm.world_size > 1) {
    fetch_pieces<<<pkb::blocks_for(fetched, pkb::kCopyTile), kThreads, 0, comm.cuda_stream()>>>(layer, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  const auto await = [&](int weight) {
    if (by_engines) Copies::get().await(weight, comm);
  };
  if (pkb::gemm::fits(layer.depth, layer.inner, layer.fsdp)) {
    on_tensor_cores(layer, await, comm.cuda_stream());
  } else {
    on_cuda_cores(layer, room.take(layer.rows * layer.inner), await, comm.cuda_stream());
  }
  if (layer.tp > 1) {
    comm.barrier();
    const unsigned blocks = pkb::blocks_for(layer.rows * layer.width * sizeof(T) / layer.tp, pkb::kSumTile);
    add_partial<<<blocks, kThreads, 0, comm.cuda_stream()>>>(layer, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  if (comm.world_size > 1) comm.barrier();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
