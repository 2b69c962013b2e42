// UlyssesAllGatherVariable: one kernel exchanges lengths and pulls every rank's tensor to its place in the result.
//
// What moves: each rank sends its length as a tagged word, and lengths arrive about when ranks have begun anyway. Then
// every block pulls its part of all tensors from where they lie, straight to their places along the gathered
// dimension: W - 1 tensors cross the link into each rank once. The result is kept from call to call, so that the size
// of an earlier one is enough for the kernel to begin before the host knows the new one; where it is too small, which
// all ranks find at the same time, the tensors are pulled by a second kernel. The baseline waits for shapes on the
// host before anything moves, and joins the tensors in another pass.
//
// Bound: link, the other ranks' tensors; on one rank memory, a read and a write.
//
// Left on the table: the host waits for the lengths, since the shape of the result depends on them; pulls take a
// crossing of the link more than stores would, but the result lies in memory that peers do not map.
#include "pkb/exchange_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;

struct Gather {
  const char* own;
  char* out;
  uint64_t outer, inner;     // tensors are (outer, length, inner); inner in bytes
  uint64_t length;           // of this rank's
  uint64_t capacity;         // bytes of out
  int64_t* lengths;          // host memory, a number a rank
};

// The tensor of one rank, by all blocks.
template <class Unit>
__device__ __forceinline__ void pull(const Gather& g, const char* from, uint64_t length, uint64_t before, uint64_t total) {
  constexpr uint64_t kTile = uint64_t(pkb::kLoadsAtOnce) * kThreads;
  const uint64_t inner = g.inner / sizeof(Unit), run = length * inner, units = g.outer * run;
  const Unit* source = reinterpret_cast<const Unit*>(from);
  Unit* out = reinterpret_cast<Unit*>(g.out) + before * inner;
  for (uint64_t first = blockIdx.x * kTile + threadIdx.x; first < units; first += gridDim.x * kTile) {
    Unit values[pkb::kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < pkb::kLoadsAtOnce; ++k) {
      const uint64_t i = first + k * kThreads;
      if (i < units) values[k] = __ldcs(source + i);
    }
#pragma unroll
    for (int k = 0; k < pkb::kLoadsAtOnce; ++k) {
      const uint64_t i = first + k * kThreads;
      if (i >= units) break;
      const uint64_t block = g.outer == 1 ? 0 : i / run;
      out[i + block * (total * inner - run)] = values[k];
    }
  }
}

