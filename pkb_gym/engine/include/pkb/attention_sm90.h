// Flash attention forward on Hopper's tensor cores, for heads of 64 or 128 elements of 16-bit floats; called by
// pkb/attention_cuda.h.
//
// One persistent block a multiprocessor. A warp loads a tile of 128 queries and, in two rings, blocks of 128 keys and of
// values by tensor maps (TMA); two warpgroups of 64 queries each multiply (wgmma). Scores stay in registers: the product
// with the next keys is issued before the exponentials of the last ones are multiplied with the values, so that the
// tensor cores have work while exponentials are computed, and one warpgroup computes them while the other multiplies.
//
// Algorithms: T. Dao, FlashAttention-2, arXiv:2307.08691, algorithm 1; J. Shah et al., FlashAttention-3,
// arXiv:2407.08608, algorithm 2.
#pragma once

#include "pkb/attention_sm90_ptx.h"
#include "pkb/attention_tiles_cuda.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"

namespace pkb {
namespace attention {

constexpr int kConsumers = 2;                        // warpgroups that multiply
constexpr int kConsumerRows = kTileRows / kConsumers;
constexpr int kBlockKeys = 128;                      // keys of a stage
constexpr int kForwardStages = 2;                    // of keys, and of values
constexpr int kForwardThreads = 128 * (1 + kConsumers);

template <int kHead>
constexpr int kForwardTileBytes = kTileRows * kHead * 2;
template <int kHead>
constexpr int kForwardBytes = 1024 + (1 + 2 * kForwardStages) * kForwardTileBytes<kHead>;  // 1024: alignment

struct ForwardMaps {
  CUtensorMap q, k, v;
  int tiles;
  float log2_scale;  // scale * log2(e)
};

// Barriers of shared memory, by address.
struct Stage {
  uint32_t full, empty;
};
struct ForwardRing {
  uint32_t q, k, v;  // matrices; those of stages follow each other
  Stage of_q;
  uint32_t barriers;
  __device__ __forceinline__ Stage of_k(int stage) const { return {barriers + stage * 32, barriers + stage * 32 + 8}; }
  __device__ __forceinline__ Stage of_v(int stage) const {
    return {barriers + stage * 32 + 16, barriers + stage * 32 + 24};
  }
};

struct ForwardCursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kForwardStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

template <int kHead>
__device__ __forceinline__ void load_matrix(uint32_t to, const CUtensorMap* map, int row, int col, uint32_t full) {
  expect_bytes(full, kForwardTileBytes<kHead>);
#pragma unroll
  for (int box = 0; box < kHead / 64; ++box) {
    gemm::load_box(to + box * kTileRows * 128, map, col + box * 64, row, full);
  }
}

// The loading warp.
template <int kHead, class Hooks>
__device__ __forceinline__ void load_forward(const ForwardMaps& maps, const Hooks& hooks, const ForwardRing& ring) {
  ForwardCursor at;
  uint32_t q_phase = 0;
  for (int index = blockIdx.x; index < maps.tiles; index += gridDim.x) {
    const Tile tile = hooks.tile(index);
    hooks.await(tile);
    const int blocks = (tile.visible() + kBlockKeys - 1) / kBlockKeys;
    if (gemm::elect()) {
      wait_phase(ring.of_q.empty, q_phase ^ 1);
      load_matrix<kHead>(ring.q, &maps.q, tile.q_row, tile.q_col, ring.of_q.full);
      for (int block = 0; block < blocks; ++block, at.advance()) {
        const int row = tile.kv_row + block * kBlockKeys;
        const Stage k = ring.of_k(at.stage), v = ring.of_v(at.stage);
        wait_phase(k.empty, at.phase ^ 1);
        load_matrix<kHead>(ring.k + at.stage * kForwardTileBytes<kHead>, &maps.k, row, tile.kv_col, k.full);
        wait_phase(v.empty, at.phase ^ 1);
        load_matrix<kHead>(ring.v + at.stage * kForwardTileBytes<kHead>, &maps.v, row, tile.kv_col, v.full);
      }
    }
    q_phase ^= 1;
    __syncwarp();
  }
}

// The softmax of two rows of a thread, r and r + 8, over all keys so far.
struct SoftmaxRows {
  float most[2], sum[2];  // of scores; of this thread's exponentials relative to it

