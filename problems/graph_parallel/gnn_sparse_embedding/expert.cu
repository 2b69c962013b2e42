// GNNSparseEmbedding: owners pull their pairs from where these lie, by lists that each rank makes of its own.
//
// What moves: a first kernel sorts the numbers of this rank's pairs by owner, in their order, into a list in scratch, with
// the ids beside them. The last of its blocks tells each owner where its part of the list begins and how long it
// is, waits for the same from the others, and tells the host how many pairs come. The second kernel begins without the
// host: it loads rows over the link, 16 bytes a load, from the places that the lists name, straight to their places in the
// result, which is kept from call to call. Only where that has too little room does the host launch it again.
//
// Bound: link, ids and rows that arrive; on one rank nothing is done, as in the baseline. The baseline sorts, waits for
// counts on the host, permutes ids and rows, and sends them by two collectives.
//
// Left on the table: numbers of the list cross the link too, 4 bytes a row, in loads that those of the row wait for.
#include "pkb/exchange_cuda.h"
#include "pkb/partition_cuda.h"
#include "pkb/ragged_cuda.h"
#include "pkb/returned_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;

// What arrives from each rank; in scratch, for this rank alone.
struct Arrivals {
  uint32_t begin[pkb::kMaxRanks];        // in the list of the sender
  uint32_t first[pkb::kMaxRanks + 1];    // in the result
  unsigned blocks;                       // of the first kernel that have ended
};

struct Pairs {
  const int64_t* ids;
  const char* rows;
  uint64_t count;
  uint32_t units;      // of a row
  Arrivals* arrivals;
  uint32_t* table;     // of the partition
  int64_t* listed_ids;
  uint32_t* listed;    // numbers of pairs
  int64_t* host;       // pairs that arrive
};

__device__ __forceinline__ int owner_of(int64_t id, int owners) {
  const int rest = int(id % owners);
  return rest < 0 ? rest + owners : rest;
}

