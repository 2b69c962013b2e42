// TPMuon: float32 products as three products of bfloat16 on the tensor cores, and one exchange an iteration.
//
// Each number is kept as the sum of two bfloat16, 16 bits of mantissa, and a product of two matrices is the sum of three
// products of their parts: three segments of one product on the tensor cores (pkb/gemm_sm90.h), several times as fast as
// float32 on CUDA cores. The norm needs no pass: it is the trace of the first Gram matrix, and scales the coefficients of
// the first iteration. A bfloat16 input has one part, which saves products there. Polynomial and update are combined
// with what they are added to in registers. A Gram matrix is summed by one kernel: it meets its counterparts, adds up its
// share of all ranks' float32 partial sums, stores it to all, meets them again, and splits the whole into parts.
//
// Bound: arithmetic, 3 * 2 m (2 m n_r + m^2) operations an iteration; the link carries 8 (W - 1) / W m^2 bytes.
//
// Left on the table: Gram matrices are symmetric, and both halves are computed; every rank computes the whole polynomial;
// the exchange begins when the product has ended. Small matrices are bound by the launches, four an iteration.
//
// Iteration: K. Jordan et al., Muon, 2024; tables of coefficients as in NVIDIA's Emerging-Optimizers.
#include <algorithm>

#include "pkb/gemm_change.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using pkb::gemm::Product;
using pkb::gemm::Tile;
using tvm::ffi::String;
using tvm::ffi::TensorView;

namespace {

using Half = __nv_bfloat16;
constexpr int kThreads = pkb::kTransferThreads;
constexpr int kPad = 8;  // rows and columns of matrices are padded to so many: whole vectors

struct Coefficients {
  float a, b, c;
};

constexpr Coefficients kSimple[] = {{3.4445f, -4.7750f, 2.0315f}};
constexpr Coefficients kQuintic[] = {{4.0848f, -6.8946f, 2.9270f},
                                     {3.9505f, -6.3029f, 2.6377f},
                                     {3.7418f, -5.5913f, 2.3037f},
                                     {2.8769f, -3.1427f, 1.2046f},
                                     {2.8366f, -3.0525f, 1.2012f}};
constexpr Coefficients kPolarExpress[] = {{8.2051f, -22.9019f, 16.4607f}, {4.0664f, -2.8612f, 0.5184f},
                                          {3.9096f, -2.8234f, 0.5250f},   {3.2856f, -2.4647f, 0.5074f},
                                          {2.2779f, -1.6447f, 0.4162f},   {1.8726f, -1.2307f, 0.3585f},
                                          {1.8564f, -1.2132f, 0.3568f},   {1.8750f, -1.2500f, 0.3750f}};
constexpr Coefficients kAol[] = {{4.0098f, -7.0585f, 2.4635f},
                                 {3.4585f, -5.5479f, 2.5959f},
                                 {2.7573f, -3.2939f, 1.4254f},
                                 {2.7215f, -3.0494f, 1.3169f}};

struct Table {
  const Coefficients* rows;
  int length;
  Coefficients operator[](int64_t step) const { return rows[step % length]; }
};

Table table_of(const String& name) {
  if (name == "simple") return {kSimple, 1};
  if (name == "quintic") return {kQuintic, 5};
  if (name == "polar_express") return {kPolarExpress, 8};
  if (name == "aol") return {kAol, 4};
  TVM_FFI_THROW(ValueError) << "expected simple, quintic, polar_express or aol, got " << name;
  return {};
}

int64_t padded(int64_t count) { return (count + kPad - 1) / kPad * kPad; }

// A matrix as the sum of two, with rows of padded(cols) elements and padded(rows) of them.
struct Split {
  Half *high, *low;
  int64_t rows, cols;
  bool has_low = true;

  int64_t stride() const { return padded(cols); }
  int64_t elements() const { return padded(rows) * stride(); }
};

// Two neighbours, or one and zero: what lies behind a row is never read.
__device__ __forceinline__ float2 load_two(const Half* from, bool has_two) {
  return has_two ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from))
                 : make_float2(pkb::to_float(*from), 0.0f);
}

