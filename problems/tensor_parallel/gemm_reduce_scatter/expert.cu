// GemmReduceScatter: each rank pushes its partial products, tile by tile, to their owner, which adds them to its own.
//
// Tiles of the other ranks' rows come first and leave for scratch of their owner while the tensor cores work on; this
// rank's rows come last, when the others' parts have long arrived, and add them in registers (pkb/gemm_reduce.h). So no
// pass over partial products is left at the end, and this rank's own is never rounded. A flag for each part is all the
// synchronisation: nobody touches a peer's arguments or outputs. (W - 1) m N elements leave each rank. Bound:
// arithmetic, 2 M k N operations a rank.
#include "pkb/gemm_reduce.h"
#include "pkb/gemm_simt.h"
#include "pkb/symm.h"

using pkb::gemm::Product;
using tvm::ffi::TensorView;

namespace {

template <class T, class Shape>
void on_tensor_cores(const TensorView& A_local, const TensorView& B_local, const TensorView& C_local,
                     const pkb::Comm& comm) {
  using Reduce = pkb::gemm::Reduce<Shape>;
  const int64_t M = A_local.size(0), k = A_local.size(1), N = B_local.size(1), m = C_local.size(0);
  const int W = comm.world_size;
  Product product = pkb::gemm::tiles<Shape>(m, N, k);
  product.out[0] = pkb::gemm::operand_map<T>(static_cast<T*>(C_local.data_ptr()), m, N, N, pkb::gemm::kStoreRows);

  if (Reduce::suits(comm, int64_t(W) * product.tiles)) {
    product.a[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(A_local.data_ptr()), M, k, k, pkb::gemm::kBlockM);
    product.b[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(B_local.data_ptr()), k, N, N, pkb::gemm::kBlockK);
    product.row_tiles *= W;
    product.tiles *= W;
    return pkb::gemm::launch<T, Shape>(product, Reduce(comm, product, int(m)), comm.cuda_stream());
  }
  // No room for partial products: this rank's rows of all ranks' A, times all ranks' B, from where they lie.
  product.segments = W;
  for (int segment = 0; segment < W; ++segment) {
    const int r = (comm.rank + segment) % W;
    const T* a = comm.peer<const T>(A_local, r) + comm.rank * m * k;
    product.a[segment] = pkb::gemm::operand_map<T>(a, m, k, k, pkb::gemm::kBlockM);
    product.b[segment] = pkb::gemm::operand_map<T>(comm.peer<const T>(B_local, r), k, N, N, pkb::gemm::kBlockK);
  }
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Peers(comm), comm.cuda_stream());
}

template <class T>
void on_cuda_cores(const TensorView& A_local, const TensorView& B_local, const TensorView& C_local,
                   const pkb::Comm& comm) {
  pkb::gemm::SimtProduct<T> product;
  product.rows = C_local.size(0);
  product.depth = product.a_stride = A_local.size(1);
  product.cols = product.b_stride = product.out_stride = B_local.size(1);
  product.segments = comm.world_size;
  for (int r = 0; r < comm.world_size; ++r) {
    product.a[r] = comm.peer<const T>(A_local, r) + comm.rank * product.rows * product.depth;
    product.b[r] = comm.peer<const T>(B_local, r);
  }
  product.out[0] = static_cast<T*>(C_local.data_ptr());
  pkb::gemm::launch_simt(product, comm);
}

template <class T>
void half_width(const TensorView& A_local, const TensorView& B_local, const TensorView& C_local,
                const pkb::Comm& comm) {
  if (!pkb::gemm::fits(A_local.size(1), B_local.size(1), comm.world_size)) {
    return on_cuda_cores<T>(A_local, B_local, C_local, comm);
  }
  if (pkb::gemm::is_large(A_local.size(0), B_local.size(1))) {
    return on_tensor_cores<T, pkb::gemm::Fluid>(A_local, B_local, C_local, comm);
  }
  on_tensor_cores<T, pkb::gemm::Small>(A_local, B_local, C_local, comm);
}

}  // namespace

void solution(TensorView A_local, TensorView B_local, TensorView C_local, pkb::Comm comm) {
  const DLDataType dtype = A_local.dtype();
  if (A_local.size(0) != comm.world_size * C_local.size(0) || A_local.size(1) != B_local.size(0) ||
      B_local.size(1) != C_local.size(1)) {
    TVM_FFI_THROW(ValueError) << "shapes of A_local " << A_local.shape() << ", B_local " << B_local.shape()
                              << " and C_local " << C_local.shape() << " do not fit";
  }
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return half_width<__nv_bfloat16>(A_local, B_local, C_local, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return half_width<__half>(A_local, B_local, C_local, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return on_cuda_cores<float>(A_local, B_local, C_local, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16 or float32, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
