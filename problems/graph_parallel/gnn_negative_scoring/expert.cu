// GNNNegativeScoring: each rank ranks its own positives in one kernel, and stores their ranks into all ranks' outputs.
//
// What moves: every score is read once, 16 bytes a lane; scores themselves stay where they are. A warp finds, for each
// positive, the largest number whose rounded sigmoid does not exceed the positive's, by a search of 32 keys at a time, so
// that negatives are compared as they are, without a sigmoid of each. How many positives each rank has goes to all others in one
// word, which also says that the call has begun, and is there when the first ranks are. Ranks leave as whole lines.
//
// Bound: memory, one read of this rank's scores. The baseline gathers all scores on all ranks, and sorts every row.
//
// Left on the table: the end of the call costs a crossing of the link; rows whose scores are no multiples of 16
// bytes are read element by element.
#include "pkb/exchange_cuda.h"
#include "pkb/ragged_cuda.h"
#include "pkb/select_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kWarps = kThreads / 32;
constexpr int kRows = 8 * kWarps;  // whose ranks a block sends together

template <class T>
struct Scores {
  const T *positives, *negatives;  // (rows,) and (rows, columns)
  int64_t* ranks;                  // of all ranks' positives
  uint32_t rows;
  int64_t columns;
};

// The sigmoid as the dtype holds it.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  return float(T(1.0f / (1.0f + expf(-x))));
}

// The largest number whose sigmoid is at most `bound`, which is one; by a warp.
template <class T>
__device__ __forceinline__ float largest_within(float bound) {
  uint32_t key = pkb::key_of<T>(-pkb::kInfinity), keys = pkb::key_of<T>(pkb::kInfinity) - key + 1;
  while (keys > 1) {
    const uint32_t step = (keys - 1) / 32 + 1, ahead = pkb::lane_id() * step;
    const bool holds = ahead < keys && sigmoid<T>(pkb::value_of<T>(key + ahead)) <= bound;
    const uint32_t passed = max(__popc(__ballot_sync(pkb::kAllLanes, holds)), 1) - 1;
    key += passed * step;
    keys = min(step, keys - passed * step);
  }
  return pkb::value_of<T>(key);
}

// Numbers of a row above the threshold, and those that are none; in all lanes.
template <class T, bool kVectors>
__device__ __forceinline__ int count_above(const T* row, int64_t columns, float threshold) {
  constexpr int kAtOnce = 4, kLanes = kVectors ? pkb::kPerVector<T> : 1;
  int count = 0;
  for (int64_t first = pkb::lane_id() * kLanes; first < columns; first += 32 * kLanes * kAtOnce) {
    pkb::Packet<T, kLanes> packets[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t i = first + k * 32 * kLanes;
      if (i < columns) packets[k] = pkb::load_packet<T, kLanes>(row + i);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * 32 * kLanes >= columns) break;
#pragma unroll
      for (const T& x : packets[k].lanes) count += !(float(x) <= threshold);
    }
  }
  return pkb::Warp().sum(count);
}

template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads, 2 * pkb::kBlocksPerSm)
    rank_positives(const __grid_constant__ Scores<T> g, const __grid_constant__ pkb::Device comm) {
  __shared__ int64_t ranks[kRows];
  __shared__ uint32_t counts[pkb::kMaxRanks];
  const int thread = int(threadIdx.x);
  const bool has_peer = thread < comm.world_size && thread != comm.rank;
  if (has_peer && blockIdx.x == 0) pkb::post_number(comm, thread, 0, g.rows);
  if (thread == comm.rank) counts[thread] = g.rows;

  bool awaited = false;
  uint32_t before = 0;
  const uint32_t begin = uint32_t(uint64_t(g.rows) * blockIdx.x / gridDim.x);
  const uint32_t end = uint32_t(uint64_t(g.rows) * (blockIdx.x + 1) / gridDim.x);
  for (uint32_t first = begin; first < end; first += kRows) {
    const int rows = int(min(uint32_t(kRows), end - first));
    for (int i = pkb::warp_id(); i < rows; i += kWarps) {
      const float bound = sigmoid<T>(float(g.positives[first + i]));
      int above = 0;  // nothing is greater than NaN
      if (bound == bound) {
        above = count_above<T, kVectors>(g.negatives + (first + i) * g.columns, g.columns, largest_within<T>(bound));
      }
      if (pkb::lane_id() == 0) ranks[i] = 1 + above;
    }
    if (!awaited && has_peer) counts[thread] = pkb::await_number(comm, thread, 0);
    __syncthreads();
    if (!awaited) {
      for (int r = 0; r < comm.rank; ++r) before += counts[r];
      awaited = true;
    }
    for (int i = thread; i < rows * comm.world_size; i += kThreads) {
      const int r = pkb::rank_after(comm, i / rows);
      comm.peer(g.ranks, r)[before + first + i % rows] = ranks[i % rows];
    }
    __syncthreads();
  }
  comm.barrier_blocks();
}

}  // namespace

void solution(TensorView local_pos_scores, TensorView local_neg_scores, int64_t group, TensorView ranks, pkb::Comm comm) {
  if (group >= 0 && comm.group(group).size != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  }
  pkb::with_type<__nv_bfloat16, __half, float>(local_pos_scores.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Scores<T> g{static_cast<const T*>(local_pos_scores.data_ptr()),
                      static_cast<const T*>(local_neg_scores.data_ptr()), static_cast<int64_t*>(ranks.data_ptr()),
                      uint32_t(local_pos_scores.size(0)), local_neg_scores.size(1)};
    // As many blocks on every rank, and a warp for each positive where there are few.
    const uint64_t positives = uint64_t(ranks.size(0)) / comm.world_size + 1;
    const unsigned blocks = unsigned(std::min<uint64_t>(positives / kWarps + 1, 2 * pkb::max_blocks()));
    const auto kernel = g.columns % pkb::kPerVector<T> == 0 ? rank_positives<T, true> : rank_positives<T, false>;
    kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  });
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
