// ReduceScatterRMSNorm: every rank pushes rows to their owners, which add up and normalise a row in registers.
//
// What moves: W - 1 shares of rows cross the link into each rank, each once, and land in scratch. A few go as words that
// carry the number of the call, and a warp adds up and normalises a row as its words arrive. More go in rounds: a block
// pushes its rows of a round to each owner, signals, and normalises the rows of the round before, which have had that
// time to arrive. The mean of a row is never stored: its sum over ranks lies in registers until its mean square is known
// (pkb/rms_norm_cuda.h). Nobody reads a peer's arguments, and a rank waits for nothing but rows.
//
// Bound: link, W - 1 shares in and out a rank; on one rank memory, a read and a write of all rows. The baseline adds
// seven passes over memory after its reduce-scatter.
//
// Left on the table: rows are written to scratch and read again, which takes memory 2 (W - 1) shares beside the link's
// W - 1; a switch that adds would send each sum once.
#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/rms_norm_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kWarps = kThreads / 32;
constexpr int kHeld = 4;          // pieces of a row that a thread keeps
constexpr int kMaxRounds = 8;     // more would pay for more signals than they hide

template <class T>
struct Rows {
  const T* x;  // rows of all ranks, one share after another
  const T* gamma;
  T* out;
  int64_t rows;
  int columns;
  float eps;

  __device__ const T* row_for(int r, int64_t row) const { return x + (r * rows + row) * columns; }
  __host__ __device__ uint64_t row_bytes() const { return uint64_t(columns) * sizeof(T); }
};

template <class T>
__device__ __forceinline__ void add_eight_bytes(float (&sums)[8 / sizeof(T)], uint2 eight) {
  T lanes[8 / sizeof(T)];
  memcpy(lanes, &eight, sizeof(eight));
#pragma unroll
  for (int i = 0; i < int(8 / sizeof(T)); ++i) sums[i] += pkb::to_float(lanes[i]);
}

template <class T>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    normalise_tagged(const __grid_constant__ Rows<T> g, const __grid_constant__ pkb::Boxes boxes,
                     const __grid_constant__ pkb::Device comm) {
  constexpr int kLanes = 8 / sizeof(T);
  const int W = comm.world_size, pieces = int((g.row_bytes() + 7) / 8);
  const uint32_t tag = uint32_t(comm.epoch);
  const auto piece_of = [&](const T* row, int piece) {
    return pkb::load_eight(reinterpret_cast<const char*>(row) + 8 * piece, g.row_bytes() - 8 * piece);
  };
  const int64_t warp = int64_t(blockIdx.x) * kWarps + pkb::warp_id(), warps = int64_t(gridDim.x) * kWarps;
  for (int k = 1; k < W; ++k) {
    const int r = pkb::rank_after(comm, k);
    pkb::TaggedPair* box = boxes.box<pkb::TaggedPair>(comm, r, comm.rank);
    for (int64_t row = warp; row < g.rows; row += warps) {
      for (int piece = pkb::lane_id(); piece < pieces; piece += 32) {
        pkb::store_tagged(box + row * pieces + piece, piece_of(g.row_for(r, row), piece), tag);
      }
    }
  }
  comm.hold();
  for (int64_t row = warp; row < g.rows; row += warps) {
    const auto mean = [&](int piece, float(&sums)[kLanes]) {
      for (float& sum : sums) sum = 0.0f;
      for (int r = 0; r < W; ++r) {
        add_eight_bytes<T>(sums, r == comm.rank ? piece_of(g.row_for(r, row), piece)
                                                : pkb::wait_tagged(boxes.box<pkb::TaggedPair>(comm, comm.rank, r) +
                                                                       row * pieces + piece, tag));
      }
      for (float& sum : sums) sum /= float(W);
    };
    const auto store = [&](int piece, const float(&x)[kLanes], float inverse) {
      float weight[kLanes] = {};
      add_eight_bytes<T>(weight, piece_of(g.gamma, piece));
      T lanes[kLanes];
      for (int i = 0; i < kLanes; ++i) lanes[i] = T(x[i] * inverse * weight[i]);
      uint2 eight;
      memcpy(&eight, lanes, sizeof(eight));
      pkb::store_eight(reinterpret_cast<char*>(g.out + row * g.columns) + 8 * piece, eight, g.row_bytes() - 8 * piece);
    };
    pkb::rms_norm<kLanes, kHeld>(pkb::Warp(), pieces, g.columns, g.eps, mean, store);
  }
}