  // Takes the scores of 128 keys from `key` on, makes them exponentials, and returns by how much earlier ones shrink.
  __device__ __forceinline__ float2 take(float (&scores)[kBlockKeys / 2], const Tile& tile, int row, int key,
                                         float log2_scale) {
    const int lane = threadIdx.x % 32;
    const int first_hidden[2] = {tile.visible_to(row), tile.visible_to(row + 8)};
    if (key + kBlockKeys > min(first_hidden[0], first_hidden[1])) {
#pragma unroll
      for (int i = 0; i < kBlockKeys / 2; ++i) {
        if (key + i / 4 * 8 + lane % 4 * 2 + i % 2 >= first_hidden[i / 2 % 2]) scores[i] = -INFINITY;
      }
    }
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = most[half];
#pragma unroll
      for (int i = 2 * half; i < kBlockKeys / 2; i += 4) largest = fmaxf(largest, fmaxf(scores[i], scores[i + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      // Nothing is seen yet where all is -infinity, and any finite number makes all exponentials zero.
      const float base = largest == -INFINITY ? 0.0f : largest * log2_scale;
      shrink[half] = exp2_fast(most[half] * log2_scale - base);
      most[half] = largest;
      float added = 0.0f;
#pragma unroll
      for (int i = 2 * half; i < kBlockKeys / 2; i += 4) {
        scores[i] = exp2_fast(scores[i] * log2_scale - base);
        scores[i + 1] = exp2_fast(scores[i + 1] * log2_scale - base);
        added += scores[i] + scores[i + 1];
      }
      sum[half] = sum[half] * shrink[half] + added;
    }
    return {shrink[0], shrink[1]};
  }
};

template <int kSums>
__device__ __forceinline__ void scale_rows(float (&sums)[kSums], float2 factors) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] *= i / 2 % 2 ? factors.y : factors.x;
}

// Results of 64 queries from `first` on, rounded, by way of `staging`: boxes of kTileRows rows of which these are some.
template <class T, int kHead, class Hooks>
__device__ __forceinline__ void store_rows(const Tile& tile, const float (&sums)[kHead / 2], uint32_t staging, int first,
                                           int consumer, const Hooks& hooks) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int box_row = first + thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int group = 0; group < kHead / 8; group += 2) {
    const float* eight = sums + group * 4;
    const int unit = group % 8 + lane / 16;  // of 16 bytes, within a box's row; swizzled as tensor maps do
    gemm::store_matrices(staging + group / 8 * kTileRows * 128 + box_row * 128 + ((unit ^ (box_row % 8)) * 16),
                         gemm::pack<T>(eight[0], eight[1]), gemm::pack<T>(eight[2], eight[3]),
                         gemm::pack<T>(eight[4], eight[5]), gemm::pack<T>(eight[6], eight[7]));
  }
  gemm::named_barrier(1 + consumer, 128);
  constexpr int kUnits = kHead / 8;
#pragma unroll 4
  for (int i = thread; i < kConsumerRows * kUnits; i += 128) {
    const int row = first + i / kUnits, unit = i % kUnits;
    if (row >= tile.rows) break;
    const uint32_t from = staging + unit / 8 * kTileRows * 128 + row * 128 + ((unit % 8 ^ (row % 8)) * 16);
    uint4 eight;
    asm volatile("ld.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                 : "r"(from)
                 : "memory");
    *reinterpret_cast<uint4*>(hooks.out_row(tile, row) + unit * 8) = eight;
  }
}

// The same as floats, which later keys are added to, straight from registers.
template <int kHead, class Hooks>
__device__ __forceinline__ void store_floats(const Tile& tile, const float (&sums)[kHead / 2], int row,
                                             const Hooks& hooks) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= tile.rows) continue;
    float* out = hooks.out_row(tile, row + 8 * half) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 2 * half; i < kHead / 2; i += 4) {
      *reinterpret_cast<float2*>(out + i / 4 * 8) = make_float2(sums[i], sums[i + 1]);
    }
  }
}

