// EmbeddingLookup: one kernel finds where each row belongs and pulls it from its owner, straight into the output.
//
// What moves: ids are read from the cache by every block, which counts by ballots of warps how many have each
// owner, in all and before its own. So it knows the places of its rows without another block, and without telling any
// owner what it wants. Rows come in once, 16 bytes a lane, eight loads in flight. The counting is done while word comes
// from the peers that their calls have begun; at the end each block tells them that it has read.
//
// Bound: link, the rows of other ranks' part of the table into each rank; on one rank memory, a read and a write of a row
// for each id. The baseline sorts, exchanges counts with the host, and moves ids, rows and results by three collectives.
//
// Left on the table: ids that occur again bring their row again; loads across the link take longer than stores would.
#include <algorithm>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kWarps = kThreads / 32;
constexpr int kAtOnce = 8;  // loads of a lane
constexpr int kRows = 256;  // whose sources a block keeps at a time

struct Lookup {
  const int64_t* ids;
  const char* table;  // this rank's rows
  char* out;
  int64_t count, rows;  // of ids, and of the table of a rank
  uint64_t row_bytes;
};

// The lanes below `count` of them.
__device__ __forceinline__ unsigned first_lanes(int64_t count) {
  return count >= 32 ? pkb::kAllLanes : count <= 0 ? 0u : (1u << count) - 1;
}

// Where the first id of each owner from `begin` on belongs in the output. Lane o of a warp counts ids of the owners up
// to o. The block has yet to meet before it reads the places.
__device__ __forceinline__ void find_places(const Lookup& g, int64_t begin, int owners, int64_t* places) {
  __shared__ int all[pkb::kMaxRanks], before[pkb::kMaxRanks];
  const int thread = int(threadIdx.x), lane = pkb::lane_id();
  if (thread < owners) all[thread] = before[thread] = 0;
  __syncthreads();
  int in_all = 0, in_before = 0;
#pragma unroll 4
  for (int64_t first = pkb::warp_id() * 32; first < g.count; first += kThreads) {
    const int64_t id = first + lane < g.count ? g.ids[first + lane] : INT64_MAX;
    const unsigned lanes_before = first_lanes(begin - first);
    int64_t border = g.rows;
    for (int o = 0; o < owners; ++o, border += g.rows) {
      const unsigned lanes = __ballot_sync(pkb::kAllLanes, id < border);
      if (lane == o) {
        in_all += __popc(lanes);
        in_before += __popc(lanes & lanes_before);
      }
    }
  }
  if (lane < owners) {
    atomicAdd(all + lane, in_all);
    atomicAdd(before + lane, in_before);
  }
  __syncthreads();
  if (thread < owners) {
    places[thread] = thread ? all[thread - 1] + before[thread] - before[thread - 1] : before[thread];
  }
}

// A row, by one warp.
template <class Unit>
__device__ __forceinline__ void copy_row(char* to, const char* from, uint64_t bytes) {
  const int units = int(bytes / sizeof(Unit));
  for (int first = pkb::lane_id(); first < units; first += 32 * kAtOnce) {
    Unit loaded[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * 32 < units) loaded[u] = reinterpret_cast<const Unit*>(from)[first + u * 32];
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u * 32 < units) reinterpret_cast<Unit*>(to)[first + u * 32] = loaded[u];
    }
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    look_up(const __grid_constant__ Lookup g, const __grid_constant__ pkb::Device comm) {
  __shared__ int64_t places[pkb::kMaxRanks];  // of the next row of each owner
  __shared__ const char* sources[kRows];
  __shared__ int64_t targets[kRows];
  const int thread = int(threadIdx.x), W = comm.world_size;
  comm.signal_begun();
  const int64_t begin = g.count * blockIdx.x / gridDim.x, end = g.count * (blockIdx.x + 1) / gridDim.x;
  if (begin < end) find_places(g, begin, W, places);
  comm.wait_all_begun();  // a barrier of the block, behind which all find the places
  for (int64_t first = begin; first < end; first += kRows) {
    const int rows = int(min(int64_t(kRows), end - first));
    for (int i = 0; i < rows && thread < 32; i += 32) {  // the first warp, since places follow from one another
      const bool has_row = i + thread < rows;
      const int64_t id = has_row ? g.ids[first + i + thread] : 0;
      const int owner = has_row ? int(id / g.rows) : -1;
      for (int o = 0; o < W; ++o) {
        const unsigned lanes = __ballot_sync(pkb::kAllLanes, owner == o);
        if (owner == o) {
          targets[i + thread] = places[o] + pkb::lanes_before(lanes);
          sources[i + thread] = comm.peer(g.table, o) + uint64_t(id - o * g.rows) * g.row_bytes;
        }
        __syncwarp();
        if (thread == 0) places[o] += __popc(lanes);
        __syncwarp();
      }
    }
    __syncthreads();
    for (int i = pkb::warp_id(); i < rows; i += kWarps) {
      copy_row<Unit>(g.out + uint64_t(targets[i]) * g.row_bytes, sources[i], g.row_bytes);
    }
    __syncthreads();
  }
  if (thread < W && thread != comm.rank) {
    comm.signal_block(0, thread);
    comm.wait_block(0, thread);
  }
}

}  // namespace

void solution(TensorView indices, TensorView local_shard, TensorView out, pkb::Comm comm) {
  const Lookup g{static_cast<const int64_t*>(indices.data_ptr()), static_cast<const char*>(local_shard.data_ptr()),
                 static_cast<char*>(out.data_ptr()), indices.numel(), local_shard.size(0),
                 uint64_t(local_shard.size(1)) * local_shard.dtype().bits / 8};
  if (g.rows == 0) return;
  // As many blocks on every rank, however many ids it has.
  const unsigned blocks = pkb::blocks_for(uint64_t(g.rows) * g.row_bytes, pkb::kCopyTile);
  const auto kernel = g.row_bytes % sizeof(uint4) == 0 ? look_up<uint4> : look_up<uint16_t>;
  kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