// The rows of a share that a block has in a round.
struct Part {
  int64_t begin, end;
  __device__ Part(int64_t rows, int round, int rounds) {
    const int64_t parts = int64_t(rounds) * gridDim.x, part = int64_t(round) * gridDim.x + blockIdx.x;
    begin = rows * part / parts;
    end = rows * (part + 1) / parts;
  }
};

// Rows are whole numbers of packets of kLanes.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    normalise_rows(const __grid_constant__ Rows<T> g, const __grid_constant__ pkb::Boxes boxes, int rounds,
                   const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size, thread = int(threadIdx.x);
  const bool has_peer = thread < W && thread != comm.rank;
  for (int round = 0; round <= rounds; ++round) {
    if (round < rounds && W > 1) {
      const Part part(g.rows, round, rounds);
      for (int k = 1; k < W; ++k) {
        const int r = pkb::rank_after(comm, k);
        pkb::copy_slice(boxes.box<T>(comm, r, comm.rank) + part.begin * g.columns, g.row_for(r, part.begin),
                        uint64_t(part.end - part.begin) * g.row_bytes());
      }
      __syncthreads();
      if (has_peer) comm.signal_block(round, thread);
    }
    if (round == 0) continue;  // rows of the round before have had the time of this round's pushes to arrive
    if (has_peer) comm.wait_block(round - 1, thread);
    __syncthreads();
    const Part part(g.rows, round - 1, rounds);
    for (int64_t row = part.begin; row < part.end; ++row) {
      const auto mean = [&](int piece, float(&sums)[kLanes]) {
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
#pragma unroll 2
        for (int r = 0; r < W; ++r) {
          const T* term = r == comm.rank ? g.row_for(r, row) : boxes.box<T>(comm, comm.rank, r) + row * g.columns;
          const auto packet = pkb::load_packet<T, kLanes>(term + piece * kLanes);
#pragma unroll
          for (int i = 0; i < kLanes; ++i) sums[i] += pkb::to_float(packet.lanes[i]);
        }
#pragma unroll
        for (float& sum : sums) sum /= float(W);
      };
      const auto store = [&](int piece, const float(&x)[kLanes], float inverse) {
        const auto weight = *reinterpret_cast<const pkb::Packet<T, kLanes>*>(g.gamma + piece * kLanes);
        pkb::Packet<T, kLanes> result;
#pragma unroll
        for (int i = 0; i < kLanes; ++i) result.lanes[i] = T(x[i] * inverse * pkb::to_float(weight.lanes[i]));
        pkb::store_packet(g.out + row * g.columns + piece * kLanes, result);
      };
      pkb::rms_norm<kLanes, kHeld>(pkb::Block(), g.columns / kLanes, g.columns, g.eps, mean, store);
    }
  }
}

template <class T>
void launch(const Rows<T>& g, const pkb::Comm& comm) {
  if (g.rows == 0) return;
  const uint64_t share = g.rows * g.row_bytes(), padded = g.rows * ((g.row_bytes() + 7) / 8 * 8);
  if (pkb::is_tagged(padded, comm)) {
    const unsigned blocks = pkb::blocks_for(g.rows, kWarps);
    normalise_tagged<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, pkb::Boxes::for_tagged(comm), comm.device());
  } else {
    const unsigned blocks = pkb::blocks_for(g.rows, 1);  // as many on every rank
    const int rounds = comm.world_size > 1 ? int(std::clamp<int64_t>(g.rows / blocks / 2, 1, kMaxRounds)) : 1;
    const auto boxes = pkb::Boxes::for_bytes(comm.world_size > 1 ? share : 0, comm);
    constexpr int kLanes = pkb::kPerVector<T>;
    const auto kernel = g.columns % kLanes == 0 ? normalise_rows<T, kLanes> : normalise_rows<T, 1>;
    kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, boxes, rounds, comm.device());
  }
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView rs_input_1d, TensorView gamma, double eps, TensorView out, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(rs_input_1d.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch(Rows<T>{static_cast<const T*>(rs_input_1d.data_ptr()), static_cast<const T*>(gamma.data_ptr()),
                   static_cast<T*>(out.data_ptr()), out.size(0), int(gamma.numel()), float(eps)},
           comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
