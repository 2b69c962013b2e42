// The gated delta rule, position by position: a state (K, D) of each head decays, is corrected towards the value along
// the key, and is read out along the query.
//
//   state = w state;  u = beta (v - k^T state);  state += k u^T;  out = q^T state
//
// q and k are normalised, q divided by the root of K; w is a number, or one for each key channel. Columns of the state
// are independent, so that a block computes some columns of one head, with the state in registers: each thread
// holds 16 rows of a column. Half of the warps load, normalise and store some positions ahead, and the others compute.
//
//   struct Mine {                          // hooks
//     static constexpr bool kPerChannel = false;             // gates: one a position, or one a key channel
//     const T *q(int item) const, *k, *v, *gate, *beta;      // of a head, at its first position
//     float decay(int item, float gate, int channel) const;  // w
//     float strength(float beta) const;                      // beta
//     T* out(int item, int position) const;                  // where D elements belong, on any rank
//     void leave() const;                                    // called by all threads at the end
//   };
//   pkb::scan_delta_rule(pkb::DeltaRule{...}, Mine{...}, most_items, comm.cuda_stream());
//
// Bound: latency, one step of a position after another, some 200 cycles each; the rule in chunks would be bound by
// memory. Formula: S. Yang et al., Gated Delta Networks, arXiv:2412.06464, equation 10; per channel: Kimi Team, Kimi
// Linear, arXiv:2510.26692, equation 1.
#pragma once

#include <algorithm>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {

struct DeltaRule {
  int items;            // heads of all samples
  int positions;        // that follow each other
  int K, D;             // elements of keys and of values
  int64_t key_step, value_step, gate_step, beta_step;  // elements from a position to the next
  float eps;            // least norm
};

namespace delta {

constexpr int kComputing = 128, kThreads = 2 * kComputing;  // threads that compute; as many load
constexpr int kEach = 16;      // rows of the state of a thread
constexpr int kPositions = 8;  // of a stage
constexpr int kMaxKeys = kEach * 32;

// Two stages of shared memory: vectors of kPositions positions, as floats, of `keys` elements with zeros at the end.
struct Stages {
  float* memory;
  int keys, columns, vectors;  // vectors of `keys` elements: keys, queries, and decays where they differ by channel

