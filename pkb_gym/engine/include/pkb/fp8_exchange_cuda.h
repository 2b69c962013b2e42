// Tensors that cross the link as 8-bit floats (e4m3) with delayed scaling: an all-gather of what is rounded, or a
// reduce-scatter, in one kernel.
//
// Blocks look for the largest absolute value; the last one to finish forms the scale from it and the history of maxima,
// and sends it to all ranks as a word that carries the number of the call (pkb/tagged_cuda.h). This word is also the
// barrier between looking and rounding. Then codes are pushed into the receivers' scratch, a few as tagged words, more in
// rounds, with a signal from each block after each, and receivers scale them back: codes of the round before, while
// those of this round are on their way. Slices are rounded from the last one on, those first that the L2 cache holds.
//
// Bound: link, W - 1 slices of one byte an element into each rank; on one rank, memory. A tensor is read twice.
//
// Scaling: P. Micikevicius et al., FP8 Formats for Deep Learning, arXiv:2209.05433; the history of maxima as in NVIDIA
// Transformer Engine's delayed scaling.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {

constexpr float kLargestE4m3 = 448.0f;
constexpr int kCodes = 8;  // of a unit: bfloat16 numbers of a vector, and codes of a tagged pair
constexpr int kUnitsAtOnce = 4;  // independent loads of a thread
constexpr int kFp8MaxRounds = 8;

struct Fp8Exchange {
  const __nv_bfloat16* x;        // slice r is for rank r in a sum, and the only one of a gather
  __nv_bfloat16* out;            // the sum of this rank's slices, or all ranks' slices
  const __nv_bfloat16* history;  // past maxima, oldest first
  __nv_bfloat16* new_history;
  int64_t elements;              // of a slice
  int64_t length;                // of the history
  float least;                   // of maxima

  __host__ __device__ int64_t units() const { return (elements + kCodes - 1) / kCodes; }
};

// Words of the signal pad: blocks that have looked, the largest value so far, and scales of all ranks, in two halves.
enum Fp8Word { kFp8Counter = 0, kFp8Largest = 1, kFp8Scales = 16 };

// Eight numbers, as far as there are so many left, and zeros.
__device__ __forceinline__ uint4 load_unit(const __nv_bfloat16* from, int64_t left) {
  if (left >= kCodes && reinterpret_cast<uintptr_t>(from) % sizeof(uint4) == 0) return load_vector(from);
  Pack<__nv_bfloat16> pack{};
#pragma unroll
  for (int i = 0; i < kCodes; ++i) {
    if (i < left) pack.values[i] = from[i];
  }
  return reinterpret_cast<const uint4&>(pack);
}

__device__ __forceinline__ void store_unit(__nv_bfloat16* to, const float (&values)[kCodes], int64_t left) {
  Pack<__nv_bfloat16> pack;
#pragma unroll
  for (int i = 0; i < kCodes; i += 2) round_to(pack.values[i], pack.values[i + 1], values[i], values[i + 1]);
  if (left >= kCodes && reinterpret_cast<uintptr_t>(to) % sizeof(uint4) == 0) {
    store_vector(to, reinterpret_cast<const uint4&>(pack));
    return;
  }
#pragma unroll
  for (int i = 0; i < kCodes; ++i) {
    if (i < left) to[i] = pack.values[i];
  }
}

// The codes of eight numbers, each divided by the scale.
__device__ __forceinline__ uint2 encode_unit(const uint4& unit, float inverse_scale) {
  uint16_t pairs[kCodes / 2];
#pragma unroll
  for (int i = 0; i < kCodes; i += 2) {
    const float2 two{element<__nv_bfloat16>(unit, i) * inverse_scale, element<__nv_bfloat16>(unit, i + 1) * inverse_scale};
    pairs[i / 2] = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
  }
  return uint2{pairs[0] | uint32_t(pairs[1]) << 16, pairs[2] | uint32_t(pairs[3]) << 16};
}

// The numbers of eight codes, rounded to bfloat16.
__device__ __forceinline__ void decode_unit(const uint2& codes, float scale, float (&values)[kCodes]) {
#pragma unroll
  for (int i = 0; i < kCodes; i += 2) {
    const auto pair = __nv_fp8x2_storage_t((i < 4 ? codes.x : codes.y) >> i % 4 * 8);
    const float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    __nv_bfloat16 a, b;
    round_to(a, b, two.x * scale, two.y * scale);
    values[i] = to_float(a);
    values[i + 1] = to_float(b);
  }
}

