// KalmanFilterOptimizer: one kernel that reads the covariances, learns the gain of all ranks, and reads them again.
//
// What moves: a warp multiplies four rows of a covariance P by the gradient H, which it loads once for them. The last
// block to finish adds up the blocks' shares of H^T P H and sends this rank's sum, with the number of its matrices, to
// each peer as tagged words (pkb/tagged_cuda.h). Every block waits for all sums and forms the same gain, stores updated
// weights straight to all ranks' outputs, whose places follow from the numbers of matrices, and updates its rows of P
// in reverse, those first that the L2 cache still holds. The last block to have stored weights signals the peers, and
// waits for their signals at the end.
//
// Bound: memory, two reads and a write of P, of which the last 50 MB need no second read on H200. The baseline
// multiplies twice, forms K K^T, and scales in passes of their own.
//
// Left on the table: P is not symmetric in general, so that both triangles are read. A gain that was known one call
// late would save the second read.
#include <algorithm>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kBlocksPerSm = 2;
constexpr int kRows = 4;  // of a matrix that a warp takes together: a group

struct Matrix {
  const double *P, *H, *weights;
  double* P_out;
  int64_t first_row;    // among the rows of all matrices of this rank
  int n, first_group;
};

template <int kMatrices, int kVectors>
struct Globals {
  Matrix matrices[kMatrices];
  double* all_weights[kVectors];  // of all ranks, in rank order
  int size, groups;
  int64_t rows;
  const double* error;
  double* lambda_next;
  double* products;  // P H of all matrices
  double lambda, nue;
};

// Words of the signal pad: sums of this rank are ready; ranks whose weights are here.
constexpr int kSummed = 0, kWeights = 1;

// In scratch: counters of blocks, the sum of this rank, sums of blocks, and tagged words of all ranks. A rank ends a call
// with signals of all peers, whose blocks have read their words by then, so that these need no second place.
struct Scratch {
  const pkb::Device& comm;
  __device__ unsigned* counter(int which) const { return comm.scratch<unsigned>() + which; }
  __device__ double* own_sum() const { return comm.scratch<double>(128); }
  __device__ pkb::TaggedPair* sums() const { return comm.scratch<pkb::TaggedPair>(1024); }
  __device__ uint64_t* counts() const { return comm.scratch<uint64_t>(2048); }
  __device__ double* block_sums() const { return comm.scratch<double>(4096); }
};

// The matrix that a group, or a row, belongs to; `at` is near it.
template <class First>
__device__ int find_matrix(int size, int at, const First& first, int64_t place) {
  while (at + 1 < size && place >= first(at + 1)) ++at;
  while (at > 0 && place < first(at)) --at;
  return at;
}

// Calls use(j, values of the rows at columns j .. j + kLanes - 1) for this lane's columns of a group's rows.
template <int kLanes, class Use>
__device__ __forceinline__ void visit_rows(const Matrix& m, int row, const Use& use) {
  constexpr int kUnroll = 2;
  struct alignas(8 * kLanes) Lanes {
    double x[kLanes];
  };
  for (int first = pkb::lane_id() * kLanes; first < m.n; first += kUnroll * 32 * kLanes) {
    Lanes loaded[kUnroll][kRows];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int j = first + u * 32 * kLanes;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (j < m.n && row + r < m.n) {
          loaded[u][r] = *reinterpret_cast<const Lanes*>(m.P + int64_t(row + r) * m.n + j);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int j = first + u * 32 * kLanes;
      if (j < m.n) use(j, loaded[u]);
    }
  }
}

// P H of a group's rows; returns the group's share of H^T P H, in every lane.
template <int kLanes>
__device__ double multiply_rows(const Matrix& m, int row, double* products) {
  double sums[kRows] = {};
  visit_rows<kLanes>(m, row, [&](int j, const auto(&loaded)[kRows]) {
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      const double h = m.H[j + e];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (row + r < m.n) sums[r] += loaded[r].x[e] * h;
      }
    }
  });
  double share = 0.0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= m.n) break;
    sums[r] = pkb::reduce_warp(sums[r], [](double a, double b) { return a + b; });
    if (pkb::lane_id() == 0) products[m.first_row + row + r] = sums[r];
    share += m.H[row + r] * sums[r];
  }
  return share;
}

