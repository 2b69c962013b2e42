"""Sums over ranks r of matrix products A_r B_r: AllGatherGemm, GemmAllReduce, GemmReduceScatter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import BEGUN, DONE, Access, cpp_meet, cuda_meetings
from pkb_gym.kernels.pieces import cpp_dispatch


@dataclass(frozen=True)
class Products:
    """The parts that differ between the problems.

    Attributes:
        problem: Name of the problem.
        names: Names of left factor, right factor and output.
        a: Start of the left factor of rank r.
        b: Start of the right factor of rank r.
        shares: Ways to share out the rows.
        has_double: Whether the problem has float64.
    """

    problem: str
    names: tuple[str, str, str]
    a: str
    b: str
    shares: tuple[Knob, ...]
    has_double: bool = True

    @property
    def parameters(self) -> str:
        """The parameters of `solution`, before the communicator."""
        return ", ".join(f"TensorView {name}" for name in self.names)


PRODUCTS = (
    Products("AllGatherGemm", ("A_local", "B", "out"), "comm.peer(a, r)", "b + r * K * N", ("own",)),
    Products(
        "GemmAllReduce",
        ("A_local", "B_local", "out"),
        "comm.peer(a, r)",
        "comm.peer(b, r)",
        ("rows to all", "all rows"),
    ),
    Products(
        "GemmReduceScatter",
        ("A_local", "B_local", "C_local"),
        "comm.peer(a, r) + comm.rank * M * K",
        "comm.peer(b, r)",
        ("own",),
        has_double=False,
    ),
)

OWN_ROWS = "const int64_t begin = M * comm.rank / W, end = M * (comm.rank + 1) / W;"

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
$constant

template <class T, class Sum>
void multiply(const TensorView& left, const TensorView& right, const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t M = out.size(0), N = out.size(1), K = left.size(1);
  const T* a = static_cast<const T*>(left.data_ptr());
  const T* b = static_cast<const T*>(right.data_ptr());
  T* c = static_cast<T*>(out.data_ptr());
  $rows
  $before
  $loops
  $after
}

void solution($parameters, pkb::Comm comm) {
  $dispatch
}
"""

CPP_ROWS = """
std::vector<Sum> sums(N);
std::vector<T> row(N);
for (int64_t m = $begin; m < $end; ++m) {
  std::fill(sums.begin(), sums.end(), Sum(0));
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    const T* left_row = $a + m * K;
    const T* factor = $b;
    for (int64_t k = 0; k < K; ++k) {
      const Sum value = Sum(left_row[k]);
      for (int64_t n = 0; n < N; ++n) sums[n] += value * Sum(factor[k * N + n]);
    }
  }
  for (int64_t n = 0; n < N; ++n) row[n] = T(sums[n]);
  $store
}
"""

CPP_DOTS = """
std::vector<T> row(N);
for (int64_t m = $begin; m < $end; ++m) {
  for (int64_t n = 0; n < N; ++n) {
    Sum sum = 0;
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      const T* left_row = $a + m * K;
      const T* factor = $b + n;
      for (int64_t k = 0; k < K; ++k) sum += Sum(left_row[k]) * Sum(factor[k * N]);
    }
    row[n] = T(sum);
  }
  $store
}
"""

CPP_TILES = """
std::vector<Sum> sums(kRows * N), factor_row(N);
std::vector<T> row(N);
for (int64_t first = $begin; first < $end; first += kRows) {
  const int64_t count = std::min<int64_t>(kRows, $end - first);
  std::fill(sums.begin(), sums.end(), Sum(0));
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    const T* left_rows = $a + first * K;
    const T* factor = $b;
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t n = 0; n < N; ++n) factor_row[n] = Sum(factor[k * N + n]);
      for (int64_t m = 0; m < count; ++m) {
        const Sum value = Sum(left_rows[m * K + k]);
        for (int64_t n = 0; n < N; ++n) sums[m * N + n] += value * factor_row[n];
      }
    }
  }
  for (int64_t m = first; m < first + count; ++m) {
    for (int64_t n = 0; n < N; ++n) row[n] = T(sums[(m - first) * N + n]);
    $store
  }
}
"""

CPP_CHOICES: Choices = {
    "share": ("own", "rows to all", "all rows"),
    "loops": ("tiles of 4", "rows", "dots", "tiles of 2", "tiles of 8", "tiles of 16", "tiles of 32"),
    "order": ("staggered", "from 0", "from last"),
    "store": ("comm.put", "elements"),
    "signalling": ("barrier", "signals", "signals, then barrier"),
}


