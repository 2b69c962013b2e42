// GNNFeatureExchange: one kernel picks the rows that others asked for and stores them into their outputs.
//
// What moves: each rank tells every other one where its rows belong in this rank's output, in one word that also says
// that the call has begun. That is all a sender has to know: it stores rows of its table, by the ids of the chunk,
// straight to their places over the link, 16 bytes a store, four rows' parts in flight for each thread. At the end
// each block tells its counterparts that it has stored. The lists of counts are the host's, and no rank waits for it.
//
// Bound: link, the rows that leave; on one rank memory, a read and a write of each row. The baseline picks rows into a
// buffer, and sends and receives by a call for each peer.
//
// Left on the table: a row that a rank asked for twice crosses twice; at small sizes two crossings, one for the
// word and one for the rows, of which tagged words would save a part.
#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/ragged_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;

struct Exchange {
  const char* features;
  const int64_t* ids;
  char* out;
  uint32_t leaving[pkb::kMaxRanks + 1];   // chunk i, for rank + i, begins there in ids
  uint32_t arriving[pkb::kMaxRanks];      // the rows of rank + i begin there in out
  uint32_t units;                         // of a row
};

template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    push_rows(const __grid_constant__ Exchange g, const __grid_constant__ pkb::Device comm) {
  __shared__ uint32_t places[pkb::kMaxRanks];
  const int thread = int(threadIdx.x), W = comm.world_size;
  const bool has_peer = thread > 0 && thread < W;
  const int peer = has_peer ? pkb::rank_after(comm, thread) : 0;
  if (has_peer) {
    if (blockIdx.x == 0) pkb::post_number(comm, peer, 0, g.arriving[thread]);
    places[thread] = pkb::await_number(comm, peer, 0);
  } else if (thread == 0) {
    places[0] = g.arriving[0];
  }
  __syncthreads();
  const auto* features = reinterpret_cast<const Unit*>(g.features);
  for (int k = 1; k <= W; ++k) {  // this rank's own rows come last
    const int i = k % W, r = pkb::rank_after(comm, i);
    const int64_t* ids = g.ids + g.leaving[i];
    Unit* out = comm.peer(reinterpret_cast<Unit*>(g.out), r) + uint64_t(places[i]) * g.units;
    pkb::copy_rows<Unit>(
        g.leaving[i + 1] - g.leaving[i], g.units, [&](uint64_t row) { return features + uint64_t(ids[row]) * g.units; },
        [&](uint64_t row) { return out + row * g.units; }, blockIdx.x, gridDim.x);
  }
  comm.barrier_blocks();
}

}  // namespace

void solution(TensorView local_features, TensorView seed_inverse_ids, Array<int64_t> counts_sent,
              Array<int64_t> counts_received, int64_t group, TensorView out, pkb::Comm comm) {
  if (group >= 0 && comm.group(group).size != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  }
  Exchange g{static_cast<const char*>(local_features.data_ptr()), static_cast<const int64_t*>(seed_inverse_ids.data_ptr()),
             static_cast<char*>(out.data_ptr())};
  uint32_t arriving = 0;
  for (int i = 0; i < comm.world_size; ++i) {
    g.arriving[i] = arriving;
    arriving += uint32_t(counts_sent[i]);
    g.leaving[i + 1] = g.leaving[i] + uint32_t(counts_received[i]);
  }
  uint64_t row_bytes = local_features.dtype().bits / 8;
  for (int d = 1; d < local_features.ndim(); ++d) row_bytes *= uint64_t(local_features.size(d));
  if (row_bytes == 0) return;
  const unsigned blocks = unsigned(pkb::max_blocks());  // as many on every rank: counts differ
  pkb::with_unit(row_bytes, [&](auto zero) {
    using Unit = decltype(zero);
    g.units = uint32_t(row_bytes / sizeof(Unit));
    push_rows<Unit><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  });
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
