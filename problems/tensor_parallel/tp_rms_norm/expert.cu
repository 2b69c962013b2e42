// TPRMSNorm: a warp keeps its rows in shared memory while their sums of squares cross the link.
//
// What moves: a row comes in once, by a bulk copy into one of three stages of a warp, and leaves once. Its sum of squares
// goes to each peer as a tagged word (pkb/tagged_cuda.h), which is all the synchronisation there is: nobody touches a
// peer's arguments or output. Before a warp needs the peers' sums of a row it reads and sums the next one, and a third
// row is on its way, so that the crossing of the link is hidden by the memory's own work. Scratch is used in two halves
// by turns; each rank needs words of all others for every row, so that none can be two calls ahead.
//
// Bound: memory, a read and a write of all rows. The baseline makes eight passes over float32 rows, and reduces between.
//
// Left on the table: at few rows a warp has one, and the crossing is not hidden. Rows that are no multiples of 16 bytes,
// or do not fit three times into shared memory, are read twice.
#include <algorithm>

#include "pkb/bulk_copy_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kMaxWarps = 8, kStages = 3;
constexpr int kStagesBytes = 220 << 10;  // of shared memory, for the rows of a block

template <class T>
struct Rows {
  const T *x, *weight;
  T* out;
  int64_t rows;
  int columns;
  float eps;
  uint64_t half;  // bytes of scratch

  __host__ __device__ uint32_t row_bytes() const { return uint32_t(columns * sizeof(T)); }
};

// The sums of squares of one rank's columns that other ranks have sent.
template <class T>
struct Sums {
  const Rows<T>& g;
  const pkb::Device& comm;

  __device__ uint64_t* word(int receiver, int sender, int64_t row) const {
    return comm.peer(comm.scratch<uint64_t>(comm.epoch % 2 * g.half), receiver) + sender * g.rows + row;
  }
  // Lane r gives rank r this rank's sum.
  __device__ void send(int64_t row, float sum) const {
    const int r = pkb::lane_id();
    if (r < comm.world_size && r != comm.rank) pkb::store_tagged(word(r, comm.rank, row), sum, uint32_t(comm.epoch));
  }
  // The inverse of the norm of the row, of whose squares this rank has the sum `own`.
  __device__ float inverse(int64_t row, float own) const {
    const int r = pkb::lane_id();
    float of_rank = r == comm.rank ? own : 0.0f;
    if (r < comm.world_size && r != comm.rank) {
      of_rank = pkb::wait_tagged(word(comm.rank, r, row), uint32_t(comm.epoch));
    }
    return rsqrtf(pkb::Warp().sum(of_rank) / (float(g.columns) * float(comm.world_size)) + g.eps);
  }
};

template <class T>
__device__ __forceinline__ float squares_of(const uint4& vector) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < pkb::kPerVector<T>; ++i) sum += pkb::element<T>(vector, i) * pkb::element<T>(vector, i);
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kMaxWarps * 32)
    normalise_staged(const __grid_constant__ Rows<T> g, const __grid_constant__ pkb::Device comm) {
  constexpr int kLanes = pkb::kPerVector<T>;
  extern __shared__ __align__(128) uint8_t stages[];
  __shared__ uint64_t barriers[kMaxWarps * kStages];
  const int vectors = g.columns / kLanes, lane = pkb::lane_id();
  const int64_t warps = int64_t(gridDim.x) * (blockDim.x / 32);
  const Sums<T> sums{g, comm};
  uint8_t* own_stages = stages + pkb::warp_id() * kStages * g.row_bytes();
  pkb::BulkRing<kStages> ring{barriers + pkb::warp_id() * kStages};
  ring.begin();
  const auto fetch = [&](int64_t row) {
    if (row < g.rows) ring.fetch(own_stages + ring.filling() * g.row_bytes(), g.x + row * g.columns, g.row_bytes());
  };
  const int64_t first = blockIdx.x * int64_t(blockDim.x / 32) + pkb::warp_id();
  for (int i = 0; i < kStages; ++i) fetch(first + i * warps);
  comm.hold();
  const uint4* previous = nullptr;  // the row before, whose sums are on their way
  float of_previous = 0.0f;
  for (int64_t row = first; row < g.rows + warps; row += warps) {
    const uint4* staged = nullptr;
    float own = 0.0f;
    if (row < g.rows) {
      staged = reinterpret_cast<const uint4*>(own_stages + ring.take() * g.row_bytes());
      for (int i = lane; i < vectors; i += 32) own += squares_of<T>(staged[i]);
      own = pkb::Warp().sum(own);
      sums.send(row, own);
    }
    if (previous) {
      const int64_t before = row - warps;
      const float inverse = sums.inverse(before, of_previous);
      T* to = g.out + before * g.columns;
#pragma unroll 4
      for (int i = lane; i < vectors; i += 32) {
        const uint4 x = previous[i], weight = pkb::load_vector(g.weight + i * kLanes);
        pkb::Packet<T, kLanes> result;
#pragma unroll
        for (int e = 0; e < kLanes; ++e) {
          result.lanes[e] = T(pkb::element<T>(x, e) * inverse * pkb::element<T>(weight, e));
        }
        pkb::store_packet(to + i * kLanes, result);
      }
      pkb::fence_async_shared();  // before the copy engine fills the stage again
      __syncwarp();
      fetch(before + kStages * warps);
    }
    previous = staged;
    of_previous = own;
  }
}