def cpp_makes_sense(products: Products, knobs: Knobs) -> bool:
    """Signals are kept with some loops."""
    if knobs["share"] not in products.shares:
        return False
    return knobs["signalling"] == "barrier" or knobs["loops"] in ("tiles of 4", "rows", "dots")


def cpp_pieces(products: Products, knobs: Knobs) -> Pieces:
    """The loops over rows, where a row goes, and when ranks wait for each other."""
    to_all = knobs["share"] == "rows to all"
    first, _, last = str(knobs["signalling"]).partition(", then ")
    access: Access = "touch" if to_all else "read"
    kind, _, rows = str(knobs["loops"]).partition(" of ")
    each = "for (int r = 0; r < W; ++r) " if to_all else ""
    if knobs["store"] == "comm.put":
        store = f"{each}comm.put(c + m * N, row.data(), N * sizeof(T), {'r' if each else 'comm.rank'});"
    elif each:
        store = f"{each}{{\n  for (int64_t n = 0; n < N; ++n) comm.peer(c, r)[m * N + n] = row[n];\n}}"
    else:
        store = "for (int64_t n = 0; n < N; ++n) c[m * N + n] = row[n];"
    return {
        "a": products.a,
        "b": products.b,
        "constant": f"constexpr int64_t kRows = {rows};" if rows else "",
        "rows": OWN_ROWS if to_all else "",
        "begin": "begin" if to_all else "0",
        "end": "end" if to_all else "M",
        "before": cpp_meet(first, BEGUN[access]),
        "loops": {"rows": CPP_ROWS, "dots": CPP_DOTS, "tiles": CPP_TILES}[kind],
        "store": store,
        "after": cpp_meet(last or first, DONE[access], 1),
        "parameters": products.parameters,
        "dispatch": cpp_dispatch(
            "multiply", products.names[0], f"{', '.join(products.names)}, comm", has_double=products.has_double
        ),
    }


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA_TILES = """
constexpr int kTile = $tile;

template <class T>
__global__ void __launch_bounds__(kTile * kTile)
multiply(const T* a, const T* b, T* c, int64_t M, int64_t N, int64_t K, const __grid_constant__ pkb::Device comm) {
  __shared__ pkb::Accumulator<T> a_tile[kTile][kTile], b_tile[kTile][kTile];
  const int W = comm.world_size, x = threadIdx.x, y = threadIdx.y;
  $enter
  $rows
  const int64_t m = ${first}blockIdx.y * kTile + y, n = blockIdx.x * kTile + x;
  pkb::Accumulator<T> sum = 0;
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    const T* left = $a;
    const T* right = $b;
    for (int64_t k = 0; k < K; k += kTile) {
      a_tile[y][x] = m < $end && k + x < K ? pkb::Accumulator<T>(left[m * K + k + x]) : 0;
      b_tile[y][x] = k + y < K && n < N ? pkb::Accumulator<T>(right[(k + y) * N + n]) : 0;
      __syncthreads();
      $unroll
      for (int j = 0; j < kTile; ++j) sum += a_tile[y][j] * b_tile[j][x];
      __syncthreads();
    }
  }
  if (m < $end && n < N) {
    $store
  }
}

void solution($parameters, pkb::Comm comm) {
  const int64_t M = $c.size(0), N = $c.size(1), K = $a_name.size(1);
  $before
  const dim3 grid(unsigned((N + kTile - 1) / kTile), unsigned(($tile_rows) / kTile));
  pkb::with_float_type($a_name.dtype(), [&](auto zero) {
    using T = decltype(zero);
    multiply<T><<<grid, dim3(kTile, kTile), 0, comm.cuda_stream()>>>(
        static_cast<const T*>($a_name.data_ptr()), static_cast<const T*>($b_name.data_ptr()),
        static_cast<T*>($c.data_ptr()), M, N, K, comm.device());
    PKB_CUDA_LAUNCHED();
  });
  $after
}
"""

CUDA_LIBRARY = """
template <class T>
void multiply(const TensorView& left, const TensorView& right, const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t M = out.size(0), N = out.size(1), K = left.size(1);
  const T* a = static_cast<const T*>(left.data_ptr());
  const T* b = static_cast<const T*>(right.data_ptr());
  T* c = static_cast<T*>(out.data_ptr());
  $rows
  $tensor_cores
  pkb::gemm::SimtProduct<T> product;
  product.rows = $count;
  product.cols = product.b_stride = product.out_stride = N;
  product.depth = product.a_stride = K;
  product.segments = W;
  $destinations
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    product.a[i] = $a$shift_a;
    product.b[i] = $b;
    $out_of_rank
  }
  $out_of_own
  pkb::gemm::launch_simt(product, comm.cuda_stream());
}

void solution($parameters, pkb::Comm comm) {
  $before
  pkb::with_float_type($a_name.dtype(), [&](auto zero) { multiply<decltype(zero)>($a_name, $b_name, $c, comm); });
  $after
}
"""