__device__ __forceinline__ float low_of(float x, Half high) { return x - pkb::to_float(high); }

// ---- products ----

// Sums become alpha * sum + beta * added, where both are multiplied by a power of a number in memory. What the rounded
// sums, which are stored, leave over goes to `low`.
struct Combine : pkb::gemm::Plain {
  float alpha = 1.0f, beta = 0.0f;
  const float* scale = nullptr;
  int alpha_power = 0, beta_power = 0;
  const Half *high = nullptr, *added_low = nullptr;  // what is added
  Half* low = nullptr;
  int64_t rows, cols, stride;

  __device__ __forceinline__ float times(float factor, int power) const {
    if (scale) {
      for (int i = 0; i < power; ++i) factor *= *scale;
    }
    return factor;
  }

  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const Tile& tile, float (&sums)[Shape::kSums], const pkb::gemm::Block& block,
                                         int consumer, uint32_t) const {
    const float of_sum = times(alpha, alpha_power), of_added = times(beta, beta_power);
    pkb::gemm::visit_sums<Shape>(tile, block, consumer, [&](int i, int64_t row, int64_t col) {
      if (row >= rows || col >= cols) return;
      const int64_t at = row * stride + col;
      const bool has_two = col + 1 < cols;
      float2 added = make_float2(0.0f, 0.0f);
      if (high) {
        added = load_two(high + at, has_two);
        if (added_low) {
          const float2 rest = load_two(added_low + at, has_two);
          added.x += rest.x;
          added.y += rest.y;
        }
      }
      sums[i] = of_sum * sums[i] + of_added * added.x;
      sums[i + 1] = of_sum * sums[i + 1] + of_added * added.y;
      if (low) {
        const __nv_bfloat162 rounded = __floats2bfloat162_rn(sums[i], sums[i + 1]);
        *reinterpret_cast<__nv_bfloat162*>(low + at) =
            __floats2bfloat162_rn(low_of(sums[i], rounded.x), low_of(sums[i + 1], rounded.y));
      }
    });
    return true;
  }
};

// Sums go to memory as they are, in rows of `stride`.
struct Keep : pkb::gemm::Plain {
  float* out;
  int64_t rows, cols, stride;

  template <class, class Shape>
  __device__ __forceinline__ bool finish(const Tile& tile, float (&sums)[Shape::kSums], const pkb::gemm::Block& block,
                                         int consumer, uint32_t) const {
    pkb::gemm::visit_sums<Shape>(tile, block, consumer, [&](int i, int64_t row, int64_t col) {
      if (row >= rows || col >= cols) return;
      *reinterpret_cast<float2*>(out + row * stride + col) = make_float2(sums[i], sums[i + 1]);
    });
    return false;
  }
};

// a b, or for a transposed shape of B a b^T, to `out` if given.
template <class Shape, class Hooks>
void launch_product(const Split& a, const Split& b, int64_t cols, Half* out, const Hooks& hooks, cudaStream_t stream) {
  Product product = pkb::gemm::tiles<Shape>(a.rows, cols, a.cols);
  product.segments = 0;
  const auto add = [&](const Half* left, const Half* right) {
    product.a[product.segments] = pkb::gemm::operand_map(left, a.rows, a.cols, a.stride(), pkb::gemm::kBlockM);
    product.b[product.segments] = pkb::gemm::operand_map(right, b.rows, b.cols, b.stride(), pkb::gemm::kBlockK);
    ++product.segments;
  };
  add(a.high, b.high);
  if (b.has_low) add(a.high, b.low);
  if (a.has_low) add(a.low, b.high);
  product.destinations = out ? 1 : 0;
  if (out) product.out[0] = pkb::gemm::operand_map(out, a.rows, cols, padded(cols), pkb::gemm::kStoreRows);
  pkb::gemm::launch<Half, Shape>(product, hooks, stream);
}

