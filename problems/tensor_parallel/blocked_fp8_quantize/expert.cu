// BlockedFP8Quantize: one kernel rounds a block in registers and stores its codes and its scale to all ranks from there.
//
// What moves: the tensor is read once; sixteen numbers are a thread's, and the threads of a block of numbers find its
// largest magnitude by shuffles. Codes go as 16 bytes a thread, and scales beside them, straight into the outputs of all
// ranks, between a word from each receiver that its call has begun and one to it from each block that has stored its
// part. The first codes are made while those words are on their way. The baseline writes codes and scales, and gathers
// them by two collectives.
//
// Bound: link, W - 1 shares of codes and scales into each rank; on one rank memory, a read and half a write.
//
// Left on the table: few codes could go as tagged words, which saves the crossing at the end; scales take packets of
// their own on the link. NVLink multicast would send each share once.
#include <cuda_fp8.h>

#include "pkb/exchange_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr float kLargestCode = 448.0f;

template <class T>
struct Share {
  const T* x;
  uint8_t* codes;  // of all ranks
  float* scales;
  int64_t elements;  // of a rank
  int64_t block;     // elements of a scale
};

// Divides by a scale: multiplies by its inverse, which is a number unless the scale is next to none.
struct Divisor {
  float scale, inverse;
  __device__ explicit Divisor(float of_block) : scale(of_block == 0.0f ? 1.0f : of_block), inverse(1.0f / scale) {}
  __device__ float divide(float x) const { return scale < 0x1p-100f ? x / scale : x * inverse; }
};

// kLanes neighbouring numbers as a thread has them, and what becomes of them. With 16 of them a block is one or several
// threads' of a warp; with one, each thread looks at the whole block.
template <class T, int kLanes>
struct Unit {
  pkb::Packet<uint8_t, kLanes> codes;
  float scale;

  __device__ void make(const Share<T>& share, int64_t at) {
    float x[kLanes], most = 0.0f;
    if constexpr (kLanes == 1) {
      x[0] = pkb::to_float(share.x[at]);
      const T* of_block = share.x + at / share.block * share.block;
      for (int64_t i = 0; i < share.block; ++i) most = fmaxf(most, fabsf(pkb::to_float(of_block[i])));
    } else {
      constexpr int kEach = pkb::kPerVector<T>;
#pragma unroll
      for (int v = 0; v < kLanes / kEach; ++v) {
        const uint4 vector = __ldcs(reinterpret_cast<const uint4*>(share.x + at) + v);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          x[v * kEach + i] = pkb::element<T>(vector, i);
          most = fmaxf(most, fabsf(x[v * kEach + i]));
        }
      }
      const int threads = int(share.block / kLanes);  // of a block: a power of two
      const unsigned lanes = threads == 32 ? pkb::kAllLanes
                                           : ((1u << threads) - 1) << pkb::lane_id() / threads * threads;
      for (int apart = threads / 2; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(lanes, most, apart));
    }
    scale = most / kLargestCode;
    const Divisor divisor(scale);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      codes.lanes[i] = __nv_cvt_float_to_fp8(divisor.divide(x[i]), __NV_SATFINITE, __NV_E4M3);
    }
  }

  // Into the outputs of rank r, behind the shares of the ranks before this one.
  __device__ void store(const Share<T>& share, int64_t at, const pkb::Device& comm, int r) const {
    const int64_t place = comm.rank * share.elements + at;
    pkb::store_packet(comm.peer(share.codes, r) + place, codes);
    if (at % share.block == 0) comm.peer(share.scales, r)[place / share.block] = scale;
  }
};

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    quantise(const __grid_constant__ Share<T> share, const __grid_constant__ pkb::Device comm) {
  const int thread = int(threadIdx.x);
  const bool has_peer = thread < comm.world_size && thread != comm.rank;
  const int64_t step = int64_t(gridDim.x) * kThreads * kLanes;
  int64_t at = (blockIdx.x * int64_t(kThreads) + thread) * kLanes;
  Unit<T, kLanes> unit;
  comm.signal_begun();
  if (at < share.elements) unit.make(share, at);
  comm.wait_all_begun();
  while (at < share.elements) {
#pragma unroll 1
    for (int k = 0; k < comm.world_size; ++k) unit.store(share, at, comm, pkb::rank_after(comm, k));
    at += step;
    if (at < share.elements) unit.make(share, at);
  }
  __syncthreads();
  if (has_peer) {
    comm.signal_block(0, thread);
    comm.wait_block(0, thread);
  }
}

template <class T>
void launch(const Share<T>& share, const pkb::Comm& comm) {
  if (share.elements == 0) return;
  constexpr int kLanes = 16;
  const bool is_shared = share.block >= kLanes && share.block <= 32 * kLanes;
  const unsigned blocks = pkb::blocks_for(share.elements, kThreads * (is_shared ? kLanes : 1));  // as many on every rank
  const auto kernel = is_shared ? quantise<T, kLanes> : quantise<T, 1>;
  kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(share, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView local_tensor, int64_t block_size, TensorView y_global, TensorView s_global, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(local_tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch(Share<T>{static_cast<const T*>(local_tensor.data_ptr()), static_cast<uint8_t*>(y_global.data_ptr()),
                    static_cast<float*>(s_global.data_ptr()), local_tensor.numel(), block_size},
           comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
