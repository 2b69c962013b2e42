// BlockedFP8Dequantize: every rank pulls the quantised numbers that are meant for it, and scales them on their way into
// its output.
//
// What moves: codes and scales cross the link as they are, a quarter of the bytes of the baseline, which scales first and
// exchanges float32; nothing is stored between the link and the output. A thread has eight packets of four numbers in
// flight, whose products leave as 16 bytes each, and a warp covers whole lines on both sides. The own chunk comes first,
// while word comes from the peers that their calls have begun; each block tells them at the end that it has read.
//
// Bound: memory at one rank, W chunks of float32 written; the write is the larger part on more ranks too, as long as the
// link is faster than a quarter of the memory for 8-bit codes. For wider numbers link: W - 1 chunks into each rank.
//
// Left on the table: a rank pulls from its peers one after another, so that a slow one holds up the rest; loads across
// the link take longer than stores would, which eight in flight a thread hide.
#include <cuda_fp8.h>

#include "pkb/exchange_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kAtOnce = 8;

struct Code {  // e4m3
  uint8_t bits;
};

__device__ __forceinline__ float to_number(Code code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code.bits, __NV_E4M3)));
}
template <class T>
__device__ __forceinline__ float to_number(T x) {
  return pkb::to_float(x);
}

template <class Y, class S>
struct Chunks {
  const Y* y;       // slice r is for rank r
  const S* scales;
  float* out;       // slice r is of rank r
  uint64_t elements, blocks;  // of a slice
  int block_log2;
};

// This rank's slice of rank r, by all blocks. kLanes neighbours have one scale.
template <int kLanes, class Y, class S>
__device__ __forceinline__ void dequantise_slice(const Chunks<Y, S>& g, const pkb::Device& comm, int r) {
  const Y* from = comm.peer(g.y, r) + comm.rank * g.elements;
  const S* scales = comm.peer(g.scales, r) + comm.rank * g.blocks;
  float* to = g.out + r * g.elements;
  const uint64_t units = g.elements / kLanes, run = 32 * kAtOnce;  // of a warp: several scales side by side
  const uint64_t warp = (blockIdx.x * uint64_t(kThreads) + threadIdx.x) / 32, warps = uint64_t(gridDim.x) * kThreads / 32;
  for (uint64_t first = warp * run + threadIdx.x % 32; first < units; first += warps * run) {
    pkb::Packet<Y, kLanes> values[kAtOnce];
    float scale[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const uint64_t at = (first + u * 32) * kLanes;
      if (at >= g.elements) continue;
      values[u] = pkb::load_packet<Y, kLanes>(from + at);
      scale[u] = pkb::to_float(scales[at >> g.block_log2]);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const uint64_t at = (first + u * 32) * kLanes;
      if (at >= g.elements) continue;
      pkb::Packet<float, kLanes> result;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) result.lanes[i] = to_number(values[u].lanes[i]) * scale[u];
      pkb::store_packet(to + at, result);
    }
  }
}

template <int kLanes, class Y, class S>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    dequantise(const __grid_constant__ Chunks<Y, S> g, const __grid_constant__ pkb::Device comm) {
  const int thread = int(threadIdx.x);
  comm.signal_begun();
  dequantise_slice<kLanes>(g, comm, comm.rank);
  comm.wait_all_begun();
#pragma unroll 1
  for (int k = 1; k < comm.world_size; ++k) dequantise_slice<kLanes>(g, comm, pkb::rank_after(comm, k));
  __syncthreads();
  if (thread < comm.world_size && thread != comm.rank) {
    comm.signal_block(0, thread);
    comm.wait_block(0, thread);
  }
}

template <class Y>
void launch(const TensorView& local_y, const TensorView& local_s, int64_t block_size, const TensorView& out,
            const pkb::Comm& comm) {
  pkb::with_type<__nv_bfloat16, float>(local_s.dtype(), [&](auto zero) {
    using S = decltype(zero);
    constexpr int kLanes = 4;
    Chunks<Y, S> g{static_cast<const Y*>(local_y.data_ptr()), static_cast<const S*>(local_s.data_ptr()),
                   static_cast<float*>(out.data_ptr()), uint64_t(local_y.numel() / comm.world_size),
                   uint64_t(local_s.numel() / comm.world_size), 0};
    if (g.elements == 0) return;
    while (int64_t(1) << g.block_log2 < block_size) ++g.block_log2;
    const bool is_whole = block_size % kLanes == 0;
    const unsigned blocks = pkb::blocks_for(g.elements, uint64_t(kThreads) * (is_whole ? kLanes : 1));
    const auto kernel = is_whole ? dequantise<kLanes, Y, S> : dequantise<1, Y, S>;
    kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
    PKB_CUDA_LAUNCHED();
  });
}

}  // namespace

void solution(TensorView local_y, TensorView local_s, int64_t block_size, TensorView out, pkb::Comm comm) {
  if (local_y.dtype() == DLDataType{kDLFloat8_e4m3fn, 8, 1}) {
    return launch<Code>(local_y, local_s, block_size, out, comm);
  }
  pkb::with_type<__nv_bfloat16, __half, float>(local_y.dtype(), [&](auto zero) {
    launch<decltype(zero)>(local_y, local_s, block_size, out, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