template <bool kTransposedB, class Hooks>
void multiply(const Split& a, const Split& b, Half* out, Hooks hooks, cudaStream_t stream) {
  using pkb::gemm::Deep;
  using pkb::gemm::Small;
  using pkb::gemm::TransposedB;
  const int64_t cols = kTransposedB ? b.rows : b.cols;
  hooks.rows = a.rows;
  hooks.cols = cols;
  hooks.stride = padded(cols);
  if (pkb::gemm::is_large(a.rows, cols)) {
    launch_product<std::conditional_t<kTransposedB, TransposedB<Deep>, Deep>>(a, b, cols, out, hooks, stream);
  } else {
    launch_product<std::conditional_t<kTransposedB, TransposedB<Small>, Small>>(a, b, cols, out, hooks, stream);
  }
}

// ---- passes over matrices ----

constexpr int kTile = 32, kRowsAtOnce = kThreads / kTile;

// Calls visit(row, col, value) for a tile of a matrix (rows, cols), where value is load(row, col), or, if the other side
// is transposed, that of load(col, row), which threads take over from each other.
template <class Load, class Visit>
__device__ __forceinline__ void visit_tile(int64_t rows, int64_t cols, bool is_transposed, const Load& load,
                                           const Visit& visit) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t row0 = int64_t(blockIdx.y) * kTile, col0 = int64_t(blockIdx.x) * kTile;
  const int x = int(threadIdx.x) % kTile, y = int(threadIdx.x) / kTile;
  if (is_transposed) {
    for (int i = y; i < kTile; i += kRowsAtOnce) {
      if (col0 + i < cols && row0 + x < rows) tile[x][i] = load(col0 + i, row0 + x);
    }
    __syncthreads();
  }
  for (int i = y; i < kTile; i += kRowsAtOnce) {
    const int64_t row = row0 + i, col = col0 + x;
    if (row < rows && col < cols) visit(row, col, is_transposed ? tile[i][x] : load(row, col));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    split_input(const T* x, bool is_transposed, const __grid_constant__ Split to, int64_t stride) {
  const int64_t of_x = is_transposed ? to.rows : to.cols;
  visit_tile(
      to.rows, to.cols, is_transposed, [&](int64_t row, int64_t col) { return pkb::to_float(x[row * of_x + col]); },
      [&](int64_t row, int64_t col, float value) {
        const Half high(value);
        to.high[row * stride + col] = high;
        if (to.has_low) to.low[row * stride + col] = Half(low_of(value, high));
      });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    join_output(const __grid_constant__ Split from, int64_t stride, bool is_transposed, const float* scale, T* y) {
  const int64_t rows = is_transposed ? from.cols : from.rows, cols = is_transposed ? from.rows : from.cols;
  const float factor = scale ? *scale : 1.0f;
  visit_tile(
      rows, cols, is_transposed,
      [&](int64_t row, int64_t col) {
        const int64_t at = row * stride + col;
        return pkb::to_float(from.high[at]) + (from.has_low ? pkb::to_float(from.low[at]) : 0.0f);
      },
      [&](int64_t row, int64_t col, float value) { y[row * cols + col] = T(value * factor); });
}

dim3 tiles_of(int64_t rows, int64_t cols) {
  return dim3(unsigned(pkb::gemm::divide_up(cols, kTile)), unsigned(pkb::gemm::divide_up(rows, kTile)));
}

// The inverse of the norm, from the trace of the Gram matrix.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads)
    find_scale(const __grid_constant__ Split gram, int64_t stride, float* scale) {
  float trace = 0.0f;
  for (int64_t i = threadIdx.x; i < gram.rows; i += kBlockThreads) {
    trace += pkb::to_float(gram.high[i * (stride + 1)]) + pkb::to_float(gram.low[i * (stride + 1)]);
  }
  trace = pkb::Block().sum(trace);
  if (threadIdx.x == 0) *scale = 1.0f / fmaxf(sqrtf(trace), 1e-7f);
}

// Sums the partial matrices of a group, of `elements` float32 in scratch, and splits the total into parts.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, pkb::kBlocksPerSm)
    sum_over_ranks(float* partial, int64_t elements, Half* high, Half* low, int phase, int64_t group,
                   const __grid_constant__ pkb::Device comm) {
  const int ranks = comm.group_size(group);
  const int64_t vectors = elements / 4, step = int64_t(gridDim.x) * kBlockThreads;
  const auto visit = [&](int place, auto do_vector) {  // of the share of the rank at this place, what this block has
    const int64_t end = vectors * (place + 1) / ranks;
    for (int64_t i = vectors * place / ranks + blockIdx.x * kBlockThreads + threadIdx.x; i < end; i += step) do_vector(i);
  };
  comm.barrier_blocks(phase, group);
  visit(comm.group_rank(group), [&](int64_t i) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int r = 0; r < ranks; ++r) {
      const auto* of_rank = reinterpret_cast<const float4*>(comm.peer(partial, comm.group_member(group, r)));
      const float4 term = __ldcg(of_rank + i);
      sum.x += term.x;
      sum.y += term.y;
      sum.z += term.z;
      sum.w += term.w;
    }
#pragma unroll 1
    for (int r = 0; r < ranks; ++r) reinterpret_cast<float4*>(comm.peer(partial, comm.group_member(group, r)))[i] = sum;
  });
  comm.barrier_blocks(phase + 1, group);
#pragma unroll 1
  for (int r = 0; r < ranks; ++r) {
    visit(r, [&](int64_t i) {
      const float4 sum = __ldcg(reinterpret_cast<const float4*>(partial) + i);
      pkb::Packet<Half, 4> rounded{{Half(sum.x), Half(sum.y), Half(sum.z), Half(sum.w)}};
      pkb::store_packet(high + i * 4, rounded);
      pkb::store_packet(low + i * 4, pkb::Packet<Half, 4>{{Half(low_of(sum.x, rounded.lanes[0])),
                                                           Half(low_of(sum.y, rounded.lanes[1])),
                                                           Half(low_of(sum.z, rounded.lanes[2])),
                                                           Half(low_of(sum.w, rounded.lanes[3]))}});
    });
  }
}

