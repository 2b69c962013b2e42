// AllGatherGemm: every rank copies all ranks' shards of A into private memory, signals their owners, and multiplies.
//
// W - 1 shards cross the link into each rank, each once. Copying them is little beside the product, and lets their
// owners go: a rank looks only after its own product whether all peers have read its shard, as they mostly have.
// Packing A for the cache, which a matrix product does anyway, puts the shards side by side. Bound: arithmetic, 2 M N K
// operations a rank.
#include <algorithm>
#include <memory>
#include <type_traits>

#include "pkb/bf16.h"
#include "pkb/fp16.h"
#include "pkb/symm.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

using tvm::ffi::TensorView;

namespace {

// ---- matrix product: blocks packed for the cache, tiles kept in registers (Goto and van de Geijn, 2008) ----

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 12;  // 24 of 32 registers hold the tile
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileRows = 6;  // 12 of 16
#else
constexpr int kVectorBytes = 16, kTileRows = 6;
#endif

constexpr int kBlockRows = 86 * kTileRows;  // of A: packed, it stays in the last-level cache
constexpr int kBlockCols = 512;             // of B: packed, too, and a tile's share of it in the second level
constexpr int kBlockDepth = 512;

template <class T>
using Vector __attribute__((vector_size(kVectorBytes))) = T;

struct Range {
  int64_t begin, end;
};

// How elements T are multiplied: packed units of kDepth values along k, added up in Sum. pack() makes one unit of
// neighbours in memory, or a row of units of kDepth rows.
template <class T>
struct Arithmetic {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Unit = Sum;
  static constexpr int kDepth = 1;
  static Unit pack(const T* column) { return Unit(column[0]); }
  static void pack(const T* const* rows, int columns, Unit* to) {
    for (int col = 0; col < columns; ++col) to[col] = Unit(rows[0][col]);
  }
  static Vector<Sum> multiply_add(Vector<Sum> sum, Unit a, Vector<Unit> b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
template <>
struct Arithmetic<pkb::bf16> {
  using Sum = float;
  using Unit = uint32_t;  // two neighbours along k, which one instruction multiplies
  static constexpr int kDepth = 2;
  static Unit pair(pkb::bf16 even, pkb::bf16 odd) { return uint32_t(even.bits) | uint32_t(odd.bits) << 16; }
  static Unit pack(const pkb::bf16* column) { return pair(column[0], column[1]); }
  static void pack(const pkb::bf16* const* rows, int columns, Unit* to) {
    const pkb::bf16 *even = rows[0], *odd = rows[1];
    for (int col = 0; col < columns; ++col) to[col] = pair(even[col], odd[col]);
  }
  static Vector<Sum> multiply_add(Vector<Sum> sum, Unit a, Vector<Unit> b) {
    return (Vector<Sum>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
  }
};
#endif

template <class T>
struct Product {
  using Math = Arithmetic<T>;
  using Sum = typename Math::Sum;
  using Unit = typename Math::Unit;
  static constexpr int kLanes = kVectorBytes / sizeof(Sum);
  static constexpr int kTileCols = 2 * kLanes;
  static constexpr int kUnits = kBlockDepth / Math::kDepth;

  alignas(64) Unit packed_a[kBlockRows * kUnits];
  alignas(64) Unit packed_b[kBlockCols * kUnits];
  alignas(64) Sum sums[kBlockRows * kBlockCols];

  // The rows and columns of C = A B that the ranges name, with K as the depth.
  //   read_a(i, k, count, values): copies A[i, k .. k + count - 1]
  //   row_of_b(k): where row k of B lies
  //   write_c(i, j, count, sums): takes C[i, j .. j + count - 1]
  template <class ReadA, class RowOfB, class WriteC>
  void run(Range c_rows, Range c_cols, int64_t K, ReadA read_a, RowOfB row_of_b, WriteC write_c) {
    for (int64_t i = c_rows.begin; i < c_rows.end; i += kBlockRows) {
      const int rows = int(std::min<int64_t>(kBlockRows, c_rows.end - i));
      for (int64_t j = c_cols.begin; j < c_cols.end; j += kBlockCols) {
        const int cols = int(std::min<int64_t>(kBlockCols, c_cols.end - j));
        int64_t k = 0;
        do {  // once even if K is 0: the sums are set, then added to
          const int depth = int(std::min<int64_t>(kBlockDepth, K - k));
          const int units = (depth + Math::kDepth - 1) / Math::kDepth;
          pack_a(i, rows, k, depth, units, read_a);
          pack_b(j, cols, k, depth, units, row_of_b);
          multiply(rows, cols, units, k != 0);
          k += kBlockDepth;
        } while (k < K);
        for (int row = 0; row < rows; ++row) write_c(i + row, j, cols, sums + row * kBlockCols);
      }
    }
  }

 private:
  // Panels of kTileRows rows, unit after unit; rows beyond the end are zero.
  template <class ReadA>
  void pack_a(int64_t i, int rows, int64_t k, int depth, int units, ReadA read_a) {
    T values[kBlockDepth + 1];
    Unit* panel = packed_a;
    for (int first = 0; first < rows; first += kTileRows, panel += units * kTileRows) {
      for (int row = 0; row < kTileRows; ++row) {
        if (first + row < rows) {
          read_a(i + first + row, k, depth, values);
        } else {
          std::fill_n(values, depth, T(0));
        }
        values[depth] = T(0);
        for (int unit = 0; unit < units; ++unit) {
          panel[unit * kTileRows + row] = Math::pack(values + unit * Math::kDepth);
        }
      }
    }
  }

  // Panels of kTileCols columns, unit after unit; columns beyond the end are zero.
  template <class RowOfB>
  void pack_b(int64_t j, int cols, int64_t k, int depth, int units, RowOfB row_of_b) {
    static const T zeros[kBlockCols] = {};  // stands for the row that a last unit may lack
    for (int unit = 0; unit < units; ++unit) {
      const T* rows[Math::kDepth];
      for (int d = 0; d < Math::kDepth; ++d) {
        const int at = unit * Math::kDepth + d;
        rows[d] = at < depth ? row_of_b(k + at) + j : zeros;
      }
      Unit* to = packed_b + unit * kTileCols;
      int left = cols;
      for (; left >= kTileCols; left -= kTileCols, to += units * kTileCols) {
        Math::pack(rows, kTileCols, to);
        for (const T*& row : rows) row += kTileCols;
      }
      if (left > 0) {
        Math::pack(rows, left, to);
        std::fill(to + left, to + kTileCols, Unit(0));
      }
    }
  }

  // Sets sums to packed_a packed_b, or adds it, tile by tile; a panel of B stays in the cache while all of A passes.
  void multiply(int rows, int cols, int units, bool add) {
    for (int col = 0; col < cols; col += kTileCols) {
      for (int row = 0; row < rows; row += kTileRows) {
        multiply_tile(packed_a + row * units, packed_b + col * units, units, add, sums + row * kBlockCols + col);
      }
    }
  }

  static void multiply_tile(const Unit* a, const Unit* b, int units, bool add, Sum* to) {
    Vector<Sum> tile[kTileRows][2] = {};
    for (int unit = 0; unit < units; ++unit, a += kTileRows, b += kTileCols) {
      const auto* columns = reinterpret_cast<const Vector<Unit>*>(b);
      const Vector<Unit> left = columns[0], right = columns[1];
#pragma GCC unroll 16
      for (int row = 0; row < kTileRows; ++row) {
        tile[row][0] = Math::multiply_add(tile[row][0], a[row], left);
        tile[row][1] = Math::multiply_add(tile[row][1], a[row], right);
      }
    }
#pragma GCC unroll 16
    for (int row = 0; row < kTileRows; ++row) {
      auto* sum = reinterpret_cast<Vector<Sum>*>(to + row * kBlockCols);
      sum[0] = add ? sum[0] + tile[row][0] : tile[row][0];
      sum[1] = add ? sum[1] + tile[row][1] : tile[row][1];
    }
  }
};

// ---- the kernel ------------------------------------------------------------------------------------------------

// Words of the signal pad, one for each peer: its call has begun; it has read this rank's shard.
constexpr int kBegun = 0, kRead = pkb::kMaxRanks;

// Copies the peers' shards, of n elements each, in the order of ranks; the place of this rank's own stays free.
template <class T>
const T* gather(const T* shard, int64_t n, const pkb::Comm& comm) {
  static std::unique_ptr<T[]> shards;  // kept from call to call
  static int64_t room = 0;
  const int W = comm.world_size;
  for (int step = 1; step < W; ++step) comm.signal(kBegun + comm.rank, (comm.rank + step) % W);
  if (W * n > room) {
    room = W * n;
    shards.reset(new T[room]);
  }
  for (int step = 1; step < W; ++step) {
    const int source = (comm.rank + step) % W;
    comm.wait(kBegun + source);
    comm.get(shards.get() + source * n, shard, n * sizeof(T), source);
    comm.signal(kRead + comm.rank, source);
  }
  return shards.get();
}

template <class T>
void all_gather_gemm(const TensorView& a_local, const TensorView& b, const TensorView& out, const pkb::Comm& comm) {
  static Product<T> product;  // its room is kept from call to call
  const int64_t M = a_local.size(0), shard = a_local.size(1), K = b.size(0), N = b.size(1);
  const T* own = static_cast<const T*>(a_local.data_ptr());
  const T* shards = gather(own, M * shard, comm);

  const auto read_a = [&](int64_t i, int64_t k, int64_t count, T* values) {
    for (const int64_t end = k + count; k < end;) {
      const int64_t run = std::min(end - k, shard - k % shard);
      const T* matrix = k / shard == comm.rank ? own : shards + k / shard * M * shard;
      std::copy_n(matrix + i * shard + k % shard, run, values);
      values += run;
      k += run;
    }
  };
  const auto row_of_b = [&](int64_t k) { return static_cast<const T*>(b.data_ptr()) + k * N; };
  const auto write_c = [&](int64_t i, int64_t j, int64_t count, const auto* sums) {
    T* row = static_cast<T*>(out.data_ptr()) + i * N + j;
    for (int64_t col = 0; col < count; ++col) row[col] = T(sums[col]);
  };
  product.run({0, M}, {0, N}, K, read_a, row_of_b, write_c);
  for (int step = 1; step < comm.world_size; ++step) comm.wait(kRead + (comm.rank + step) % comm.world_size);
}

void check_matrix(const char* name, const TensorView& x, DLDataType dtype) {
  if (x.ndim() != 2 || !x.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "expected " << name << " to be a contiguous matrix, got shape " << x.shape();
  }
  if (x.dtype() != dtype) TVM_FFI_THROW(TypeError) << "expected " << name << " in " << dtype << ", got " << x.dtype();
}

}  // namespace

void solution(TensorView A_local, TensorView B, TensorView out, pkb::Comm comm) {
  const DLDataType dtype = A_local.dtype();
  check_matrix("A_local", A_local, dtype);
  check_matrix("B", B, dtype);
  check_matrix("out", out, dtype);
  if (B.size(0) != comm.world_size * A_local.size(1)) {
    TVM_FFI_THROW(ValueError) << "expected B of " << comm.world_size << " * " << A_local.size(1) << " rows, got shape "
                              << B.shape();
  }
  if (out.size(0) != A_local.size(0) || out.size(1) != B.size(1)) {
    TVM_FFI_THROW(ValueError) << "expected out (" << A_local.size(0) << ", " << B.size(1) << "), got shape "
                              << out.shape();
  }
  if (dtype == DLDataType{kDLBfloat, 16, 1}) return all_gather_gemm<pkb::bf16>(A_local, B, out, comm);
  if (dtype == DLDataType{kDLFloat, 16, 1}) return all_gather_gemm<pkb::fp16>(A_local, B, out, comm);
  if (dtype == DLDataType{kDLFloat, 32, 1}) return all_gather_gemm<float>(A_local, B, out, comm);
  if (dtype == DLDataType{kDLFloat, 64, 1}) return all_gather_gemm<double>(A_local, B, out, comm);
  TVM_FFI_THROW(TypeError) << "expected bfloat16, float16, float32 or float64, got " << dtype;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