// A consumer: 64 queries of every tile.
template <class T, int kHead, class Hooks>
__device__ __forceinline__ void attend(const ForwardMaps& maps, const Hooks& hooks, const ForwardRing& ring,
                                       int consumer) {
  constexpr int kBytes = kForwardTileBytes<kHead>;
  const int lane = threadIdx.x % 32, first = consumer * kConsumerRows;
  const int row = first + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const float log2_scale = maps.log2_scale;
  float scores[kBlockKeys / 2], sums[kHead / 2];
  uint32_t packed[kBlockKeys / 4];
  ForwardCursor k_at, v_at;
  uint32_t q_phase = 0;
  const auto release = [lane](uint32_t empty) {
    if (lane == 0) arrive(empty);
  };
  const auto multiply_keys = [&] {
    wait_phase(ring.of_k(k_at.stage).full, k_at.phase);
    gemm::wgmma_fence();
    multiply_rows<T, kBlockKeys, kHead>(scores, ring.q, kTileRows, first, ring.k + k_at.stage * kBytes, kBlockKeys);
    gemm::wgmma_commit();
  };
  const auto multiply_values = [&] {
    wait_phase(ring.of_v(v_at.stage).full, v_at.phase);
    gemm::wgmma_fence();
    multiply_packed<T, kHead, kBlockKeys>(sums, packed, ring.v + v_at.stage * kBytes, kBlockKeys);
    gemm::wgmma_commit();
  };
  const auto release_keys = [&] {
    release(ring.of_k(k_at.stage).empty);
    k_at.advance();
  };
  const auto release_values = [&] {
    release(ring.of_v(v_at.stage).empty);
    v_at.advance();
  };

  for (int index = blockIdx.x; index < maps.tiles; index += gridDim.x) {
    const Tile tile = hooks.tile(index);
    const int blocks = (tile.visible() + kBlockKeys - 1) / kBlockKeys;
    SoftmaxRows rows{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    if constexpr (Hooks::kResumes) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + 8 * half;
        if (i >= tile.rows) continue;
        const float lse = hooks.resume_lse(tile, i);
        if (lse == -INFINITY) continue;
        const float* before = hooks.resume_row(tile, i) + lane % 4 * 2;
        rows.most[half] = lse * 1.44269504f / log2_scale;
        rows.sum[half] = lane % 4 == 0 ? 1.0f : 0.0f;  // once for the four threads of a row
#pragma unroll
        for (int e = 2 * half; e < kHead / 2; e += 4) {
          sums[e] = before[e / 4 * 8];
          sums[e + 1] = before[e / 4 * 8 + 1];
        }
      }
    }
    wait_phase(ring.of_q.full, q_phase);
    q_phase ^= 1;
    if (blocks > 0) {
      multiply_keys();
      gemm::wgmma_wait<0>();
      pin(scores);
      release_keys();
      const float2 shrink = rows.take(scores, tile, row, 0, log2_scale);
      if constexpr (Hooks::kResumes) scale_rows(sums, shrink);
      pack_rows<T, kBlockKeys>(packed, scores);
      for (int block = 1; block < blocks; ++block) {
        multiply_keys();
        multiply_values();
        gemm::wgmma_wait<1>();
        pin(scores);
        release_keys();
        const float2 factors = rows.take(scores, tile, row, block * kBlockKeys, log2_scale);
        gemm::wgmma_wait<0>();
        pin(sums);
        pin(packed);
        release_values();
        scale_rows(sums, factors);
        pack_rows<T, kBlockKeys>(packed, scores);
      }
      multiply_values();
      gemm::wgmma_wait<0>();
      pin(sums);
      release_values();
    }
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[half] = sum > 0.0f ? 1.0f / sum : 0.0f;
      if (lane % 4 == 0 && row + 8 * half < tile.rows) {
        float* lse = hooks.lse(tile, row + 8 * half);
        if (lse) *lse = (rows.most[half] * log2_scale + log2f(sum)) * 0.69314718f;
      }
    }
    scale_rows(sums, {inverse[0], inverse[1]});
    if constexpr (std::is_same_v<typename Hooks::Out, float>) {
      store_floats<kHead>(tile, sums, row, hooks);
    } else {
      store_rows<T, kHead>(tile, sums, ring.q, first, consumer, hooks);
      fence_async_shared();  // the next queries are loaded to where results were staged
    }
    __syncwarp();
    release(ring.of_q.empty);
  }
}

template <class T, int kHead, class Hooks>
__global__ void __launch_bounds__(kForwardThreads, 1)
    attend_sm90(const __grid_constant__ ForwardMaps maps, const __grid_constant__ Hooks hooks) {
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t barriers[2 + 4 * kForwardStages];
  constexpr int kBytes = kForwardTileBytes<kHead>;
  const uint32_t base = (shared_address(dynamic) + 1023) / 1024 * 1024, words = shared_address(barriers);
  const ForwardRing ring{base, base + kBytes, base + (1 + kForwardStages) * kBytes, {words, words + 8}, words + 16};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    const auto begin = [](Stage stage) {
      init_barrier(stage.full, 1);
      init_barrier(stage.empty, kConsumers * 4);  // every warp that multiplies
    };
    begin(ring.of_q);
    for (int stage = 0; stage < kForwardStages; ++stage) {
      begin(ring.of_k(stage));
      begin(ring.of_v(stage));
    }
    fence_barrier_init();
  }
  hooks.enter();
  __syncthreads();
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 0) load_forward<kHead>(maps, hooks, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    attend<T, kHead>(maps, hooks, ring, warp / 4 - 1);
  }
  __syncthreads();
  hooks.leave();
}

// A matrix for boxes of kTileRows rows.
template <class T>
CUtensorMap map_of(const Matrix<T>& matrix) {
  return gemm::operand_map<T>(matrix.data, matrix.rows, matrix.cols, matrix.stride, kTileRows);
}

// Blocks of the kernel: at most one a multiprocessor, all resident at once.
template <class T, int kHead, class Hooks>
void launch_sm90(const Forward<T>& work, const Hooks& hooks, unsigned blocks, cudaStream_t stream) {
  allow_shared_memory<attend_sm90<T, kHead, Hooks>>(kForwardBytes<kHead>);
  const ForwardMaps maps{map_of(work.q), map_of(work.k), map_of(work.v), work.tiles, work.scale * 1.44269504f};
  attend_sm90<T, kHead, Hooks><<<blocks, kForwardThreads, kForwardBytes<kHead>, stream>>>(maps, hooks);
  PKB_CUDA_LAUNCHED();
}

}  // namespace attention
}  // namespace pkb