__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    list_pairs(const __grid_constant__ Pairs g, const __grid_constant__ pkb::Device comm) {
  __shared__ pkb::ClassBegins begins;
  __shared__ uint32_t counts[pkb::kMaxRanks];
  const int thread = int(threadIdx.x), W = comm.world_size;
  pkb::partition<kThreads>(
      pkb::Grid(comm.scratch<char>(pkb::kGridScratch)), g.table, g.count, W,
      [&](uint64_t i) { return owner_of(g.ids[i], W); },
      [&](uint64_t i, int, uint64_t place) {
        g.listed[place] = uint32_t(i);
        g.listed_ids[place] = g.ids[i];
      },
      begins);
  if (!pkb::arrives_last(&g.arrivals->blocks)) return;
  if (thread < W) {
    const auto begin = uint32_t(begins.at[thread]), count = uint32_t(begins.at[thread + 1]) - begin;
    if (thread != comm.rank) {
      pkb::post_number(comm, thread, 0, begin);
      pkb::post_number(comm, thread, 1, count);
      g.arrivals->begin[thread] = pkb::await_number(comm, thread, 0);
      counts[thread] = pkb::await_number(comm, thread, 1);
    } else {
      g.arrivals->begin[thread] = begin;
      counts[thread] = count;
    }
  }
  __syncthreads();
  if (thread == 0) {
    uint32_t first = 0;
    for (int r = 0; r < W; ++r) {
      g.arrivals->first[r] = first;
      first += counts[r];
    }
    g.arrivals->first[W] = first;
    *g.host = first;
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    pull_pairs(const __grid_constant__ Pairs g, int64_t* ids, Unit* rows, uint64_t room,
               const __grid_constant__ pkb::Device comm) {
  const Arrivals& arrivals = *g.arrivals;
  const int W = comm.world_size;
  if (arrivals.first[W] > room) return;  // the host launches this kernel again
  for (int k = 0; k < W; ++k) {
    const int r = pkb::rank_after(comm, k);
    const uint64_t part = (blockIdx.x + k * gridDim.x / W) % gridDim.x;
    const uint32_t first = arrivals.first[r], count = arrivals.first[r + 1] - first;
    const uint32_t* listed = comm.peer(g.listed, r) + arrivals.begin[r];
    const Unit* from = comm.peer(reinterpret_cast<const Unit*>(g.rows), r);
    pkb::copy_rows<Unit>(
        count, g.units, [&](uint64_t i) { return from + uint64_t(listed[i]) * g.units; },
        [&](uint64_t i) { return rows + (first + i) * g.units; }, part, gridDim.x);
    const int64_t* listed_ids = comm.peer(g.listed_ids, r) + arrivals.begin[r];
    pkb::copy(reinterpret_cast<char*>(ids + first), reinterpret_cast<const char*>(listed_ids),
              uint64_t(count) * sizeof(int64_t), (part + gridDim.x / 2) % gridDim.x, gridDim.x);
  }
  comm.barrier_blocks();  // lists and rows of all ranks have been read
}

Pairs layout(const TensorView& idx, const TensorView& value, const pkb::Comm& comm) {
  Pairs g{static_cast<const int64_t*>(idx.data_ptr()), static_cast<const char*>(value.data_ptr()), uint64_t(idx.size(0))};
  uint64_t at = pkb::kRaggedData;
  const auto take = [&](uint64_t bytes) {
    const uint64_t begin = at;
    at += (bytes + 255) / 256 * 256;
    return comm.scratch<char>(begin);
  };
  g.arrivals = reinterpret_cast<Arrivals*>(take(sizeof(Arrivals)));
  g.table = reinterpret_cast<uint32_t*>(take(pkb::kPartitionBytes));
  // Lists begin at the same byte on all ranks, which have different numbers of pairs: each in its share of the rest.
  const uint64_t most = (comm.scratch_bytes - at) / (sizeof(int64_t) + sizeof(uint32_t)) / 64 * 64;
  g.listed_ids = reinterpret_cast<int64_t*>(take(most * sizeof(int64_t)));
  g.listed = reinterpret_cast<uint32_t*>(take(0));
  if (g.count > most) TVM_FFI_THROW(ValueError) << "scratch lists " << most << " pairs, not " << g.count;
  return g;
}

}  // namespace

Array<Tensor> solution(TensorView idx, TensorView value, int64_t num_nodes, int64_t group, pkb::Comm comm) {
  if (group >= 0 && comm.group(group).size != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  }
  if (comm.world_size == 1) {
    return {pkb::Returned::borrowed(idx.data_ptr(), idx.shape(), idx.dtype(), idx.device()),
            pkb::Returned::borrowed(value.data_ptr(), value.shape(), value.dtype(), value.device())};
  }
  static pkb::Returned ids, rows;
  static const pkb::HostNumbers host(1);
  Pairs g = layout(idx, value, comm);
  g.host = host.data();
  const uint64_t row_bytes = uint64_t(value.size(1)) * value.dtype().bits / 8;
  const unsigned blocks = unsigned(pkb::max_blocks());
  ids.reserve(g.count * sizeof(int64_t));
  rows.reserve(g.count * row_bytes);

  list_pairs<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
  host.record(comm.cuda_stream());
  const auto pull = [&] {
    const uint64_t room = std::min(ids.bytes() / sizeof(int64_t), row_bytes ? rows.bytes() / row_bytes : ~uint64_t(0));
    pkb::with_unit(row_bytes, [&](auto zero) {
      using Unit = decltype(zero);
      g.units = uint32_t(row_bytes / sizeof(Unit));
      pull_pairs<Unit><<<blocks, kThreads, 0, comm.cuda_stream()>>>(
          g, reinterpret_cast<int64_t*>(ids.data()), reinterpret_cast<Unit*>(rows.data()), room, comm.device());
    });
    PKB_CUDA_LAUNCHED();
    return room;
  };
  const uint64_t room = pull();
  host.wait();
  const int64_t count = host.data()[0];
  if (uint64_t(count) > room) {
    ids.reserve(uint64_t(count) * sizeof(int64_t));
    rows.reserve(uint64_t(count) * row_bytes);
    pull();
  }
  return {ids.tensor({count}, idx.dtype(), idx.device()), rows.tensor({count, value.size(1)}, value.dtype(), value.device())};
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
