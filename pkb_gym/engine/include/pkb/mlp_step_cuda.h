// Gradients of a two-layer MLP with a mean-square loss, and a sharded step of Adam on them: what data-parallel training
// steps share, whoever holds the parameters.
//
//   pkb::mlp::Step step(X, y, hidden, comm);       // buffers
//   step.fetch(pieces, count, comm);               // the flat parameters W1, b1, W2, b2, from wherever they lie
//   step.differentiate(comm);                      // this rank's flat gradients, in symmetric scratch
//   pkb::mlp::update_slices(step, slice, comm);    // sums of each rank's slice, Adam, and the results to their places
//
// Products run on the tensor cores (pkb/gemm_sm90.h), or on CUDA cores where rows are no multiples of 16 bytes; bias,
// activation, loss and mask are applied to sums in registers. The header for products wants row-major operands, so that
// weights, and gradients of activations, are transposed first: memory traffic of a tenth of the products' time at size
// large. Bound: arithmetic, 2 n hid (2 d_in + 3 d_out) operations; at small sizes, a dozen launches.
//
// Everything is bfloat16; sums are float32.
#pragma once

#include <algorithm>

#include "pkb/adam_cuda.h"
#include "pkb/gemm_change.h"
#include "pkb/gemm_linear.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/transpose_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {
namespace mlp {

using T = __nv_bfloat16;
constexpr int kThreads = kTransferThreads;

// ---- what is done to sums, at (row, col) and the column after it ----

struct Keep {
  __device__ __forceinline__ float operator()(int64_t, int64_t, float sum) const { return sum; }
};

struct AddBiasAndClamp {
  const T* bias;
  __device__ __forceinline__ float operator()(int64_t, int64_t col, float sum) const {
    return fmaxf(sum + to_float(bias[col]), 0.0f);
  }
};

// The gradient of the loss by an output.
struct AddBiasAndCompare {
  const T *bias, *target;
  int64_t cols;
  float scale;
  __device__ __forceinline__ float operator()(int64_t row, int64_t col, float sum) const {
    return scale * (sum + to_float(bias[col]) - to_float(target[row * cols + col]));
  }
};

// The gradient by what was clamped.
struct Mask {
  const T* hidden;
  int64_t cols;
  __device__ __forceinline__ float operator()(int64_t row, int64_t col, float sum) const {
    return to_float(hidden[row * cols + col]) > 0.0f ? sum : 0.0f;
  }
};

template <class Change>
__global__ void __launch_bounds__(kThreads) change_elements(T* matrix, int64_t rows, int64_t cols, Change change) {
  const int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (i < rows * cols) matrix[i] = T(change(i / cols, i % cols, to_float(matrix[i])));
}

// ---- products ----

template <class Shape, class Hooks>
void launch_product(const T* a, const T* b, T* out, int64_t rows, int64_t cols, int64_t depth, const Hooks& hooks,
                    cudaStream_t stream) {
  gemm::Product product = gemm::tiles<Shape>(rows, cols, depth);
  product.a[0] = gemm::operand_map(a, rows, depth, depth, gemm::kBlockM);
  product.b[0] = gemm::operand_map(b, depth, cols, cols, gemm::kBlockK);
  product.out[0] = gemm::operand_map<T>(out, rows, cols, cols, gemm::kStoreRows);
  gemm::launch<T, Shape>(product, hooks, stream);
}

// out = change(a b), with a (rows, depth) and b (depth, cols), all contiguous.
template <class Change>
void multiply(const T* a, const T* b, T* out, int64_t rows, int64_t cols, int64_t depth, const Change& change,
              cudaStream_t stream) {
  const auto is_aligned = [](const T* matrix) { return reinterpret_cast<uintptr_t>(matrix) % 16 == 0; };
  if (gemm::fits(depth, cols, 1) && is_aligned(a) && is_aligned(b) && is_aligned(out)) {
    const gemm::Changed<gemm::Plain, Change> hooks(gemm::Plain(), change, rows, cols);
    if (gemm::is_large(rows, cols)) launch_product<gemm::Deep>(a, b, out, rows, cols, depth, hooks, stream);
    else launch_product<gemm::Small>(a, b, out, rows, cols, depth, hooks, stream);
    return;
  }
  gemm::launch_simt(gemm::whole_product(a, b, out, rows, cols, depth), stream);
  change_elements<<<unsigned((rows * cols + kThreads - 1) / kThreads), kThreads, 0, stream>>>(out, rows, cols, change);
  PKB_CUDA_LAUNCHED();
}

// ---- sums of rows ----

// A warp a row.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads) sum_rows(const T* matrix, T* sums, int64_t rows, int64_t cols) {
  const int64_t row = blockIdx.x * int64_t(kBlockThreads / 32) + warp_id();
  if (row >= rows) return;
  const T* of_row = matrix + row * cols;
  float sum = 0.0f;
  if (cols % kPerVector<T> == 0) {
#pragma unroll 4
    for (int64_t i = lane_id() * kPerVector<T>; i < cols; i += 32 * kPerVector<T>) {
      const uint4 vector = load_vector(of_row + i);
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) sum += element<T>(vector, e);
    }
  } else {
    for (int64_t i = lane_id(); i < cols; i += 32) sum += to_float(of_row[i]);
  }
  sum = Warp().sum(sum);
  if (lane_id() == 0) sums[row] = T(sum);
}

