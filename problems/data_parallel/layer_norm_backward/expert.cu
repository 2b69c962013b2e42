// LayerNormBackward: one kernel sums the columns of both gradients, and the sums of a tile cross the link while others
// are formed.
//
// What moves: each block sums some rows of 256 columns, of dY and of dY * X_hat at once (pkb/norm_backward_cuda.h). The
// last block of a tile to finish adds up the tile's partial sums and sends this rank's to all ranks, its own too, as
// words that carry the number of the call (pkb/tagged_cuda.h). In the end every rank adds up the words of all ranks in
// their order, so that all get the same bits. Nobody touches a peer's arguments or outputs. Words lie in two halves by
// turns; each rank needs those of all others in every call, so that none can be two calls ahead.
//
// Bound: memory, one read of both operands. The baseline reads dY twice, writes and reads the product, and reduces
// twice.
//
// Left on the table: all columns cross the link twice as long as they are. On one rank the words only pass through this
// rank's own memory. float64 takes two kernels, in which a thread has a column.
#include <algorithm>

#include "pkb/launch_cuda.h"
#include "pkb/norm_backward_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256, kBlocksPerSm = 2;
constexpr int kGradients = 2;         // of gain and bias
constexpr uint64_t kCounters = 1 << 16;  // bytes of scratch before the words

// Words of the sums in scratch, of type Word, in two halves: of a sender, gradient and column.
template <class Word>
struct Words {
  const pkb::Device& comm;
  int columns;
  __device__ Word* at(int sender, int64_t sum) const {
    const int64_t place = int64_t(comm.epoch % 2) * comm.world_size + sender;
    return comm.scratch<Word>(kCounters) + place * kGradients * columns + sum;
  }
};

template <class T>
struct Globals {
  const T *x_hat, *dY;
  T* gradients[kGradients];
  int64_t rows;
  int columns, slabs;
  pkb::Accumulator<T>* partials;  // (slabs, kGradients, columns)
};

// All blocks wait for all tiles of all ranks: they are resident together.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    sum_columns(const __grid_constant__ Globals<T> g, const __grid_constant__ pkb::Device comm) {
  using Sums = pkb::ColumnSums<kThreads, 32, kLanes, kGradients>;
  const Sums sums{g.rows, g.columns, g.slabs, g.partials, comm.scratch<unsigned>()};
  const Words<uint64_t> words{comm, g.columns};
  const uint32_t tag = uint32_t(comm.epoch);
  const int tiles = Sums::tiles(g.columns);
  for (int item = int(blockIdx.x); item < tiles * g.slabs; item += int(gridDim.x)) {
    sums.run(
        item % tiles, item / tiles,
        [&](int64_t row, int column, float(&of_columns)[kGradients][kLanes]) {
          const int64_t at = row * g.columns + column;
          const auto dY = pkb::load_packet<T, kLanes>(g.dY + at), x_hat = pkb::load_packet<T, kLanes>(g.x_hat + at);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) {
            const float gradient = pkb::to_float(dY.lanes[i]);
            of_columns[0][i] += gradient * pkb::to_float(x_hat.lanes[i]);
            of_columns[1][i] += gradient;
          }
        },
        [&](int which, int column, float sum) {
          uint64_t* word = words.at(comm.rank, int64_t(which) * g.columns + column);
          for (int r = 0; r < comm.world_size; ++r) pkb::store_tagged(comm.peer(word, r), sum, tag);
        });
  }
  comm.hold();
  const int64_t step = int64_t(gridDim.x) * kThreads;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < int64_t(kGradients) * g.columns; i += step) {
    float sum = 0.0f;
    for (int r = 0; r < comm.world_size; ++r) sum += pkb::wait_tagged(words.at(r, i), tag);
    g.gradients[i / g.columns][i % g.columns] = T(sum);
  }
}

// Partial sums of some rows; a thread has a column.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads) sum_slab(const __grid_constant__ Globals<double> g) {
  const int column = int(blockIdx.x) * kBlockThreads + int(threadIdx.x), slab = int(blockIdx.y);
  if (column >= g.columns) return;
  double gain = 0.0, bias = 0.0;