template <int kLanes>
__device__ void update_rows(const Matrix& m, int row, const double* products, double gain, double inverse_lambda) {
  const double* K = products + m.first_row;
  double scaled[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) scaled[r] = row + r < m.n ? gain * K[row + r] : 0.0;
  visit_rows<kLanes>(m, row, [&](int j, auto(&loaded)[kRows]) {
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      const double k = K[j + e];
#pragma unroll
      for (int r = 0; r < kRows; ++r) loaded[r].x[e] = inverse_lambda * (loaded[r].x[e] - scaled[r] * k);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      using Lanes = std::remove_reference_t<decltype(loaded[0])>;
      if (row + r < m.n) *reinterpret_cast<Lanes*>(m.P_out + int64_t(row + r) * m.n + j) = loaded[r];
    }
  });
}

// What all ranks have sent: the sum of their sums, and the place of this rank's first vector among all.
struct Received {
  double sum;
  int first_vector;
};

__device__ Received receive(const Scratch& scratch, int own_count) {
  __shared__ double sums[pkb::kMaxRanks];
  __shared__ int counts[pkb::kMaxRanks];
  const pkb::Device& comm = scratch.comm;
  const int r = int(threadIdx.x);
  comm.hold();
  if (r == comm.rank) {
    comm.wait(kSummed);  // products of all blocks are there, too
    sums[r] = *scratch.own_sum();
    counts[r] = own_count;
  } else if (r < comm.world_size) {
    comm.wait_begun(r);  // its outputs may be written
    const uint2 words = pkb::wait_tagged(scratch.sums() + r, uint32_t(comm.epoch));
    sums[r] = __hiloint2double(int(words.y), int(words.x));
    counts[r] = int(pkb::wait_tagged(scratch.counts() + r, uint32_t(comm.epoch)));
  }
  __syncthreads();
  Received received{0.0, 0};
  for (int i = 0; i < comm.world_size; ++i) {
    received.sum += sums[i];
    if (i < comm.rank) received.first_vector += counts[i];
  }
  return received;
}

// The last block adds up the sums of all blocks, for all ranks.
__device__ void send_sum(const Scratch& scratch, double of_lambdas, int count) {
  const pkb::Device& comm = scratch.comm;
  const int thread = int(threadIdx.x);
  double sum = 0.0;
  for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) sum += __ldcg(scratch.block_sums() + block);
  sum = pkb::reduce_block<kThreads>(sum, [](double a, double b) { return a + b; }) + of_lambdas;
  if (thread == comm.rank) {
    *scratch.own_sum() = sum;
    comm.signal(kSummed, comm.rank);
  } else if (thread < comm.world_size) {
    const uint2 words{uint32_t(__double2loint(sum)), uint32_t(__double2hiint(sum))};
    pkb::store_tagged(comm.peer(scratch.sums() + comm.rank, thread), words, uint32_t(comm.epoch));
    pkb::store_tagged(comm.peer(scratch.counts() + comm.rank, thread), float(count), uint32_t(comm.epoch));
  }
}