// Any rows: a warp sums and sends all of its own, and reads them again. Own sums lie beside the others'.
template <class T>
__global__ void __launch_bounds__(kMaxWarps * 32)
    normalise_any(const __grid_constant__ Rows<T> g, const __grid_constant__ pkb::Device comm) {
  const int64_t warps = int64_t(gridDim.x) * kMaxWarps, first = blockIdx.x * int64_t(kMaxWarps) + pkb::warp_id();
  const Sums<T> sums{g, comm};
  const auto sum_of = [&](int64_t row) {
    float own = 0.0f;
    for (int i = pkb::lane_id(); i < g.columns; i += 32) {
      const float x = pkb::to_float(g.x[row * g.columns + i]);
      own += x * x;
    }
    return pkb::Warp().sum(own);
  };
  for (int64_t row = first; row < g.rows; row += warps) sums.send(row, sum_of(row));
  comm.hold();
  for (int64_t row = first; row < g.rows; row += warps) {
    const float inverse = sums.inverse(row, sum_of(row));
    for (int i = pkb::lane_id(); i < g.columns; i += 32) {
      const int64_t at = row * g.columns + i;
      g.out[at] = T(pkb::to_float(g.x[at]) * inverse * pkb::to_float(g.weight[i]));
    }
  }
}

template <class T>
void launch(const Rows<T>& g, const pkb::Comm& comm) {
  if (g.rows == 0) return;
  if (comm.world_size > 1 && comm.world_size * g.rows * sizeof(uint64_t) > g.half) {
    TVM_FFI_THROW(ValueError) << "half of scratch, " << g.half << " bytes, does not hold the sums of " << g.rows
                              << " rows";
  }
  const int fitting = int(kStagesBytes / (uint64_t(kStages) * g.row_bytes()));
  if (g.row_bytes() % sizeof(uint4) != 0 || fitting < 2) {
    const unsigned blocks = pkb::blocks_for(g.rows, kMaxWarps);
    normalise_any<T><<<blocks, kMaxWarps * 32, 0, comm.cuda_stream()>>>(g, comm.device());
  } else {
    const int warps = std::min(fitting, kMaxWarps), bytes = warps * kStages * int(g.row_bytes());
    pkb::allow_shared_memory<normalise_staged<T>>(bytes);
    // As many blocks as a multiprocessor holds: nobody waits for a block of the own rank.
    const unsigned blocks = pkb::blocks_for(g.rows, warps, bytes > kStagesBytes / 2 ? pkb::kBlocksPerSm : 1);
    normalise_staged<T><<<blocks, warps * 32, bytes, comm.cuda_stream()>>>(g, comm.device());
  }
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView local_hidden_states, TensorView local_weight, double variance_epsilon, TensorView out,
              pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(local_hidden_states.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t columns = local_weight.numel();
    if (columns == 0) return;
    launch(Rows<T>{static_cast<const T*>(local_hidden_states.data_ptr()),
                   static_cast<const T*>(local_weight.data_ptr()), static_cast<T*>(out.data_ptr()), out.numel() / columns,
                   int(columns), float(variance_epsilon), comm.scratch_bytes / 512 * 256},
           comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