__device__ __forceinline__ float largest_of_unit(const uint4& unit) {
  constexpr uint32_t kNoSigns = 0x7fff7fffu;
  return largest<__nv_bfloat16>(uint4{unit.x & kNoSigns, unit.y & kNoSigns, unit.z & kNoSigns, unit.w & kNoSigns});
}

// Word of the scale of a rank, in the pad of another one.
__device__ __forceinline__ uint64_t* scale_word(const Device& comm, int of, int in) {
  return comm.signal_word(kFp8Scales + int(comm.epoch % 2) * kMaxRanks + of, in);
}

// Waits for the scales of all ranks, by a whole block.
__device__ __forceinline__ void await_scales(const Device& comm, float (&scales)[kMaxRanks]) {
  if (int(threadIdx.x) < comm.world_size) {
    scales[threadIdx.x] = wait_tagged(scale_word(comm, int(threadIdx.x), comm.rank), uint32_t(comm.epoch));
  }
  __syncthreads();
}

// Finds the largest of all `count` numbers and, in the last block to do so, forms the scale, writes the history, and
// sends the scale to all ranks.
__device__ __forceinline__ void find_scale(const Fp8Exchange& g, const Device& comm, int64_t count) {
  float of_thread = 0.0f;
  const int64_t units = (count + kCodes - 1) / kCodes, step = int64_t(gridDim.x) * kTransferThreads;
  for (int64_t first = blockIdx.x * int64_t(kTransferThreads) + threadIdx.x; first < units;
       first += kUnitsAtOnce * step) {
    uint4 loaded[kUnitsAtOnce] = {};
#pragma unroll
    for (int u = 0; u < kUnitsAtOnce; ++u) {
      const int64_t unit = first + u * step;
      if (unit < units) loaded[u] = load_unit(g.x + unit * kCodes, count - unit * kCodes);
    }
#pragma unroll
    for (const uint4& unit : loaded) of_thread = fmaxf(of_thread, largest_of_unit(unit));
  }
  const float of_block = reduce_block<kTransferThreads>(of_thread, [](float a, float b) { return fmaxf(a, b); });
  auto* word = reinterpret_cast<unsigned long long*>(comm.signal_word(kFp8Largest, comm.rank));
  // Values of this call are above those of all calls before.
  if (threadIdx.x == 0) atomicMax(word, comm.epoch << 32 | __float_as_uint(of_block));
  if (!arrives_last(reinterpret_cast<unsigned*>(comm.signal_word(kFp8Counter, comm.rank)))) return;
  const float current = __uint_as_float(uint32_t(__ldcg(word)));
  float most = current;
  for (int64_t i = threadIdx.x; i < g.length; i += kTransferThreads) {
    const __nv_bfloat16 kept = i + 1 < g.length ? g.history[i + 1] : __nv_bfloat16(current);
    g.new_history[i] = kept;
    most = fmaxf(most, to_float(kept));
  }
  most = reduce_block<kTransferThreads>(most, [](float a, float b) { return fmaxf(a, b); });
  const float scale = fmaxf(most, g.least) / kLargestE4m3;
  const int thread = int(threadIdx.x);
  if (thread < comm.world_size) store_tagged(scale_word(comm, comm.rank, thread), scale, uint32_t(comm.epoch));
}

// Units of a thread: kUnitsAtOnce of them from `first` on, each `step` units after the one before, and before `end`.
struct Units {
  int64_t first, step, end;
  __device__ int64_t at(int u) const { return first + u * step; }
  __device__ bool has(int u) const { return at(u) < end; }
};

// Numbers of some units of a slice.
__device__ __forceinline__ void load_units(const Fp8Exchange& g, const __nv_bfloat16* slice, const Units& units,
                                           uint4 (&loaded)[kUnitsAtOnce]) {
#pragma unroll
  for (int u = 0; u < kUnitsAtOnce; ++u) {
    const int64_t at = units.at(u) * kCodes;
    if (units.has(u)) loaded[u] = load_unit(slice + at, g.elements - at);
  }
}