// ---- the iteration ----

class Iteration {
 public:
  Iteration(int64_t m, int64_t n, bool has_low, int64_t group, const pkb::Comm& comm)
      : comm_(comm), stream_(comm.cuda_stream()), group_(group), ranks_(comm.group(group).size) {
    int64_t all = 0;
    const auto add = [&](Split& split, int64_t rows, int64_t cols) {
      split = Split{nullptr, nullptr, rows, cols};
      all += 2 * split.elements();
    };
    add(x, m, n);
    add(next_, m, n);
    add(gram_, m, m);
    add(polynomial_, m, m);
    Half* memory = pkb::kept_memory<Half>(all);
    for (Split* split : {&x, &next_, &gram_, &polynomial_}) {
      split->high = memory;
      split->low = memory + split->elements();
      memory += 2 * split->elements();
    }
    x.has_low = has_low;
    scale = pkb::kept_memory<float>(1);
  }

  Split x;       // this rank's columns of X, (m, n)
  float* scale;  // the inverse of the norm, after the first Gram matrix

  // The Gram matrix of all ranks' columns.
  void find_gram() {
    if (ranks_ == 1) {
      Combine keep;
      keep.low = gram_.low;
      multiply<true>(x, x, gram_.high, keep, stream_);
    } else {
      exchange_gram();
    }
    if (is_first_) {
      find_scale<kThreads><<<1, kThreads, 0, stream_>>>(gram_, gram_.stride(), scale);
      PKB_CUDA_LAUNCHED();
    }
  }

  // X = a X + (b G + c G^2) X, rounded to `y` if given.
  void update(const Coefficients& with, Half* y) {
    Combine polynomial = combine(with.c, 4, with.b, 2, gram_);
    polynomial.low = polynomial_.low;
    multiply<false>(gram_, gram_, polynomial_.high, polynomial, stream_);
    Combine sum = combine(1.0f, 1, with.a, 1, x);
    sum.low = y ? nullptr : next_.low;
    multiply<false>(polynomial_, x, y ? y : next_.high, sum, stream_);
    std::swap(x, next_);
    x.has_low = true;
    is_first_ = false;
  }