CUDA_TENSOR_CORES = """
if constexpr (sizeof(T) == 2) {
  if (pkb::gemm::fits(K, N, W) && M >= W) {
    using Shape = pkb::gemm::$shape;
    pkb::gemm::Product product = pkb::gemm::tiles<Shape>($count, N, K);
    product.segments = W;
    $destinations
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      product.a[i] = pkb::gemm::operand_map<T>($a$shift_a, $count, K, K, pkb::gemm::kBlockM);
      product.b[i] = pkb::gemm::operand_map<T>($b, K, N, N, pkb::gemm::kBlockK);
      $map_to_rank
    }
    $map_to_own
    return pkb::gemm::launch<T, Shape>(product, pkb::gemm::Plain(), comm.cuda_stream());
  }
}
"""

CUDA_THERE = "comm.peer(c, r) + begin * N"
CUDA_MAP = "pkb::gemm::operand_map<T>({}, $count, N, N, pkb::gemm::kStoreRows)"

CUDA_CHOICES: Choices = {
    "share": ("own", "rows to all", "all rows"),
    "kernel": ("Small", "Fluid", "gemm_simt.h", "tiles of 16", "tiles of 32", "tiles of 8", "tiles of 4"),
    "unroll": ("", "#pragma unroll", "#pragma unroll 1", "#pragma unroll 4"),
    "order": ("staggered", "from 0", "from last"),
    "signalling": ("host barrier", "begun words"),
}


def cuda_makes_sense(products: Products, knobs: Knobs) -> bool:
    """Words that a rank has begun are for own kernels."""
    kernel = str(knobs["kernel"])
    if knobs["share"] not in products.shares or (knobs["unroll"] and "tiles" not in kernel):
        return False
    return knobs["signalling"] == "host barrier" or (
        not knobs["unroll"] and knobs["order"] == "staggered" and "tiles" in kernel
    )


def cuda_pieces(products: Products, knobs: Knobs) -> Pieces:
    """Tiles of its own, or those of a header, on tensor cores where a shape is named."""
    kernel, to_all = str(knobs["kernel"]), knobs["share"] == "rows to all"
    a_name, b_name, c = products.names
    pieces = {
        "a": products.a,
        "b": products.b,
        "a_name": a_name,
        "b_name": b_name,
        "c": c,
        "parameters": products.parameters,
        "rows": OWN_ROWS if to_all else "",
        **asdict(cuda_meetings(knobs["signalling"], "touch" if to_all else "read")),
    }
    if kernel.startswith("tiles"):
        rows = "M / comm.world_size + kTile" if to_all else "M + kTile - 1"
        return pieces | {
            "body": CUDA_TILES,
            "tile": kernel.removeprefix("tiles of "),
            "first": "begin + " if to_all else "",
            "end": "end" if to_all else "M",
            "store": f"{'for (int r = 0; r < W; ++r) comm.peer(c, r)' if to_all else 'c'}[m * N + n] = T(sum);",
            "tile_rows": rows,
        }
    return pieces | {
        "body": CUDA_LIBRARY,
        "tensor_cores": "" if kernel == "gemm_simt.h" else CUDA_TENSOR_CORES,
        "shape": kernel,
        "count": "end - begin" if to_all else "M",
        "shift_a": " + begin * K" if to_all else "",
        "destinations": "product.destinations = W;" if to_all else "",
        "map_to_rank": f"product.out[i] = {CUDA_MAP.format(CUDA_THERE)};" if to_all else "",
        "map_to_own": "" if to_all else f"product.out[0] = {CUDA_MAP.format('c')};",
        "out_of_rank": f"product.out[i] = {CUDA_THERE};" if to_all else "",
        "out_of_own": "" if to_all else "product.out[0] = c;",
    }


FAMILIES = tuple(
    family
    for it in PRODUCTS
    for family in (
        Family(it.problem, "cpp", CPP_CHOICES, CPP, partial(cpp_pieces, it), partial(cpp_makes_sense, it)),
        Family(it.problem, "cuda", CUDA_CHOICES, "$body", partial(cuda_pieces, it), partial(cuda_makes_sense, it)),
    )
)
