"""GemmAllGather in CUDA: every rank multiplies, and stores its column block into the outputs of all ranks."""

from __future__ import annotations

from pkb_gym.kernels.family import ORDERS, Choices, Family, Knobs, Pieces
from pkb_gym.kernels.meetings import cuda_meetings

SOLUTION = """
void solution(TensorView A, TensorView B, TensorView C, pkb::Comm comm) {
  $before
  pkb::with_float_type(A.dtype(), [&](auto zero) { multiply<decltype(zero)>(A, B, C, comm); });
  $after
}
"""

TILES = """
constexpr int kTile = $tile;

// c is this rank's column block of its own output; rows of the output are N elements apart.
template <class T>
__global__ void __launch_bounds__(kTile * kTile)
multiply_tiles(const T* a, const T* b, T* c, int64_t M, int64_t n, int64_t N, int64_t K,
               const __grid_constant__ pkb::Device comm) {
  __shared__ pkb::Accumulator<T> a_tile[kTile][kTile], b_tile[kTile][kTile];
  const int W = comm.world_size, x = threadIdx.x, y = threadIdx.y;
  $early
  const int64_t row = blockIdx.y * kTile + y, col = blockIdx.x * kTile + x;
  pkb::Accumulator<T> sum = 0;
  for (int64_t k = 0; k < K; k += kTile) {
    a_tile[y][x] = row < M && k + x < K ? pkb::Accumulator<T>(a[row * K + k + x]) : 0;
    b_tile[y][x] = k + y < K && col < n ? pkb::Accumulator<T>(b[(k + y) * n + col]) : 0;
    __syncthreads();
    $unroll
    for (int j = 0; j < kTile; ++j) sum += a_tile[y][j] * b_tile[j][x];
    __syncthreads();
  }
  $late
  if (row < M && col < n) {
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      comm.peer(c, r)[row * N + col] = T(sum);
    }
  }
}

template <class T>
void multiply(const TensorView& A, const TensorView& B, const TensorView& C, const pkb::Comm& comm) {
  const int64_t M = A.size(0), K = A.size(1), n = B.size(1), N = C.size(1);
  const dim3 grid(unsigned((n + kTile - 1) / kTile), unsigned((M + kTile - 1) / kTile));
  multiply_tiles<T><<<grid, dim3(kTile, kTile), 0, comm.cuda_stream()>>>(
      static_cast<const T*>(A.data_ptr()), static_cast<const T*>(B.data_ptr()),
      static_cast<T*>(C.data_ptr()) + comm.rank * n, M, n, N, K, comm.device());
  PKB_CUDA_LAUNCHED();
}

$solution
"""

LIBRARY = """
template <class T>
void multiply(const TensorView& A, const TensorView& B, const TensorView& C, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t M = A.size(0), K = A.size(1), n = B.size(1), N = C.size(1);
  const T* a = static_cast<const T*>(A.data_ptr());
  const T* b = static_cast<const T*>(B.data_ptr());
  T* c = static_cast<T*>(C.data_ptr()) + comm.rank * n;  // this rank's column block of its own output
  $tensor_cores
  pkb::gemm::SimtProduct<T> product;
  product.rows = M;
  product.cols = product.b_stride = n;
  product.depth = product.a_stride = K;
  product.out_stride = N;
  product.a[0] = a;
  product.b[0] = b;
  product.destinations = W;
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    product.out[i] = comm.peer(c, r);
  }
  pkb::gemm::launch_simt(product, comm.cuda_stream());
}

$solution
"""

TENSOR_CORES = """
if constexpr (sizeof(T) == 2) {
  if (pkb::gemm::fits(K, n, W)) {
    using Shape = pkb::gemm::$shape;
    pkb::gemm::Product product = pkb::gemm::tiles<Shape>(M, n, K);
    product.a[0] = pkb::gemm::operand_map<T>(a, M, K, K, pkb::gemm::kBlockM);
    product.b[0] = pkb::gemm::operand_map<T>(b, K, n, n, pkb::gemm::kBlockK);
    product.destinations = W;
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      product.out[i] = pkb::gemm::operand_map<T>(comm.peer(c, r), M, n, N, pkb::gemm::kStoreRows);
    }
    return pkb::gemm::launch<T, Shape>(product, pkb::gemm::Plain(), comm.cuda_stream());
  }
}
"""

CHOICES: Choices = {
    "kernel": ("tiles of 16", "tiles of 8", "tiles of 32", "tiles of 4", "gemm_simt.h", "Small", "Fluid"),
    "unroll": ("", "#pragma unroll", "#pragma unroll 1", "#pragma unroll 4"),
    "order": ORDERS,
    "signalling": ("host barrier", "begun words"),
    "enter": ("first", "before the stores"),
}


def makes_sense(knobs: Knobs) -> bool:
    """Loops and words that a rank has begun are for own kernels."""
    own = "tiles" in str(knobs["kernel"])
    if not own and (knobs["unroll"] or knobs["signalling"] != "host barrier"):
        return False
    return knobs["enter"] == "first" or knobs["signalling"] == "begun words"


def pieces(knobs: Knobs) -> Pieces:
    """Tiles of its own, or those of a header, on tensor cores where a shape is named."""
    kernel, late = str(knobs["kernel"]), knobs["enter"] == "before the stores"
    meetings = cuda_meetings(knobs["signalling"], "write")
    tiles = kernel.startswith("tiles")
    return {
        "body": TILES if tiles else LIBRARY,
        "solution": SOLUTION,
        "tile": kernel.removeprefix("tiles of "),
        "shape": kernel,
        "tensor_cores": "" if kernel == "gemm_simt.h" else TENSOR_CORES,
        "before": meetings.before,
        "early": "" if late else meetings.enter,
        "late": meetings.enter if late else "",
        "after": meetings.after,
    }


FAMILIES = (Family("GemmAllGather", "cuda", CHOICES, "$body", pieces, makes_sense),)