// Takes codes_of(r, unit) of every rank r; the own rank's are formed here. Stores their mean, or each where it belongs.
template <bool kSum, class CodesOf>
__device__ __forceinline__ void receive_units(const Fp8Exchange& g, const Device& comm,
                                              const float (&scales)[kMaxRanks], const Units& units,
                                              const CodesOf& codes_of) {
  float values[kCodes], sums[kUnitsAtOnce][kCodes] = {};
#pragma unroll 1
  for (int r = 0; r < comm.world_size; ++r) {
    uint2 codes[kUnitsAtOnce];
    if (r != comm.rank) {
#pragma unroll
      for (int u = 0; u < kUnitsAtOnce; ++u) {
        if (units.has(u)) codes[u] = codes_of(r, units.at(u));
      }
    } else if constexpr (kSum) {
      uint4 loaded[kUnitsAtOnce] = {};
      load_units(g, g.x + r * g.elements, units, loaded);
#pragma unroll
      for (int u = 0; u < kUnitsAtOnce; ++u) codes[u] = encode_unit(loaded[u], 1.0f / scales[r]);
    } else {
      continue;  // stored when it was sent
    }
#pragma unroll
    for (int u = 0; u < kUnitsAtOnce; ++u) {
      if (!units.has(u)) break;
      decode_unit(codes[u], scales[r], values);
      const int64_t at = units.at(u) * kCodes;
      if constexpr (!kSum) store_unit(g.out + r * g.elements + at, values, g.elements - at);
#pragma unroll
      for (int i = 0; i < kCodes; ++i) sums[u][i] += values[i];
    }
  }
  if constexpr (kSum) {
#pragma unroll
    for (int u = 0; u < kUnitsAtOnce; ++u) {
      if (!units.has(u)) break;
#pragma unroll
      for (float& sum : sums[u]) sum /= float(comm.world_size);
      store_unit(g.out + units.at(u) * kCodes, sums[u], g.elements - units.at(u) * kCodes);
    }
  }
}

// Gives send(k, unit, codes) the codes of some units for the k-th rank after this one; in a gather, stores the own ones.
template <bool kSum, class Send>
__device__ __forceinline__ void send_units(const Fp8Exchange& g, const Device& comm, float scale, const Units& units,
                                           const Send& send) {
  const float inverse = 1.0f / scale;
  uint4 loaded[kUnitsAtOnce];
  if constexpr (kSum) {
#pragma unroll 1
    for (int k = 1; k < comm.world_size; ++k) {
      load_units(g, g.x + rank_after(comm, k) * g.elements, units, loaded);
#pragma unroll
      for (int u = 0; u < kUnitsAtOnce; ++u) {
        if (units.has(u)) send(k, units.at(u), encode_unit(loaded[u], inverse));
      }
    }
  } else {
    load_units(g, g.x, units, loaded);
#pragma unroll
    for (int u = 0; u < kUnitsAtOnce; ++u) {
      if (!units.has(u)) break;
      const uint2 codes = encode_unit(loaded[u], inverse);
#pragma unroll 1
      for (int k = 1; k < comm.world_size; ++k) send(k, units.at(u), codes);
      float values[kCodes];
      decode_unit(codes, scale, values);
      const int64_t at = units.at(u) * kCodes;
      store_unit(g.out + comm.rank * g.elements + at, values, g.elements - at);
    }
  }
}

template <bool kSum>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    exchange_fp8_tagged(const __grid_constant__ Fp8Exchange g, const __grid_constant__ Boxes boxes,
                        const __grid_constant__ Device comm) {
  __shared__ float scales[kMaxRanks];
  find_scale(g, comm, kSum ? g.elements * comm.world_size : g.elements);
  comm.hold();
  const uint32_t tag = uint32_t(comm.epoch);
  const float own_scale = wait_tagged(scale_word(comm, comm.rank, comm.rank), tag);
  const int64_t first = blockIdx.x * int64_t(kTransferThreads) + threadIdx.x;
  const int64_t step = int64_t(gridDim.x) * kTransferThreads;
  for (int64_t unit = first; unit < g.units(); unit += kUnitsAtOnce * step) {
    send_units<kSum>(g, comm, own_scale, Units{unit, step, g.units()}, [&](int k, int64_t unit, uint2 codes) {
      store_tagged(boxes.box<TaggedPair>(comm, rank_after(comm, k), comm.rank) + unit, codes, tag);
    });
  }
  await_scales(comm, scales);
  for (int64_t unit = first; unit < g.units(); unit += kUnitsAtOnce * step) {
    receive_units<kSum>(g, comm, scales, Units{unit, step, g.units()}, [&](int r, int64_t unit) {
      return wait_tagged(boxes.box<TaggedPair>(comm, comm.rank, r) + unit, tag);
    });
  }
}

