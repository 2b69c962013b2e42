// GemmAllGather: every tile of this rank's block goes from shared memory straight into all ranks' outputs.
//
// Sums are staged as a whole and stored by tensor maps of the peers' outputs, which clip what lies beyond the block;
// the tensor cores go on with the next tile meanwhile. The first tile is computed while word comes from the peers that
// their calls have begun; at the end equal blocks of all ranks meet (pkb/gemm_peers.h). Bound: the link out of a rank,
// (W - 1) M n elements, where K is short; else arithmetic.
#include "pkb/gemm_peers.h"
#include "pkb/gemm_simt.h"
#include "pkb/symm.h"

using pkb::gemm::Product;
using tvm::ffi::TensorView;

namespace {

// Where this rank's block begins in the output of the rank `step` places after it: all ranks begin with another one.
template <class T>
T* block_of(const TensorView& C, int64_t n, int step, const pkb::Comm& comm) {
  return comm.peer<T>(C, (comm.rank + step) % comm.world_size) + comm.rank * n;
}

template <class T, class Shape>
void on_tensor_cores(const TensorView& A, const TensorView& B, const TensorView& C, const pkb::Comm& comm) {
  const int64_t M = A.size(0), K = A.size(1), n = B.size(1), N = C.size(1);
  Product product = pkb::gemm::tiles<Shape>(M, n, K);
  product.destinations = comm.world_size;
  product.a[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(A.data_ptr()), M, K, K, pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(B.data_ptr()), K, n, n, pkb::gemm::kBlockK);
  for (int to = 0; to < comm.world_size; ++to) {
    T* block = block_of<T>(C, n, to + 1, comm);
    product.out[to] = pkb::gemm::operand_map<T>(block, M, n, N, pkb::gemm::kStoreRows);
  }
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Peers(comm), comm.cuda_stream());
}

template <class T>
void on_cuda_cores(const TensorView& A, const TensorView& B, const TensorView& C, const pkb::Comm& comm) {
  pkb::gemm::SimtProduct<T> product;
  product.rows = A.size(0);
  product.depth = product.a_stride = A.size(1);
  product.cols = product.b_stride = B.size(1);
  product.out_stride = C.size(1);
  product.a[0] = static_cast<const T*>(A.data_ptr());
  product.b[0] = static_cast<const T*>(B.data_ptr());
  product.destinations = comm.world_size;
  for (int to = 0; to < comm.world_size; ++to) product.out[to] = block_of<T>(C, product.cols, to + 1, comm);
  pkb::gemm::launch_simt(product, comm);
}

template <class T>
void half_width(const TensorView& A, const TensorView& B, const TensorView& C, const pkb::Comm& comm) {
  if (!pkb::gemm::fits(A.size(1), B.size(1), comm.world_size)) return on_cuda_cores<T>(A, B, C, comm);
  if (pkb::gemm::is_large(A.size(0), B.size(1))) return on_tensor_cores<T, pkb::gemm::Fluid>(A, B, C, comm);
  on_tensor_cores<T, pkb::gemm::Small>(A, B, C, comm);
}

}  // namespace

void solution(TensorView A, TensorView B, TensorView C, pkb::Comm comm) {
  const DLDataType dtype = A.dtype();
  if (A.size(0) != C.size(0) || A.size(1) != B.size(0) || C.size(1) != comm.world_size * B.size(1)) {
    TVM_FFI_THROW(ValueError) << "shapes of A " << A.shape() << ", B " << B.shape() << " and C " << C.shape()
                              << " do not fit";
  }
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return half_width<__nv_bfloat16>(A, B, C, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return half_width<__half>(A, B, C, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return on_cuda_cores<float>(A, B, C, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16 or float32, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
