// Flash attention backward on Hopper's tensor cores, for heads of 64 or 128 elements of 16-bit floats; called by
// pkb/attention_backward_cuda.h.
//
// Two kernels of one form. A tile's own operands stay in shared memory, and blocks of 64 rows of the others come through a
// ring (TMA). Probabilities and their gradients are formed in registers and are the left operands of the
// products that follow (wgmma):
//
//   keys stay:    P^T = exp(K Q^T), dS^T = P^T (V dO^T - delta);  dV += P^T dO, dK += dS^T Q
//   queries stay: P = exp(Q K^T),   dS = P (dO V^T - delta);      dQ += dS K
//
// So nothing is added up in memory, and results are the same in every call; seven products are computed instead of five.
//
// Algorithm: T. Dao, FlashAttention-2, arXiv:2307.08691, algorithm 2, with dQ in a pass of its own.
#pragma once

#include "pkb/attention_sm90.h"

namespace pkb {
namespace attention {

constexpr int kBlockOthers = 64;    // rows of a stage
constexpr int kBackwardStages = 2;

template <int kHead>
constexpr int kOwnBytes = kTileRows * kHead * 2;  // of one operand
template <int kHead>
constexpr int kOtherBytes = kBlockOthers * kHead * 2;
template <int kHead>
constexpr int kBackwardBytes = 1024 + 2 * kOwnBytes<kHead> + kBackwardStages * 2 * kOtherBytes<kHead>;

// own[0] and other[0] make scores, own[1] and other[1] the gradients of probabilities.
struct BackwardMaps {
  CUtensorMap own[2], other[2];
  const float *lse, *delta;
  int tiles;
  float scale, log2_scale;
};

struct BackwardRing {
  uint32_t own, others;
  Stage of_own;
  uint32_t barriers;
  __device__ __forceinline__ Stage stage(int i) const { return {barriers + i * 16, barriers + i * 16 + 8}; }
};

template <int kHead, int kRows>
__device__ __forceinline__ void load_boxes(uint32_t to, const CUtensorMap* map, int row, int col, uint32_t full) {
#pragma unroll
  for (int box = 0; box < kHead / 64; ++box) {
    gemm::load_box(to + box * kRows * 128, map, col + box * 64, row, full);
  }
}

template <bool kKeysStay, int kHead, class Hooks>
__device__ __forceinline__ void load_backward(const BackwardMaps& maps, const Hooks& hooks, const BackwardRing& ring) {
  int stage = 0;
  uint32_t phase = 0, own_phase = 0;
  for (int index = blockIdx.x; index < maps.tiles; index += gridDim.x) {
    const BackwardTile tile = hooks.tile(index);
    if (gemm::elect()) {
      wait_phase(ring.of_own.empty, own_phase ^ 1);
      expect_bytes(ring.of_own.full, 2 * kOwnBytes<kHead>);
      for (int i = 0; i < 2; ++i) {
        load_boxes<kHead, kTileRows>(ring.own + i * kOwnBytes<kHead>, &maps.own[i], tile.row, tile.col,
                                     ring.of_own.full);
      }
      for (int first = tile.begin<kKeysStay>(kBlockOthers); first < tile.end<kKeysStay>(); first += kBlockOthers) {
        const Stage at = ring.stage(stage);
        wait_phase(at.empty, phase ^ 1);
        expect_bytes(at.full, 2 * kOtherBytes<kHead>);
        for (int i = 0; i < 2; ++i) {
          load_boxes<kHead, kBlockOthers>(ring.others + (2 * stage + i) * kOtherBytes<kHead>, &maps.other[i],
                                          tile.other_row + first, tile.other_col, at.full);
        }
        if (++stage == kBackwardStages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
    own_phase ^= 1;
    __syncwarp();
  }
}

// Stores a result's 64 rows of the tile from `row` on, straight from registers.
template <class T, int kHead, class Hooks>
__device__ __forceinline__ void store_gradient(const BackwardTile& tile, const float (&sums)[kHead / 2], float scale,
                                               int row, int which, const Hooks& hooks) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= tile.rows) continue;
    T* out = hooks.out_row(tile, which, row + 8 * half) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 2 * half; i < kHead / 2; i += 4) {
      *reinterpret_cast<uint32_t*>(out + i / 4 * 8) = gemm::pack<T>(sums[i] * scale, sums[i + 1] * scale);
    }
  }
}

template <class T, bool kKeysStay, int kHead, class Hooks>
__device__ __forceinline__ void differentiate(const BackwardMaps& maps, const Hooks& hooks, const BackwardRing& ring,
                                              int consumer) {
  constexpr float kLog2E = 1.44269504f;
  constexpr int kScores = kBlockOthers / 2;
  const int lane = threadIdx.x % 32, first_row = consumer * kConsumerRows;
  const int row = first_row + threadIdx.x % 128 / 32 * 16 + lane / 4;
  float scores[kScores], slopes[kScores], sums[kHead / 2], values[kKeysStay ? kHead / 2 : 2];
  uint32_t packed[kBlockOthers / 4], packed_slopes[kBlockOthers / 4];
  int stage = 0;
  uint32_t phase = 0, own_phase = 0;
  for (int index = blockIdx.x; index < maps.tiles; index += gridDim.x) {
    const BackwardTile tile = hooks.tile(index);
    const float *lse = maps.lse + tile.stats, *delta = maps.delta + tile.stats;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
#pragma unroll
    for (float& sum : values) sum = 0.0f;
    float own_lse[2] = {}, own_delta[2] = {};
    if constexpr (!kKeysStay) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= tile.rows) continue;
        own_lse[half] = lse[row + 8 * half] * kLog2E;
        own_delta[half] = delta[row + 8 * half];
      }
    }
    wait_phase(ring.of_own.full, own_phase);
    own_phase ^= 1;
    for (int first = tile.begin<kKeysStay>(kBlockOthers); first < tile.end<kKeysStay>(); first += kBlockOthers) {
      const uint32_t other = ring.others + 2 * stage * kOtherBytes<kHead>, other_two = other + kOtherBytes<kHead>;
      wait_phase(ring.stage(stage).full, phase);
      gemm::wgmma_fence();
      multiply_rows<T, kBlockOthers, kHead>(scores, ring.own, kTileRows, first_row, other, kBlockOthers);
      gemm::wgmma_commit();
      multiply_rows<T, kBlockOthers, kHead>(slopes, ring.own + kOwnBytes<kHead>, kTileRows, first_row, other_two,
                                            kBlockOthers);
      gemm::wgmma_commit();
      gemm::wgmma_wait<1>();
      pin(scores);
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int column = first + i / 4 * 8 + lane % 4 * 2 + i % 2, half = i / 2 % 2;
        const bool sees = column < tile.others && tile.sees<kKeysStay>(row + 8 * half, column);
        float of_query = own_lse[half];
        if constexpr (kKeysStay) of_query = sees ? lse[column] * kLog2E : 0.0f;
        scores[i] = sees ? exp2_fast(scores[i] * maps.log2_scale - of_query) : 0.0f;
      }
      if constexpr (kKeysStay) {
        pack_rows<T, kBlockOthers>(packed, scores);
        gemm::wgmma_fence();
        multiply_packed<T, kHead, kBlockOthers>(values, packed, other_two, kBlockOthers);
        gemm::wgmma_commit();
        gemm::wgmma_wait<1>();
      } else {
        gemm::wgmma_wait<0>();
      }
      pin(slopes);
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        const int column = first + i / 4 * 8 + lane % 4 * 2 + i % 2;
        float of_query = own_delta[i / 2 % 2];
        if constexpr (kKeysStay) of_query = column < tile.others ? delta[column] : 0.0f;
        slopes[i] = scores[i] == 0.0f ? 0.0f : scores[i] * (slopes[i] - of_query);
      }
      pack_rows<T, kBlockOthers>(packed_slopes, slopes);
      gemm::wgmma_fence();
      multiply_packed<T, kHead, kBlockOthers>(sums, packed_slopes, other, kBlockOthers);
      gemm::wgmma_commit();
      gemm::wgmma_wait<0>();
      pin(sums);
      pin(packed);
      pin(packed_slopes);
      if constexpr (kKeysStay) pin(values);
      if (lane == 0) arrive(ring.stage(stage).empty);
      if (++stage == kBackwardStages) {
        stage = 0;
        phase ^= 1;
      }
    }
    __syncwarp();
    if (lane == 0) arrive(ring.of_own.empty);
    store_gradient<T, kHead>(tile, sums, maps.scale, row, 0, hooks);
    if constexpr (kKeysStay) store_gradient<T, kHead>(tile, values, 1.0f, row, 1, hooks);
  }
}