  __host__ __device__ int floats() const { return kPositions * (vectors * keys + 2 * columns + 2); }
  __device__ float* vector(int stage, int which, int position) const {
    return memory + stage * floats() + (which * kPositions + position) * keys;
  }
  __device__ float* values(int stage, int position) const {
    return memory + stage * floats() + kPositions * vectors * keys + position * columns;
  }
  __device__ float* results(int stage, int position) const {
    return values(stage, kPositions) + position * columns;
  }
  // Strength, then decay where it is one number.
  __device__ float* scalars(int stage, int position) const { return results(stage, kPositions) + 2 * position; }
};

// Loads what a stage needs from `first` on, by the warps that load.
template <class T, class Hooks>
__device__ __forceinline__ void load_stage(const DeltaRule& g, const Hooks& hooks, const Stages& stages, int stage,
                                           int item, int column, int first) {
  const int lane = lane_id(), warp = warp_id() - kComputing / 32;
  for (int i = warp; i < kPositions; i += kComputing / 32) {
    const int position = first + i;
    if (position >= g.positions) break;
    const T* k = hooks.k(item) + position * g.key_step;
    const T* q = hooks.q(item) + position * g.key_step;
    const T* gate = hooks.gate(item) + position * g.gate_step;
    float of_k[kMaxKeys / 32], of_q[kMaxKeys / 32], k_squares = 0.0f, q_squares = 0.0f;
#pragma unroll
    for (int e = 0; e < kMaxKeys / 32; ++e) {
      const int channel = lane + 32 * e;
      if (channel >= g.K) break;
      of_k[e] = to_float(k[channel]);
      of_q[e] = to_float(q[channel]);
      k_squares += of_k[e] * of_k[e];
      q_squares += of_q[e] * of_q[e];
    }
    const float k_norm = 1.0f / fmaxf(sqrtf(Warp().sum(k_squares)), g.eps);
    const float q_norm = rsqrtf(float(g.K)) / fmaxf(sqrtf(Warp().sum(q_squares)), g.eps);
#pragma unroll
    for (int e = 0; e < kMaxKeys / 32; ++e) {
      const int channel = lane + 32 * e;
      if (channel >= stages.keys) break;
      const bool is_real = channel < g.K;
      stages.vector(stage, 0, i)[channel] = is_real ? of_k[e] * k_norm : 0.0f;
      stages.vector(stage, 1, i)[channel] = is_real ? of_q[e] * q_norm : 0.0f;
      if constexpr (Hooks::kPerChannel) {
        stages.vector(stage, 2, i)[channel] = is_real ? hooks.decay(item, to_float(gate[channel]), channel) : 0.0f;
      }
    }
    const T* v = hooks.v(item) + position * g.value_step;
    for (int c = lane; c < stages.columns; c += 32) {
      stages.values(stage, i)[c] = column + c < g.D ? to_float(v[column + c]) : 0.0f;
    }
    if (lane == 0) {
      stages.scalars(stage, i)[0] = hooks.strength(to_float(hooks.beta(item)[position * g.beta_step]));
      if constexpr (!Hooks::kPerChannel) stages.scalars(stage, i)[1] = hooks.decay(item, to_float(*gate), 0);
    }
  }
}

template <class T, class Hooks>
__device__ __forceinline__ void store_stage(const DeltaRule& g, const Hooks& hooks, const Stages& stages, int stage,
                                            int item, int column, int first) {
  const int count = min(kPositions, g.positions - first) * stages.columns;
  for (int i = threadIdx.x - kComputing; i < count; i += kComputing) {
    const int position = i / stages.columns, c = i % stages.columns;
    if (column + c < g.D) hooks.out(item, first + position)[column + c] = T(stages.results(stage, position)[c]);
  }
}

// kParts threads share a column; this one has rows 4 (kParts i + part) .. + 3 of it for i < kEach / 4.
template <int kParts, class Hooks>
__device__ __forceinline__ void compute_stage(float (&state)[kEach], const Stages& stages, int stage, int positions) {
  const int part = threadIdx.x % kParts, c = threadIdx.x / kParts;
  const auto sum_parts = [](float x) {
#pragma unroll
    for (int apart = kParts / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(kAllLanes, x, apart);
    return x;
  };
  const auto load = [part](const float* vector, int i) {
    return *reinterpret_cast<const float4*>(vector + 4 * (kParts * i + part));
  };
  for (int position = 0; position < positions; ++position) {
    const float* scalars = stages.scalars(stage, position);
    const float* decays = Hooks::kPerChannel ? stages.vector(stage, 2, position) : nullptr;
    float4 k[kEach / 4];
    float along[4] = {};
#pragma unroll
    for (int i = 0; i < kEach / 4; ++i) {
      k[i] = load(stages.vector(stage, 0, position), i);
      float4 w;
      if constexpr (Hooks::kPerChannel) w = load(decays, i);
      else w = make_float4(scalars[1], scalars[1], scalars[1], scalars[1]);
      float* rows = state + 4 * i;
      rows[0] *= w.x, rows[1] *= w.y, rows[2] *= w.z, rows[3] *= w.w;
      along[0] += k[i].x * rows[0];
      along[1] += k[i].y * rows[1];
      along[2] += k[i].z * rows[2];
      along[3] += k[i].w * rows[3];
    }
    const float before = sum_parts(along[0] + along[1] + (along[2] + along[3]));
    const float u = scalars[0] * (stages.values(stage, position)[c] - before);
    float out[4] = {};
#pragma unroll
    for (int i = 0; i < kEach / 4; ++i) {
      const float4 q = load(stages.vector(stage, 1, position), i);
      float* rows = state + 4 * i;
      rows[0] += k[i].x * u, rows[1] += k[i].y * u, rows[2] += k[i].z * u, rows[3] += k[i].w * u;
      out[0] += q.x * rows[0];
      out[1] += q.y * rows[1];
      out[2] += q.z * rows[2];
      out[3] += q.w * rows[3];
    }
    const float result = sum_parts(out[0] + out[1] + (out[2] + out[3]));
    if (part == 0) stages.results(stage, position)[c] = result;
  }
}

template <class T, int kParts, class Hooks>
__global__ void __launch_bounds__(kThreads) scan(const __grid_constant__ DeltaRule g,
                                                 const __grid_constant__ Hooks hooks) {
  extern __shared__ __align__(16) float memory[];
  constexpr int kColumns = kComputing / kParts;
  const Stages stages{memory, kEach * kParts, kColumns, Hooks::kPerChannel ? 3 : 2};
  const int slices = (g.D + kColumns - 1) / kColumns, rounds = (g.positions + kPositions - 1) / kPositions;
  const bool computes = threadIdx.x < kComputing;
  for (int index = blockIdx.x; index < g.items * slices; index += gridDim.x) {
    const int item = index / slices, column = index % slices * kColumns;
    float state[kEach] = {};
    // Round r: stage r is loaded, r - 1 computed, and results of r - 2 stored.
    for (int round = 0; round < rounds + 2; ++round) {
      if (computes) {
        if (round > 0 && round <= rounds) {
          const int first = (round - 1) * kPositions;
          compute_stage<kParts, Hooks>(state, stages, (round - 1) % 2, min(kPositions, g.positions - first));
        }
      } else {
        if (round > 1) store_stage<T>(g, hooks, stages, round % 2, item, column, (round - 2) * kPositions);
        if (round < rounds) load_stage<T>(g, hooks, stages, round % 2, item, column, round * kPositions);
      }
      __syncthreads();
    }
  }
  hooks.leave();
}

template <class T, int kParts, class Hooks>
void launch(const DeltaRule& g, const Hooks& hooks, int most_items, cudaStream_t stream) {
  constexpr int kColumns = kComputing / kParts;
  constexpr int kBytes =
      2 * kPositions * ((Hooks::kPerChannel ? 3 : 2) * kEach * kParts + 2 * kColumns + 2) * int(sizeof(float));
  const int resident = resident_blocks<scan<T, kParts, Hooks>, kThreads, kBytes>();
  const int64_t slices = (g.D + kColumns - 1) / kColumns;
  const int64_t blocks = std::clamp<int64_t>(most_items * slices, 1, std::min(resident, kMaxBlocks));
  scan<T, kParts, Hooks><<<unsigned(blocks), kThreads, kBytes, stream>>>(g, hooks);
  PKB_CUDA_LAUNCHED();
}

}  // namespace delta

// Enqueues the scan. `most_items` are the heads of that rank which has most: the kernel has as many blocks on all ranks.
template <class T, class Hooks>
void scan_delta_rule(const DeltaRule& g, const Hooks& hooks, int most_items, cudaStream_t stream) {
  if (g.K <= 16) return delta::launch<T, 1>(g, hooks, most_items, stream);
  if (g.K <= 128) return delta::launch<T, 8>(g, hooks, most_items, stream);
  if (g.K <= 256) return delta::launch<T, 16>(g, hooks, most_items, stream);
  if (g.K <= delta::kMaxKeys) return delta::launch<T, 32>(g, hooks, most_items, stream);
  TVM_FFI_THROW(ValueError) << "expected keys of at most " << delta::kMaxKeys << " elements, got " << g.K;
}

}  // namespace pkb