#pragma unroll 4
  for (int64_t row = g.rows * slab / g.slabs; row < g.rows * (slab + 1) / g.slabs; ++row) {
    const double gradient = g.dY[row * g.columns + column];
    gain += gradient * g.x_hat[row * g.columns + column];
    bias += gradient;
  }
  double* to = g.partials + int64_t(slab) * kGradients * g.columns + column;
  to[0] = gain;
  to[g.columns] = bias;
}

template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm)
    sum_ranks(const __grid_constant__ Globals<double> g, const __grid_constant__ pkb::Device comm) {
  const Words<pkb::TaggedPair> words{comm, g.columns};
  const uint32_t tag = uint32_t(comm.epoch);
  const int64_t begin = blockIdx.x * int64_t(kBlockThreads) + threadIdx.x, end = int64_t(kGradients) * g.columns;
  const int64_t step = int64_t(gridDim.x) * kBlockThreads;
  for (int64_t i = begin; i < end; i += step) {
    double sum = 0.0;
    for (int slab = 0; slab < g.slabs; ++slab) sum += g.partials[slab * end + i];
    const uint2 halves{uint32_t(__double2loint(sum)), uint32_t(__double2hiint(sum))};
    for (int r = 0; r < comm.world_size; ++r) pkb::store_tagged(comm.peer(words.at(comm.rank, i), r), halves, tag);
  }
  comm.hold();
  for (int64_t i = begin; i < end; i += step) {
    double sum = 0.0;
    for (int r = 0; r < comm.world_size; ++r) {
      const uint2 halves = pkb::wait_tagged(words.at(r, i), tag);
      sum += __hiloint2double(int(halves.y), int(halves.x));
    }
    g.gradients[i / g.columns][i % g.columns] = sum;
  }
}

template <class T, int kLanes>
void launch(Globals<T> g, const pkb::Comm& comm) {
  using Sums = pkb::ColumnSums<kThreads, 32, kLanes, kGradients>;
  const int64_t most = pkb::resident_blocks<sum_columns<T, kLanes>, kThreads, 0>(), tiles = Sums::tiles(g.columns);
  if (tiles * sizeof(unsigned) > kCounters) TVM_FFI_THROW(ValueError) << "expected fewer columns than " << g.columns;
  g.slabs = Sums::slabs_for(g.rows, g.columns, most);
  g.partials = pkb::kept_memory<float>(int64_t(g.slabs) * kGradients * g.columns);
  const unsigned blocks = unsigned(std::min<int64_t>(tiles * g.slabs, most));
  sum_columns<T, kLanes><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

void launch(Globals<double> g, const pkb::Comm& comm) {
  const int64_t tiles = (g.columns + kThreads - 1) / kThreads;
  g.slabs = int(std::clamp<int64_t>(pkb::max_blocks() / tiles, 1, std::max<int64_t>(g.rows / 16, 1)));
  g.partials = pkb::kept_memory<double>(int64_t(g.slabs) * kGradients * g.columns);
  sum_slab<kThreads><<<dim3(unsigned(tiles), unsigned(g.slabs)), kThreads, 0, comm.cuda_stream()>>>(g);
  PKB_CUDA_LAUNCHED();
  const unsigned blocks = pkb::blocks_for(uint64_t(kGradients) * g.columns, kThreads);
  sum_ranks<kThreads><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView X_hat, TensorView dY, TensorView d_gamma, TensorView d_beta, pkb::Comm comm) {
  pkb::with_float_type(X_hat.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& tensor) { return static_cast<T*>(tensor.data_ptr()); };
    const uint64_t columns = X_hat.size(1), word = sizeof(T) == 8 ? sizeof(pkb::TaggedPair) : sizeof(uint64_t);
    if (columns == 0) return;
    if (kCounters + 2 * comm.world_size * kGradients * columns * word > comm.scratch_bytes) {
      TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold the sums of " << columns
                                << " columns";
    }
    Globals<T> g{of(X_hat), of(dY), {of(d_gamma), of(d_beta)}, X_hat.size(0), int(columns), 1, nullptr};
    if constexpr (sizeof(T) == 8) {
      launch(g, comm);
    } else {
      constexpr int kLanes = pkb::kPerVector<T>;
      if (columns % kLanes == 0) launch<T, kLanes>(g, comm);
      else launch<T, 1>(g, comm);
    }
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