template <class Unit>
__device__ __forceinline__ void pull_all(const Gather& g, const uint64_t* lengths, uint64_t total,
                                         const pkb::Device& comm) {
  for (int k = 0; k < comm.world_size; ++k) {
    const int r = pkb::rank_after(comm, k);
    uint64_t before = 0;
    for (int other = 0; other < r; ++other) before += lengths[other];
    pull<Unit>(g, comm.peer(g.own, r), lengths[r], before, total);
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    gather(const __grid_constant__ Gather g, const __grid_constant__ pkb::Boxes boxes,
           const __grid_constant__ pkb::Device comm) {
  __shared__ uint64_t lengths[pkb::kMaxRanks];
  const int thread = int(threadIdx.x);
  const uint32_t tag = uint32_t(comm.epoch);
  if (blockIdx.x == 0 && thread < comm.world_size && thread != comm.rank) {
    pkb::store_tagged(boxes.box<pkb::TaggedPair>(comm, thread, comm.rank),
                      make_uint2(uint32_t(g.length), uint32_t(g.length >> 32)), tag);
  }
  comm.signal_begun();
  comm.wait_all_begun();
  if (thread < comm.world_size) {
    uint64_t length = g.length;
    if (thread != comm.rank) {
      const uint2 words = pkb::wait_tagged(boxes.box<pkb::TaggedPair>(comm, comm.rank, thread), tag);
      length = words.x | uint64_t(words.y) << 32;
    }
    lengths[thread] = length;
    if (blockIdx.x == 0) g.lengths[thread] = int64_t(length);
  }
  __syncthreads();
  uint64_t total = 0;
  for (int r = 0; r < comm.world_size; ++r) total += lengths[r];
  if (total * g.outer * g.inner <= g.capacity) pull_all<Unit>(g, lengths, total, comm);
  comm.barrier_blocks(0);  // peers have read this rank's tensor
}

// The second attempt, with room: all ranks are in it, and none has ended the call.
template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    gather_again(const __grid_constant__ Gather g, const __grid_constant__ pkb::Device comm) {
  __shared__ uint64_t lengths[pkb::kMaxRanks];
  if (threadIdx.x < comm.world_size) lengths[threadIdx.x] = uint64_t(g.lengths[threadIdx.x]);
  __syncthreads();
  uint64_t total = 0;
  for (int r = 0; r < comm.world_size; ++r) total += lengths[r];
  pull_all<Unit>(g, lengths, total, comm);
  comm.barrier_blocks(1);
}

// Device memory that lasts from call to call.
struct Kept {
  char* data = nullptr;
  uint64_t bytes = 0;
  int64_t* lengths = nullptr;

  void grow(uint64_t to) {
    if (to <= bytes) return;
    if (data) PKB_CUDA(cudaFree(data));
    PKB_CUDA(cudaMalloc(&data, to));
    bytes = to;
  }
};

struct Borrowed {
  char* data;
  void AllocData(DLTensor* tensor) { tensor->data = data; }
  void FreeData(DLTensor*) {}
};

template <class Unit>
int64_t total_length(Gather g, Kept& kept, const pkb::Comm& comm) {
  const unsigned blocks = unsigned(pkb::max_blocks());  // lengths differ, and blocks must not
  gather<Unit><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, pkb::Boxes::for_tagged(comm), comm.device());
  PKB_CUDA_LAUNCHED();
  PKB_CUDA(cudaStreamSynchronize(comm.cuda_stream()));
  int64_t total = 0;
  for (int r = 0; r < comm.world_size; ++r) total += kept.lengths[r];
  const uint64_t bytes = uint64_t(total) * g.outer * g.inner;
  if (bytes > g.capacity) {
    kept.grow(bytes);
    g.out = kept.data;
    gather_again<Unit><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  return total;
}

}  // namespace

Tensor solution(TensorView x, int64_t gather_dim, int64_t group, pkb::Comm comm) {
  if (group >= 0) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  static Kept kept;
  if (!kept.lengths) {
    PKB_CUDA(cudaMallocHost(reinterpret_cast<void**>(&kept.lengths), pkb::kMaxRanks * sizeof(int64_t)));
    kept.grow(256);
  }
  const int dim = int(gather_dim < 0 ? gather_dim + x.ndim() : gather_dim);
  Gather g{};
  g.own = static_cast<const char*>(x.data_ptr());
  g.out = kept.data;
  g.capacity = kept.bytes;
  g.lengths = kept.lengths;
  g.outer = 1;
  g.inner = x.dtype().bits / 8;
  g.length = uint64_t(x.size(dim));
  for (int i = 0; i < dim; ++i) g.outer *= uint64_t(x.size(i));
  for (int i = dim + 1; i < x.ndim(); ++i) g.inner *= uint64_t(x.size(i));

  int64_t total;
  if (g.inner % 16 == 0) total = total_length<uint4>(g, kept, comm);
  else if (g.inner % 4 == 0) total = total_length<uint32_t>(g, kept, comm);
  else total = total_length<uint16_t>(g, kept, comm);
  int64_t shape[16];
  for (int i = 0; i < x.ndim(); ++i) shape[i] = i == dim ? total : x.size(i);
  return Tensor::FromNDAlloc(Borrowed{kept.data}, tvm::ffi::ShapeView(shape, size_t(x.ndim())), x.dtype(), x.device());
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