inline void sum_of_rows(const T* matrix, T* sums, int64_t rows, int64_t cols, cudaStream_t stream) {
  sum_rows<kThreads><<<unsigned(gemm::divide_up(rows, kThreads / 32)), kThreads, 0, stream>>>(matrix, sums, rows, cols);
  PKB_CUDA_LAUNCHED();
}

// ---- parameters ----

// A part of the flat parameters on some rank, where it lies in this rank's counterpart.
struct Piece {
  const T* own;
  int rank;
  int64_t elements;
};
struct Pieces {
  Piece pieces[kMaxRanks];
  int count;
};

// Copies pieces from ranks whose call has begun, one after another.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
    fetch_pieces(const __grid_constant__ Pieces from, T* to, const __grid_constant__ Device comm) {
  comm.signal_begun();
  comm.wait_all_begun();
  for (int i = 0; i < from.count; ++i) {
    const Piece& piece = from.pieces[i];
    copy(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(comm.peer(piece.own, piece.rank)),
         piece.elements * sizeof(T), blockIdx.x, gridDim.x);
    to += piece.elements;
  }
}

// ---- the step ----

struct Step {
  const T *x, *y;
  int64_t n, d_in, hid, d_out;
  T *flat, *gradients;  // of W1, b1, W2, b2; gradients in symmetric scratch
  T *W1_t, *W2_t, *hidden, *d_out_n, *d_out_t, *d_hid_n, *d_hid_t;

  int64_t b1() const { return hid * d_in; }
  int64_t W2() const { return b1() + hid; }
  int64_t b2() const { return W2() + d_out * hid; }
  int64_t parameters() const { return b2() + d_out; }

  Step(const tvm::ffi::TensorView& X, const tvm::ffi::TensorView& targets, int64_t hidden_units, const Comm& comm)
      : x(static_cast<const T*>(X.data_ptr())), y(static_cast<const T*>(targets.data_ptr())), n(X.size(0)),
        d_in(X.size(1)), hid(hidden_units), d_out(targets.size(1)) {
    if (X.dtype() != kDtype<T>) TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << X.dtype();
    if (uint64_t(parameters()) * sizeof(T) > comm.scratch_bytes) {
      TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold " << parameters()
                                << " gradients";
    }
    gradients = comm.scratch<T>();
    const int64_t counts[] = {parameters(), d_in * hid, hid * d_out, n * hid, n * d_out, n * d_out, n * hid, n * hid};
    T** const buffers[] = {&flat, &W1_t, &W2_t, &hidden, &d_out_n, &d_out_t, &d_hid_n, &d_hid_t};
    int64_t all = 0;
    for (int64_t count : counts) all += aligned(count);
    T* next = kept_memory<T>(all);
    for (int i = 0; i < 8; ++i) {
      *buffers[i] = next;
      next += aligned(counts[i]);
    }
  }

  void fetch(const Pieces& pieces, const Comm& comm) const {
    const unsigned blocks = blocks_for(parameters() * sizeof(T), kCopyTile);
    fetch_pieces<kThreads><<<blocks, kThreads, 0, comm.cuda_stream()>>>(pieces, flat, comm.device());
    PKB_CUDA_LAUNCHED();
  }