template <bool kSum>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    exchange_fp8(const __grid_constant__ Fp8Exchange g, const __grid_constant__ Boxes boxes, int rounds,
                 const __grid_constant__ Device comm) {
  __shared__ float scales[kMaxRanks];
  const int thread = int(threadIdx.x);
  const bool has_peer = thread < comm.world_size && thread != comm.rank;
  find_scale(g, comm, kSum ? g.elements * comm.world_size : g.elements);
  comm.hold();
  const float own_scale = wait_tagged(scale_word(comm, comm.rank, comm.rank), uint32_t(comm.epoch));

  // Units of this block in a round: a slice, from the last of all slices on.
  const auto visit = [&](int round, auto do_units) {
    const int64_t slices = int64_t(rounds) * gridDim.x, slice = slices - 1 - (int64_t(round) * gridDim.x + blockIdx.x);
    const int64_t end = g.units() * (slice + 1) / slices;
    for (int64_t unit = g.units() * slice / slices + threadIdx.x; unit < end; unit += kUnitsAtOnce * kTransferThreads) {
      do_units(Units{unit, kTransferThreads, end});
    }
  };
  for (int round = 0; round <= rounds; ++round) {
    if (round < rounds) {
      visit(round, [&](const Units& units) {
        send_units<kSum>(g, comm, own_scale, units, [&](int k, int64_t unit, uint2 codes) {
          boxes.box<uint2>(comm, rank_after(comm, k), comm.rank)[unit] = codes;
        });
      });
      __syncthreads();
      if (has_peer) comm.signal_block(round, thread);
    }
    if (round == 0) {
      await_scales(comm, scales);
      continue;
    }
    if (has_peer) comm.wait_block(round - 1, thread);
    __syncthreads();
    visit(round - 1, [&](const Units& units) {
      receive_units<kSum>(g, comm, scales, units, [&](int r, int64_t unit) {
        return __ldcg(boxes.box<const uint2>(comm, comm.rank, r) + unit);
      });
    });
  }
}

// All blocks wait for the last one: they are resident together, kBlocksPerSm on a multiprocessor.
template <bool kSum>
void launch_fp8_exchange(const Fp8Exchange& g, const Comm& comm) {
  const uint64_t bytes = uint64_t(g.units()) * kCodes;
  const unsigned blocks = blocks_for(g.units() * (kSum ? comm.world_size : 1), kTransferThreads);  // as many on every rank
  if (is_tagged(bytes, comm)) {
    exchange_fp8_tagged<kSum>
        <<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(g, Boxes::for_tagged(comm), comm.device());
  } else {
    const uint64_t of_round = uint64_t(blocks) * kTransferThreads * kUnitsAtOnce * kCodes;  // a batch of each thread
    const int rounds = comm.world_size > 1 ? int(std::clamp<uint64_t>(bytes / of_round, 1, kFp8MaxRounds)) : 1;
    exchange_fp8<kSum><<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(
        g, Boxes::for_bytes(comm.world_size > 1 ? bytes : 0, comm), rounds, comm.device());
  }
  PKB_CUDA_LAUNCHED();
}

// Of a vector of bfloat16 numbers and its history; `slice` is the length of what goes to, or comes from, one rank.
inline Fp8Exchange fp8_exchange_of(const tvm::ffi::TensorView& x, const tvm::ffi::TensorView& history,
                                   const tvm::ffi::TensorView& out, const tvm::ffi::TensorView& new_history,
                                   int64_t slice) {
  using T = __nv_bfloat16;
  for (const auto* tensor : {&x, &history}) {
    if (tensor->dtype() != kDtype<T>) TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << tensor->dtype();
  }
  const float least = __bfloat162float(T(1e-12f));  // a bfloat16 maximum is raised to it
  return Fp8Exchange{static_cast<const T*>(x.data_ptr()), static_cast<T*>(out.data_ptr()),
                     static_cast<const T*>(history.data_ptr()), static_cast<T*>(new_history.data_ptr()),
                     slice, history.numel(), least};
}

}  // namespace pkb
