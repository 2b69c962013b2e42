// GNNFeatureExchangeBackward: one kernel pulls gradient rows from where they lie and adds them to the rows of their seeds.
//
// What moves: each rank tells every other one where the rows for it begin in this rank's gradients, in one word that also
// says that the call has begun. Meanwhile blocks set the result to zero and meet. Then every arriving row is loaded
// over the link once, 16 bytes a thread and four loads in flight, and added to its seed's row by one atomic addition of
// four numbers in the L2 cache: nothing is received into a buffer. At the end each block tells the peers that it has read.
//
// Bound: link, the rows that arrive; on one rank memory, a read of each row, and the result set to zero and added to.
// The baseline receives into a buffer by a call for each peer, sets the result to zero, and adds row by row.
//
// Left on the table: the order of additions changes from call to call, as the baseline's does. Rows sorted by seed would
// be added in registers, for less traffic of memory, and of the link where the sender sorted them.
#include <type_traits>

#include "pkb/exchange_cuda.h"
#include "pkb/grid_cuda.h"
#include "pkb/ragged_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kAtOnce = pkb::kLoadsAtOnce;

template <class Unit>
struct Sums {
  const Unit* gradients;
  const int64_t* seeds;                   // of the rows that arrive
  Unit* result;
  uint64_t seed_rows;
  uint32_t arriving[pkb::kMaxRanks + 1];  // chunk i, of rank + i, begins there in seeds
  uint32_t leaving[pkb::kMaxRanks];       // the rows for rank + i begin there in gradients
  uint32_t units;                         // of a row
};

template <class Unit>
__device__ __forceinline__ void add_chunk(const Sums<Unit>& g, const Unit* rows, uint32_t begin, uint32_t end) {
  constexpr uint32_t kTile = kThreads * kAtOnce;
  const uint64_t all = uint64_t(end - begin) * g.units;
  for (uint64_t first = uint64_t(blockIdx.x) * kTile + threadIdx.x; first < all; first += uint64_t(gridDim.x) * kTile) {
    Unit values[kAtOnce];
    Unit* to[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t i = first + k * kThreads;
      if (i >= all) continue;
      const uint32_t row = uint32_t(i / g.units);
      values[k] = __ldcs(rows + i);
      to[k] = g.result + uint64_t(g.seeds[begin + row]) * g.units + (i - uint64_t(row) * g.units);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kThreads < all) atomicAdd(to[k], values[k]);
    }
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    pull_and_add(const __grid_constant__ Sums<Unit> g, const __grid_constant__ pkb::Device comm) {
  __shared__ uint32_t places[pkb::kMaxRanks];
  const int thread = int(threadIdx.x), W = comm.world_size;
  const bool has_peer = thread > 0 && thread < W;
  const int peer = has_peer ? pkb::rank_after(comm, thread) : 0;
  if (has_peer && blockIdx.x == 0) pkb::post_number(comm, peer, 0, g.leaving[thread]);
  for (uint64_t i = uint64_t(blockIdx.x) * kThreads + thread; i < g.seed_rows * g.units; i += gridDim.x * kThreads) {
    g.result[i] = Unit{};
  }
  if (has_peer) places[thread] = pkb::await_number(comm, peer, 0);
  else if (thread == 0) places[0] = g.leaving[0];
  pkb::Grid(comm.scratch<char>(pkb::kGridScratch)).meet();
  for (int k = 1; k <= W; ++k) {  // this rank's own rows come last
    const int i = k % W, r = pkb::rank_after(comm, i);
    add_chunk(g, comm.peer(g.gradients, r) + uint64_t(places[i]) * g.units, g.arriving[i], g.arriving[i + 1]);
  }
  comm.barrier_blocks();
}

template <class Unit>
void launch(const TensorView& gradients, const TensorView& seeds, const TensorView& result, const Array<int64_t>& sent,
            const Array<int64_t>& received, const pkb::Comm& comm) {
  Sums<Unit> g{static_cast<const Unit*>(gradients.data_ptr()), static_cast<const int64_t*>(seeds.data_ptr()),
               static_cast<Unit*>(result.data_ptr()), uint64_t(result.size(0))};
  uint32_t leaving = 0;
  for (int i = 0; i < comm.world_size; ++i) {
    g.leaving[i] = leaving;
    leaving += uint32_t(sent[i]);
    g.arriving[i + 1] = g.arriving[i] + uint32_t(received[i]);
  }
  g.units = uint32_t(result.size(1) * result.dtype().bits / 8 / sizeof(Unit));
  constexpr auto kKernel = pull_and_add<Unit>;
  const int resident = pkb::resident_blocks<kKernel, kThreads, 0>();  // equal on all ranks, as blocks meet
  const unsigned blocks = unsigned(std::min<int>(resident, int(pkb::max_blocks())));
  kKernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView grad_output, TensorView seed_inverse_ids, int64_t seed_size, Array<int64_t> counts_sent,
              Array<int64_t> counts_received, int64_t group, TensorView grad_seeds, pkb::Comm comm) {
  if (group >= 0 && comm.group(group).size != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  }
  if (grad_seeds.size(1) == 0) return;
  pkb::with_type<float, double>(grad_output.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const bool by_four = std::is_same_v<T, float> && grad_seeds.size(1) % 4 == 0;
    using Wide = std::conditional_t<std::is_same_v<T, float>, float4, T>;
    if (by_four) launch<Wide>(grad_output, seed_inverse_ids, grad_seeds, counts_sent, counts_received, comm);
    else launch<T>(grad_output, seed_inverse_ids, grad_seeds, counts_sent, counts_received, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