// All blocks wait for the last one of this rank: they are resident together.
template <int kMatrices, int kVectors>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    filter(const __grid_constant__ Globals<kMatrices, kVectors> g, const __grid_constant__ pkb::Device comm) {
  const Scratch scratch{comm};
  comm.signal_begun();
  const auto first_group = [&g](int i) { return g.matrices[i].first_group; };
  const int warp = int(blockIdx.x) * kWarps + pkb::warp_id(), warps = int(gridDim.x) * kWarps;
  const int own = warp < g.groups ? (g.groups - 1 - warp) / warps + 1 : 0;  // groups of this warp

  double share = 0.0;
  int at = 0;
  for (int i = 0; i < own; ++i) {
    const int group = warp + i * warps;
    at = find_matrix(g.size, at, first_group, group);
    const Matrix& m = g.matrices[at];
    const int row = (group - m.first_group) * kRows;
    share += m.n % 2 == 0 ? multiply_rows<2>(m, row, g.products) : multiply_rows<1>(m, row, g.products);
  }
  share = pkb::reduce_block<kThreads>(pkb::lane_id() == 0 ? share : 0.0, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) scratch.block_sums()[blockIdx.x] = share;
  if (pkb::arrives_last(scratch.counter(0))) send_sum(scratch, g.size * g.lambda, g.size);

  const Received received = receive(scratch, g.size);
  const double gain = 1.0 / received.sum, step = gain * *g.error;
  if (blockIdx.x == 0 && threadIdx.x == 0) *g.lambda_next = g.nue * g.lambda + 1.0 - g.nue;
  int of_row = 0;
  for (int64_t row = blockIdx.x * int64_t(kThreads) + threadIdx.x; row < g.rows; row += int64_t(gridDim.x) * kThreads) {
    of_row = find_matrix(g.size, of_row, [&g](int i) { return g.matrices[i].first_row; }, row);
    const Matrix& m = g.matrices[of_row];
    const int64_t in_matrix = row - m.first_row;
    const double updated = m.weights[in_matrix] + step * g.products[row];
    double* to = g.all_weights[received.first_vector + of_row] + in_matrix;
    for (int k = 0; k < comm.world_size; ++k) comm.peer(to, k)[0] = updated;
  }
  const int thread = int(threadIdx.x);
  const bool has_peer = thread < comm.world_size && thread != comm.rank;
  const bool is_last = pkb::arrives_last(scratch.counter(1));
  if (is_last && has_peer) comm.signal(kWeights + comm.rank, thread);

  for (int i = own - 1; i >= 0; --i) {
    const int group = warp + i * warps;
    at = find_matrix(g.size, at, first_group, group);
    const Matrix& m = g.matrices[at];
    const int row = (group - m.first_group) * kRows;
    if (m.n % 2 == 0) update_rows<2>(m, row, g.products, gain, 1.0 / g.lambda);
    else update_rows<1>(m, row, g.products, gain, 1.0 / g.lambda);
  }
  if (is_last && has_peer) comm.wait(kWeights + thread);
}

// Few matrices make a kernel's arguments small.
template <int kMatrices, int kVectors>
void launch(const Array<Tensor>& H, const TensorView& error, const Array<Tensor>& weights, const Array<Tensor>& P,
            double lambda, double nue, const Array<Tensor>& all_weights, const Array<Tensor>& P_out,
            const TensorView& lambda_next, const pkb::Comm& comm) {
  const auto of = [](const auto& tensor) { return static_cast<double*>(tensor.data_ptr()); };
  if (P.size() > kMatrices || all_weights.size() > kVectors) {
    TVM_FFI_THROW(ValueError) << "expected at most " << kMatrices << " matrices on a rank and " << kVectors
                              << " on all, got " << P.size() << " and " << all_weights.size();
  }
  Globals<kMatrices, kVectors> g;
  g.size = int(P.size());
  g.groups = 0;
  g.rows = 0;
  for (int i = 0; i < g.size; ++i) {
    const int n = int(H[i].numel());
    g.matrices[i] = Matrix{of(P[i]), of(H[i]), of(weights[i]), of(P_out[i]), g.rows, n, g.groups};
    g.rows += n;
    g.groups += (n + kRows - 1) / kRows;
  }
  for (int i = 0; i < int(all_weights.size()); ++i) g.all_weights[i] = of(all_weights[i]);
  g.error = of(error);
  g.lambda_next = of(lambda_next);
  g.products = pkb::kept_memory<double>(std::max<int64_t>(g.rows, 1));
  g.lambda = lambda;
  g.nue = nue;
  constexpr auto kKernel = filter<kMatrices, kVectors>;
  const int most = pkb::resident_blocks<kKernel, kThreads, 0>();
  const int blocks = std::clamp((g.groups + kWarps - 1) / kWarps, 1, std::min(most, pkb::kMaxBlocks));
  kKernel<<<unsigned(blocks), kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(Array<Tensor> H, TensorView error, Array<Tensor> weights, Array<Tensor> P, double kalman_lambda,
              double kalman_nue, Array<Tensor> all_weights, Array<Tensor> P_out, TensorView lambda_next,
              pkb::Comm comm) {
  if (error.dtype() != pkb::kDtype<double>) TVM_FFI_THROW(TypeError) << "expected float64, got " << error.dtype();
  const bool is_short = P.size() <= 16 && all_weights.size() <= 128;
  const auto run = is_short ? launch<16, 128> : launch<256, 1536>;
  run(H, error, weights, P, kalman_lambda, kalman_nue, all_weights, P_out, lambda_next, comm);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
