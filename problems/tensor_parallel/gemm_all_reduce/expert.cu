// GemmAllReduce: every tile of the sum has an owner, which gets all partial products of it and stores it on all ranks.
//
// Others' tiles come first and leave for scratch of their owner while the tensor cores work on; the own ones come last,
// when the others' parts have arrived, add them in registers (pkb/gemm_reduce.h) and go from shared memory into all
// ranks' outputs. A flag for each part says that it has come, and so that its sender's call has begun; at the end equal
// blocks of all ranks meet. 2 (W - 1) / W M N elements leave each rank, half of them in the last W-th of the call.
// Bound: arithmetic, 2 M N K operations a rank.
#include "pkb/gemm_reduce.h"
#include "pkb/gemm_simt.h"
#include "pkb/symm.h"

using pkb::gemm::Product;
using tvm::ffi::TensorView;

namespace {

// Rows that this rank computes alone where nothing is exchanged.
struct Rows {
  int64_t begin, count;
  Rows(int64_t M, const pkb::Comm& comm)
      : begin(M * comm.rank / comm.world_size), count(M * (comm.rank + 1) / comm.world_size - begin) {}
};

template <class T, class Shape>
void on_tensor_cores(const TensorView& A_local, const TensorView& B_local, const TensorView& out,
                     const pkb::Comm& comm) {
  using Reduce = pkb::gemm::Reduce<Shape>;
  const int64_t M = A_local.size(0), K = A_local.size(1), N = B_local.size(1);
  const int W = comm.world_size;
  Product product = pkb::gemm::tiles<Shape>(M, N, K);
  const bool exchanges = Reduce::suits(comm, product.tiles);
  const Rows rows(M, comm);
  if (!exchanges) product = pkb::gemm::tiles<Shape>(rows.count, N, K);

  product.destinations = W;
  for (int to = 0; to < W; ++to) {
    T* from_row = comm.peer<T>(out, (comm.rank + to + 1) % W) + (exchanges ? 0 : rows.begin * N);
    product.out[to] = pkb::gemm::operand_map<T>(from_row, exchanges ? M : rows.count, N, N, pkb::gemm::kStoreRows);
  }
  if (exchanges) {
    product.a[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(A_local.data_ptr()), M, K, K, pkb::gemm::kBlockM);
    product.b[0] = pkb::gemm::operand_map<T>(static_cast<const T*>(B_local.data_ptr()), K, N, N, pkb::gemm::kBlockK);
    return pkb::gemm::launch<T, Shape>(product, Reduce(comm, product, 0), comm.cuda_stream());
  }
  // No room for partial products, or a single tile: some rows of all ranks' A, times all ranks' B, from where they lie.
  product.segments = W;
  for (int segment = 0; segment < W; ++segment) {
    const int r = (comm.rank + segment) % W;
    const T* a = comm.peer<const T>(A_local, r) + rows.begin * K;
    product.a[segment] = pkb::gemm::operand_map<T>(a, rows.count, K, K, pkb::gemm::kBlockM);
    product.b[segment] = pkb::gemm::operand_map<T>(comm.peer<const T>(B_local, r), K, N, N, pkb::gemm::kBlockK);
  }
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Peers(comm), comm.cuda_stream());
}

template <class T>
void on_cuda_cores(const TensorView& A_local, const TensorView& B_local, const TensorView& out,
                   const pkb::Comm& comm) {
  const Rows rows(A_local.size(0), comm);
  pkb::gemm::SimtProduct<T> product;
  product.rows = rows.count;
  product.depth = product.a_stride = A_local.size(1);
  product.cols = product.b_stride = product.out_stride = B_local.size(1);
  product.segments = product.destinations = comm.world_size;
  for (int r = 0; r < comm.world_size; ++r) {
    product.a[r] = comm.peer<const T>(A_local, r) + rows.begin * product.depth;
    product.b[r] = comm.peer<const T>(B_local, r);
    product.out[r] = comm.peer<T>(out, r) + rows.begin * product.cols;
  }
  pkb::gemm::launch_simt(product, comm);
}

template <class T>
void half_width(const TensorView& A_local, const TensorView& B_local, const TensorView& out, const pkb::Comm& comm) {
  const int64_t M = A_local.size(0), K = A_local.size(1), N = B_local.size(1);
  if (!pkb::gemm::fits(K, N, comm.world_size) || M < comm.world_size) {
    return on_cuda_cores<T>(A_local, B_local, out, comm);
  }
  if (pkb::gemm::is_large(M, N)) {
    return on_tensor_cores<T, pkb::gemm::Fluid>(A_local, B_local, out, comm);
  }
  on_tensor_cores<T, pkb::gemm::Small>(A_local, B_local, out, comm);
}

}  // namespace

void solution(TensorView A_local, TensorView B_local, TensorView out, pkb::Comm comm) {
  const DLDataType dtype = A_local.dtype();
  if (A_local.size(0) != out.size(0) || A_local.size(1) != B_local.size(0) || B_local.size(1) != out.size(1)) {
    TVM_FFI_THROW(ValueError) << "shapes of A_local " << A_local.shape() << ", B_local " << B_local.shape()
                              << " and out " << out.shape() << " do not fit";
  }
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return half_width<__nv_bfloat16>(A_local, B_local, out, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return half_width<__half>(A_local, B_local, out, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return on_cuda_cores<float>(A_local, B_local, out, comm);
  if (dtype == DLDataType{kDLFloat, 64, 1}) return on_cuda_cores<double>(A_local, B_local, out, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16, float32 or float64, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