template <class T, bool kKeysStay, int kHead, class Hooks>
__global__ void __launch_bounds__(kForwardThreads, 1)
    differentiate_sm90(const __grid_constant__ BackwardMaps maps, const __grid_constant__ Hooks hooks) {
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t barriers[2 + 2 * kBackwardStages];
  const uint32_t base = (shared_address(dynamic) + 1023) / 1024 * 1024, words = shared_address(barriers);
  const BackwardRing ring{base, base + 2 * kOwnBytes<kHead>, {words, words + 8}, words + 16};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    const auto begin = [](Stage stage) {
      init_barrier(stage.full, 1);
      init_barrier(stage.empty, kConsumers * 4);
    };
    begin(ring.of_own);
    for (int stage = 0; stage < kBackwardStages; ++stage) begin(ring.stage(stage));
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (warp == 0) load_backward<kKeysStay, kHead>(maps, hooks, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    differentiate<T, kKeysStay, kHead>(maps, hooks, ring, warp / 4 - 1);
  }
  __syncthreads();
  hooks.leave();
}

template <bool kKeysStay, int kHead, class T, class Hooks>
void launch_backward_sm90(const Backward<T>& work, const Hooks& hooks, unsigned blocks, cudaStream_t stream) {
  const auto map = [](const Matrix<T>& matrix, int rows) {
    return gemm::operand_map<T>(matrix.data, matrix.rows, matrix.cols, matrix.stride, rows);
  };
  const Matrix<T>* const own[2] = {kKeysStay ? &work.k : &work.q, kKeysStay ? &work.v : &work.dout};
  const Matrix<T>* const other[2] = {kKeysStay ? &work.q : &work.k, kKeysStay ? &work.dout : &work.v};
  BackwardMaps maps;
  for (int i = 0; i < 2; ++i) {
    maps.own[i] = map(*own[i], kTileRows);
    maps.other[i] = map(*other[i], kBlockOthers);
  }
  maps.lse = work.lse;
  maps.delta = work.delta;
  maps.tiles = work.tiles;
  maps.scale = work.scale;
  maps.log2_scale = work.scale * 1.44269504f;
  constexpr int kBytes = kBackwardBytes<kHead>;
  allow_shared_memory<differentiate_sm90<T, kKeysStay, kHead, Hooks>>(kBytes);
  differentiate_sm90<T, kKeysStay, kHead, Hooks><<<blocks, kForwardThreads, kBytes, stream>>>(maps, hooks);
  PKB_CUDA_LAUNCHED();
}

}  // namespace attention
}  // namespace pkb