  void differentiate(const Comm& comm) const {
    const cudaStream_t stream = comm.cuda_stream();
    transpose(flat, W1_t, hid, d_in, stream);
    transpose(flat + W2(), W2_t, d_out, hid, stream);
    multiply(x, W1_t, hidden, n, hid, d_in, AddBiasAndClamp{flat + b1()}, stream);
    const float scale = 2.0f / float(n * d_out);
    multiply(hidden, W2_t, d_out_n, n, d_out, hid, AddBiasAndCompare{flat + b2(), y, d_out, scale}, stream);
    transpose(d_out_n, d_out_t, n, d_out, stream);
    sum_of_rows(d_out_t, gradients + b2(), d_out, n, stream);
    multiply(d_out_t, hidden, gradients + W2(), d_out, hid, n, Keep(), stream);
    multiply(d_out_n, flat + W2(), d_hid_n, n, hid, d_out, Mask{hidden, hid}, stream);
    transpose(d_hid_n, d_hid_t, n, hid, stream);
    sum_of_rows(d_hid_t, gradients + b1(), hid, n, stream);
    multiply(d_hid_t, x, gradients, hid, d_in, n, Keep(), stream);
  }

 private:
  static int64_t aligned(int64_t elements) { return (elements + 127) / 128 * 128; }
};

// ---- the update ----

// This rank's slice: its state, and where results belong. Parameters go to the tensors of all ranks, or, where there is
// one tensor alone, to this rank's.
struct Slice {
  const T *gradients, *parameters;  // flat, of which the slice begins at `first`
  int64_t first, elements;
  const T *moment, *square;
  T *new_moment, *new_square;
  T* tensors[4];
  int64_t ends[4];                  // of the tensors, in flat order
  bool to_all;
  Adam adam;

  // Where a parameter belongs; `at` is its place among the flat ones, or in the slice.
  __device__ T* place(int64_t at) const {
    if (!to_all) return tensors[0] + at - first;
    if (at < ends[0]) return tensors[0] + at;
    if (at < ends[1]) return tensors[1] + at - ends[0];
    return at < ends[2] ? tensors[2] + at - ends[1] : tensors[3] + at - ends[2];
  }
};

template <int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    update_slice(const __grid_constant__ Slice g, const __grid_constant__ Device comm) {
  using Values = Packet<T, kLanes>;
  const int W = comm.world_size;
  const int64_t step = int64_t(gridDim.x) * kThreads * kLanes;
  for (int64_t i = (blockIdx.x * int64_t(kThreads) + threadIdx.x) * kLanes; i < g.elements; i += step) {
    const int64_t at = g.first + i;
    const Values x = load_packet<T, kLanes>(g.parameters + at);
    Values m = load_packet<T, kLanes>(g.moment + i), v = load_packet<T, kLanes>(g.square + i), updated;
    float sums[kLanes] = {};
#pragma unroll 4
    for (int r = 0; r < W; ++r) {
      const Values of_rank = load_packet<T, kLanes>(comm.peer(g.gradients, r) + at);
#pragma unroll
      for (int e = 0; e < kLanes; ++e) sums[e] += to_float(of_rank.lanes[e]);
    }
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      float moment = to_float(m.lanes[e]), square = to_float(v.lanes[e]);
      updated.lanes[e] = T(g.adam.update(to_float(x.lanes[e]), sums[e] / float(W), moment, square));
      m.lanes[e] = T(moment);
      v.lanes[e] = T(square);
    }
    store_packet(g.new_moment + i, m);
    store_packet(g.new_square + i, v);
    T* place = g.place(at);
    if (!g.to_all) {
      store_packet(place, updated);
      continue;
    }
#pragma unroll 1
    for (int k = 0; k < W; ++k) store_packet(comm.peer(place, (comm.rank + k) % W), updated);
  }
}

// Sums gradients of all ranks' slices, each on its rank, between two barriers of all ranks.
inline void update_slices(const Step& step, Slice slice, const Comm& comm) {
  slice.gradients = step.gradients;
  slice.parameters = step.flat;
  slice.ends[0] = step.b1();
  slice.ends[1] = step.W2();
  slice.ends[2] = step.b2();
  slice.ends[3] = step.parameters();
  if (comm.world_size > 1) comm.barrier();
  const bool is_whole = slice.elements % 8 == 0 && step.d_in % 8 == 0 && step.hid % 8 == 0 && step.d_out % 8 == 0;
  const unsigned blocks = blocks_for(slice.elements, uint64_t(kThreads) * (is_whole ? 8 : 1));
  if (is_whole) update_slice<8><<<blocks, kThreads, 0, comm.cuda_stream()>>>(slice, comm.device());
  else update_slice<1><<<blocks, kThreads, 0, comm.cuda_stream()>>>(slice, comm.device());
  PKB_CUDA_LAUNCHED();
  if (comm.world_size > 1) comm.barrier();
}

}  // namespace mlp
}  // namespace pkb
