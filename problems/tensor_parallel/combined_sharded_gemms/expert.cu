// CombinedShardedGemms: every rank computes its own rows alone, and gathers just these rows while it multiplies them.
//
// The baseline gathers all of X, computes all rows of the hidden layer, and sums blocks of which all but one are zero:
// W times the work of the first layer and two collectives of its whole size. Here spare warps of the first product push
// to each peer the rows that it needs of this rank's columns, m h elements, while the tensor cores work
// (pkb/gemm_gather.h); every tile begins with the own columns. The activation is applied to sums in registers
// (pkb/gemm_change.h), and a second product without any exchange follows on the stream. Flags are all the synchronisation:
// nobody touches a peer's arguments or output.
//
// Bound: arithmetic, 2 m F (H + H2) operations a rank; the link carries (W - 1) m h elements beside them.
//
// Left on the table: the hidden rows are written and read again; the second product begins when the first has ended,
// though its first tiles could fill the last wave. Products of float32 run on CUDA cores.
#include "pkb/gemm_change.h"
#include "pkb/gemm_gather.h"
#include "pkb/gemm_linear.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256;

struct Silu {
  __device__ __forceinline__ float operator()(int64_t, int64_t, float x) const {
    return __fdividef(x, 1.0f + __expf(-x));
  }
};

template <class T>
struct Layers {
  const T *x, *w1, *w2;  // columns of all rows, (ranks * rows, shard), then (width, inner) and (inner, outer)
  T *hidden, *out;       // (rows, inner) and (rows, outer)
  int64_t rows, shard, inner, outer;
};

template <class T>
__global__ void __launch_bounds__(kThreads) activate(T* hidden, int64_t elements) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < elements) hidden[i] = T(Silu()(0, 0, pkb::to_float(hidden[i])));
}

template <class T>
void on_cuda_cores(const Layers<T>& g, const pkb::Comm& comm) {
  pkb::gemm::multiply_gathered_simt(g.x, g.rows, g.shard, g.rows * g.shard, g.w1, g.inner, g.hidden, comm);
  const int64_t elements = g.rows * g.inner;
  activate<<<unsigned((elements + kThreads - 1) / kThreads), kThreads, 0, comm.cuda_stream()>>>(g.hidden, elements);
  PKB_CUDA_LAUNCHED();
  const auto product = pkb::gemm::whole_product<T>(g.hidden, g.w2, g.out, g.rows, g.outer, g.inner);
  pkb::gemm::launch_simt(product, comm.cuda_stream());
}

template <class T, class Shape>
void multiply_in(const Layers<T>& g, const pkb::Comm& comm) {
  pkb::gemm::multiply_gathered<T, Shape>(
      g.x, g.rows, g.shard, g.rows * g.shard, g.w1, g.inner, g.hidden, comm, [&](const auto& hooks) {
        using Hooks = std::decay_t<decltype(hooks)>;
        return pkb::gemm::Changed<Hooks, Silu>(hooks, Silu(), g.rows, g.inner);
      });
}

template <class T, class Shape>
void multiply_out(const Layers<T>& g, cudaStream_t stream) {
  pkb::gemm::Product product = pkb::gemm::tiles<Shape>(g.rows, g.outer, g.inner);
  product.a[0] = pkb::gemm::operand_map<T>(g.hidden, g.rows, g.inner, g.inner, pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(g.w2, g.inner, g.outer, g.outer, pkb::gemm::kBlockK);
  product.out[0] = pkb::gemm::operand_map<T>(g.out, g.rows, g.outer, g.outer, pkb::gemm::kStoreRows);
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Plain(), stream);
}

template <class T>
void on_tensor_cores(const Layers<T>& g, const pkb::Comm& comm) {
  using pkb::gemm::Deep;
  using pkb::gemm::Small;
  if (pkb::gemm::is_large(g.rows, g.inner)) multiply_in<T, Deep>(g, comm);
  else multiply_in<T, Small>(g, comm);
  if (pkb::gemm::is_large(g.rows, g.outer)) multiply_out<T, Deep>(g, comm.cuda_stream());
  else multiply_out<T, Small>(g, comm.cuda_stream());
}

}  // namespace

void solution(TensorView x_local, TensorView W1, TensorView W2, TensorView y_local, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(x_local.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& x) { return static_cast<T*>(x.data_ptr()); };
    Layers<T> g{of(x_local), of(W1), of(W2), nullptr, of(y_local)};
    g.rows = y_local.size(0);
    g.shard = x_local.size(1);
    g.inner = W1.size(1);
    g.outer = y_local.size(1);
    g.hidden = pkb::kept_memory<T>(g.rows * g.inner);
    if constexpr (sizeof(T) == 2) {
      using pkb::gemm::fits;
      if (fits(g.shard, g.inner, comm.world_size) && fits(g.inner, g.outer, 1)) return on_tensor_cores(g, comm);
    }
    on_cuda_cores(g, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