 private:
  const pkb::Comm& comm_;
  cudaStream_t stream_;
  int64_t group_;
  int ranks_;
  Split next_, gram_, polynomial_;
  bool is_first_ = true;
  int phase_ = 0;

  // In the first iteration X has not been divided by its norm, and products of so many X have that many factors.
  Combine combine(float alpha, int alpha_power, float beta, int beta_power, const Split& added) const {
    Combine hooks;
    hooks.alpha = alpha;
    hooks.beta = beta;
    if (is_first_) {
      hooks.scale = scale;
      hooks.alpha_power = alpha_power;
      hooks.beta_power = beta_power;
    }
    hooks.high = added.high;
    hooks.added_low = added.has_low ? added.low : nullptr;
    return hooks;
  }

  // As many rows at a time as scratch holds.
  void exchange_gram() {
    const int64_t stride = gram_.stride(), room = int64_t(comm_.scratch_bytes / sizeof(float)) / stride;
    if (room == 0) TVM_FFI_THROW(ValueError) << "scratch of " << comm_.scratch_bytes << " bytes does not hold a row";
    float* partial = comm_.scratch<float>();
    for (int64_t first = 0; first < gram_.rows; first += room) {
      Split part = x;
      part.rows = std::min(room, gram_.rows - first);
      part.high += first * part.stride();
      part.low += first * part.stride();
      Keep keep;
      keep.out = partial;
      multiply<true>(part, x, nullptr, keep, stream_);
      if (phase_ + 2 > pkb::kMaxPhases) TVM_FFI_THROW(ValueError) << "more than " << pkb::kMaxPhases / 2 << " exchanges";
      const int64_t elements = part.rows * stride;
      const unsigned blocks = pkb::blocks_for(elements, 4 * kThreads);  // as many on every rank
      sum_over_ranks<kThreads><<<blocks, kThreads, 0, stream_>>>(partial, elements, gram_.high + first * stride,
                                                                gram_.low + first * stride, phase_, group_,
                                                                comm_.device());
      PKB_CUDA_LAUNCHED();
      phase_ += 2;
    }
  }
};

}  // namespace

void solution(TensorView x, int64_t steps, String coefficient_type, int64_t partition_dim, int64_t group, TensorView y,
              pkb::Comm comm) {
  const Table table = table_of(coefficient_type);
  pkb::with_type<Half, __half, float>(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr bool kIsHalf = std::is_same_v<T, Half>;
    if (x.numel() == 0) return;
    const bool is_transposed = partition_dim == 0;
    const int64_t m = x.size(is_transposed ? 1 : 0), n = x.size(is_transposed ? 0 : 1);
    Iteration iteration(m, n, !kIsHalf, group, comm);
    const int64_t stride = iteration.x.stride();
    split_input<<<tiles_of(m, n), kThreads, 0, comm.cuda_stream()>>>(static_cast<const T*>(x.data_ptr()), is_transposed,
                                                                    iteration.x, stride);
    PKB_CUDA_LAUNCHED();
    T* to = static_cast<T*>(y.data_ptr());
    // A bfloat16 result may be what the last product stores.
    const bool is_stored = kIsHalf && !is_transposed && n == stride && steps > 0;
    iteration.find_gram();
    for (int64_t step = 0; step < steps; ++step) {
      if (step > 0) iteration.find_gram();
      iteration.update(table[step], is_stored && step == steps - 1 ? reinterpret_cast<Half*>(to) : nullptr);
    }
    if (is_stored) return;
    const dim3 tiles = is_transposed ? tiles_of(n, m) : tiles_of(m, n);
    join_output<<<tiles, kThreads, 0, comm.cuda_stream()>>>(iteration.x, stride, is_transposed,
                                                            steps ? nullptr : iteration.scale, to);
    PKB_CUDA_LAUNCHED();
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
