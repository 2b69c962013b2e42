// A mixture-of-experts layer whose experts on a rank share one gated MLP: out(x) = sum over ranks d of w_d(x) MLP_d(x),
// with w_d the sum of x's router weights of those of its K experts that are on rank d.
//
// Tokens stay, and the MLPs move: each rank pulls the other ranks' weights into memory of its own while the tensor cores
// work on what is there, and evaluates for its own tokens one MLP for each rank that a token chose. So nothing depends
// on other ranks' routings: no counts are exchanged, no rows are sent, and no rank waits for more than the begin of the
// others. A token with several experts on a rank is evaluated there once. LoRA branches, x W^T + (x A^T) B^T, are the
// product of [x, x A^T] and [W, B]: more columns, and a thin product before.
//
//   route          logits, softmax, the K largest: a weight for each token and rank       (pkb/thin_product_cuda.h)
//   number_pairs   which row of its rank's group a token gets                              (pkb/routing_cuda.h)
//   pack           the groups' rows; biases and first factors of LoRA of all ranks
//   first layers   silu(gate) * up of all groups in one product, which spare warps feed    (pkb/gemm_grouped.h)
//   last layer     one product
//   combine        weighted sums of a token's rows
//
// Bound: arithmetic, 6 H I operations for each token and rank that it chose; the link, W - 1 MLPs into each rank, beside
// it. Tokens would be less to move where MLPs are larger than they: see `link_in_bytes` of the problems' cost.
//
// Layer: N. Shazeer et al., arXiv:1701.06538; gated MLP: N. Shazeer, arXiv:2002.05202; LoRA: E. Hu et al.,
// arXiv:2106.09685.
#pragma once

#include <algorithm>

#include "pkb/gemm_grouped.h"
#include "pkb/routing_cuda.h"
#include "pkb/select_cuda.h"
#include "pkb/thin_product_cuda.h"
#include "pkb/transfer_cuda.h"

namespace pkb {
namespace moe {

using bf16 = __nv_bfloat16;

constexpr int kThreads = kTransferThreads;
constexpr int kWeightsRead = 0;  // words of the signal pad, one for each rank that has read this rank's weights
constexpr int kMaxExperts = 512;

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A linear layer's own weight (rows, depth), bias (rows), and LoRA's A (rank, depth) and B (rows, rank) or null.
struct Linear {
  const bf16 *weight, *bias, *a = nullptr, *b = nullptr;
};

struct Layer {
  // Arguments of this rank; those of others are their counterparts.
  const bf16 *x, *router, *router_bias;
  Linear gate, up, down;
  bf16* out;
  int64_t tokens, width, inner;  // T, H, I
  int experts, top_k, lora_rank = 0;
  int ranks[kMaxRanks];          // members, in order

  // Rows of packed matrices: x and its products with LoRA's A of gate and up; silu(gate) * up and the one of down.
  int64_t wide, hidden;          // width, inner in multiples of 16 bytes
  int64_t lora;                  // rank in the same
  int64_t inner_rows, width_rows;  // of packed weights: in multiples of a tile's columns
  gemm::RowGroups groups;
  Pairs pairs;
  uint32_t* chosen;              // (tokens): bits of members
  float* weights;                // (tokens, members)
  bf16 *rows, *activated, *results;
  bf16 *first_weights, *last_weights;  // by group: rows of gate, then of up; rows of down
  float* biases;                       // by group: gate, up, down
  bf16* lora_a;                        // by group: gate, up (lora, wide) each; down (lora, hidden)
  uint32_t* ready;                     // by group: rows of its first weights that are there

  __host__ __device__ int64_t row_depth() const { return wide + 2 * lora; }
  __host__ __device__ int64_t activated_depth() const { return hidden + lora; }
  __host__ __device__ int64_t bias_stride() const { return 2 * inner_rows + width_rows; }
  __host__ __device__ int64_t lora_stride() const { return lora * (2 * wide + hidden); }
  // Rank of a group.
  __device__ __forceinline__ int rank_of(int group) const { return ranks[groups.member(group)]; }
};

// ---- routing ----

struct IsChosen {
  const uint32_t* chosen;
  __device__ bool operator()(int member, int64_t token) const { return chosen[token] >> member & 1; }
};

// Rounded to where the baseline's logits and probabilities are.
__device__ __forceinline__ float rounded(float x) { return __bfloat162float(__float2bfloat16(x)); }

template <int kEach>
__global__ void __launch_bounds__(kThinThreads)
    route(const __grid_constant__ Layer layer, const __grid_constant__ Device comm) {
  __shared__ ThinParts parts;
  extern __shared__ float logits[];  // (kThinRows, experts)
  comm.signal_begun();
  const int64_t first = int64_t(blockIdx.x) * kThinRows;
  const auto row_of = [&](int i) { return first + i < layer.tokens ? layer.x + (first + i) * layer.width : nullptr; };
  if (first < layer.tokens) {
    multiply_thin(row_of, layer.router, layer.width, layer.experts, layer.width, logits, parts);
  }
  const int lane = lane_id(), members = layer.groups.members, local = layer.experts / members;
  for (int i = warp_id(); i < kThinRows; i += kThinWarps) {
    const int64_t token = first + i;
    if (token >= layer.tokens) break;
    float x[kEach], highest = -kInfinity, sum = 0.0f;
    uint32_t keys[kEach];
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      const int expert = each * 32 + lane;
      x[each] = -kInfinity;
      if (expert < layer.experts) {
        const float bias = layer.router_bias ? to_float(layer.router_bias[expert]) : 0.0f;
        x[each] = rounded(logits[i * layer.experts + expert] + bias);
      }
      highest = fmaxf(highest, x[each]);
    }
    highest = reduce_lanes<32>(highest, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      x[each] = __expf(x[each] - highest);
      sum += x[each];
    }
    sum = reduce_lanes<32>(sum, [](float a, float b) { return a + b; });
#pragma unroll
    for (int each = 0; each < kEach; ++each) {
      x[each] = rounded(x[each] / sum);
      keys[each] = each * 32 + lane < layer.experts ? key_of<float>(x[each]) : 0;
    }
    const uint32_t chosen = choose_largest<32>(keys, layer.top_k);
    uint32_t of_token = 0;
    for (int member = 0; member < members; ++member) {
      float weight = 0.0f;
      bool is_chosen = false;
#pragma unroll
      for (int each = 0; each < kEach; ++each) {
        const bool here = (chosen >> each & 1) && (each * 32 + lane) / local == member;
        weight += here ? x[each] : 0.0f;
        is_chosen = is_chosen || here;
      }
      weight = reduce_lanes<32>(weight, [](float a, float b) { return a + b; });
      if (__any_sync(kAllLanes, is_chosen)) of_token |= 1u << member;
      if (lane == 0) layer.weights[token * members + member] = weight;
    }
    if (lane == 0) layer.chosen[token] = of_token;
  }
}

// ---- rows of weights and tokens, by a warp ----

// `from` (count) to `to`, and zeros up to `end`; null is all zeros. Starts are multiples of 16 bytes, as `count` mostly is.
__device__ __forceinline__ void copy_row(bf16* to, const bf16* from, int64_t count, int64_t end) {
  constexpr int kAtOnce = 8;
  const int64_t whole = from && count % 8 == 0 ? count / 8 : 0;
  for (int64_t first = lane_id(); first < whole; first += kAtOnce * 32) {
    uint4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * 32 < whole) values[i] = __ldcs(reinterpret_cast<const uint4*>(from) + first + i * 32);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * 32 < whole) reinterpret_cast<uint4*>(to)[first + i * 32] = values[i];
    }
  }
  for (int64_t i = whole * 8 + lane_id(); i < end; i += 32) {
    to[i] = from && i < count ? from[i] : __float2bfloat16(0.0f);
  }
}

// Row `row` of a group's packed first weights: gate's rows, padding, up's rows, padding.
__device__ __forceinline__ void pull_first(const Layer& layer, int group, int64_t row, const Device& comm) {
  const int r = layer.rank_of(group);
  const bool is_up = row >= layer.inner_rows;
  const Linear& linear = is_up ? layer.up : layer.gate;
  const int64_t i = row - (is_up ? layer.inner_rows : 0);
  bf16* to = layer.first_weights + (group * 2 * layer.inner_rows + row) * layer.row_depth();
  const bool exists = i < layer.inner;
  copy_row(to, exists ? comm.peer(linear.weight, r) + i * layer.width : nullptr, layer.width, layer.wide);
  if (layer.lora == 0) return;
  const bf16* b = exists ? comm.peer(linear.b, r) + i * layer.lora_rank : nullptr;
  copy_row(to + layer.wide, is_up ? nullptr : b, layer.lora_rank, layer.lora);
  copy_row(to + layer.wide + layer.lora, is_up ? b : nullptr, layer.lora_rank, layer.lora);
}

__device__ __forceinline__ void pull_last(const Layer& layer, int group, int64_t row, const Device& comm) {
  const int r = layer.rank_of(group);
  bf16* to = layer.last_weights + (group * layer.width_rows + row) * layer.activated_depth();
  const bool exists = row < layer.width;
  copy_row(to, exists ? comm.peer(layer.down.weight, r) + row * layer.inner : nullptr, layer.inner, layer.hidden);
  if (layer.lora == 0) return;
  const bf16* b = exists ? comm.peer(layer.down.b, r) + row * layer.lora_rank : nullptr;
  copy_row(to + layer.hidden, b, layer.lora_rank, layer.lora);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    pack(const __grid_constant__ Layer layer, const __grid_constant__ Device comm) {
  const int members = layer.groups.members, thread = int(threadIdx.x);
  const int64_t warp = int64_t(blockIdx.x) * (kThreads / 32) + warp_id(), warps = int64_t(gridDim.x) * (kThreads / 32);
  if (blockIdx.x == 0 && thread < members) layer.ready[thread] = 0;
  // Tokens to the rows of their groups, and zeros to the rows behind a group.
  for (int64_t token = warp; token < layer.tokens; token += warps) {
    layer.pairs.visit(token, [&](int member, int64_t number) {
      const int group = (member - layer.groups.own + members) % members;
      bf16* to = layer.rows + (layer.groups.first(group) + number) * layer.row_depth();
      copy_row(to, layer.x + token * layer.width, layer.width, layer.wide);
    });
  }
  for (int group = 0; group < members; ++group) {
    const int64_t first = layer.groups.first(group), padded = layer.groups.padded(group);
    for (int64_t row = layer.groups.rows(group) + warp; row < padded; row += warps) {
      copy_row(layer.rows + (first + row) * layer.row_depth(), nullptr, 0, layer.row_depth());
    }
  }
  // What is small of other ranks' layers.
  if (thread < members && thread != layer.groups.own) comm.wait_begun(layer.ranks[thread]);
  __syncthreads();
  for (int group = 0; group < members; ++group) {
    const int r = layer.rank_of(group);
    float* biases = layer.biases + group * layer.bias_stride();
    for (int64_t i = warp * 32 + lane_id(); i < layer.bias_stride(); i += warps * 32) {
      const int which = i < layer.inner_rows ? 0 : i < 2 * layer.inner_rows ? 1 : 2;
      const int64_t at = i - which * layer.inner_rows, end = which < 2 ? layer.inner : layer.width;
      const Linear& linear = which == 0 ? layer.gate : which == 1 ? layer.up : layer.down;
      biases[i] = at < end ? to_float(comm.peer(linear.bias, r)[at]) : 0.0f;
    }
    bf16* factors = layer.lora_a + group * layer.lora_stride();
    for (int64_t row = warp; row < 3 * layer.lora; row += warps) {
      const int which = int(row / layer.lora);
      const int64_t i = row % layer.lora, depth = which < 2 ? layer.width : layer.inner;
      const Linear& linear = which == 0 ? layer.gate : which == 1 ? layer.up : layer.down;
      const bf16* from = i < layer.lora_rank ? comm.peer(linear.a, r) + i * depth : nullptr;
      copy_row(factors + (which < 2 ? row * layer.wide : 2 * layer.lora * layer.wide + i * layer.hidden), from, depth,
               which < 2 ? layer.wide : layer.hidden);
    }
  }
}

// ---- LoRA's first factors ----

// Products of packed rows with A of their group, into the columns behind them.
template <bool kLast>
__global__ void __launch_bounds__(kThinThreads) multiply_lora(const __grid_constant__ Layer layer) {
  __shared__ ThinParts parts;
  extern __shared__ float sums[];
  const int64_t first = int64_t(blockIdx.x) * kThinRows;
  int group = 0;
  int64_t end = layer.groups.padded(0);
  while (first >= end) {
    if (++group == layer.groups.members) return;
    end += layer.groups.padded(group);
  }
  const int64_t depth = kLast ? layer.hidden : layer.wide, stride = kLast ? layer.activated_depth() : layer.row_depth();
  const int cols = int(kLast ? layer.lora : 2 * layer.lora);
  bf16* rows = kLast ? layer.activated : layer.rows;
  const bf16* a = layer.lora_a + group * layer.lora_stride() + (kLast ? 2 * layer.lora * layer.wide : 0);
  const auto row_of = [&](int i) -> const bf16* { return rows + (first + i) * stride; };
  multiply_thin(row_of, a, depth, cols, depth, sums, parts);
  for (int i = int(threadIdx.x); i < kThinRows * cols; i += kThinThreads) {
    rows[(first + i / cols) * stride + depth + i % cols] = __float2bfloat16(sums[i]);
  }
}

// ---- products ----

__device__ __forceinline__ uint32_t load_acquire_gpu(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Boxes of B for half gate, half up.
struct GatedBoxes {
  int64_t first_row;   // of the group's gate rows, at this tile
  int up_after;        // rows from gate to up
  int first_box, half;
  int depth = 0;
  __device__ __forceinline__ int col(int) const { return depth; }
  __device__ __forceinline__ int row(int box) const {
    const int at = first_box + box;
    return int(first_row) + (at < half ? at * gemm::kBoxCols : up_after + (at - half) * gemm::kBoxCols);
  }
  __device__ __forceinline__ void advance() { depth += gemm::kBlockK; }
};

// silu(gate) * up. Spare warps pull all ranks' weights, those of the groups in turn, and last those of the next product.
struct FirstLayers : gemm::Grouped {
  Layer layer;
  Device comm;

  template <class Shape>
  __device__ __forceinline__ void await(const gemm::Tile& tile, int, const gemm::Block&) const {
    while (load_acquire_gpu(layer.ready + tile.owner) < 2 * layer.inner_rows) {
    }
    gemm::fence_async_global();  // what warps have stored, tensor maps will read
  }

  template <class Shape, int kBoxes>
  __device__ __forceinline__ GatedBoxes boxes_of_b(int col) const {
    constexpr int kHalf = Shape::kBlockN / 2;
    const int at = col / Shape::kBlockN, group = at / col_tiles;
    const int64_t first = group * 2 * layer.inner_rows + int64_t(at - group * col_tiles) * kHalf;
    return GatedBoxes{first, int(layer.inner_rows), col % Shape::kBlockN / gemm::kBoxCols, kHalf / gemm::kBoxCols};
  }

  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const gemm::Tile& tile, float (&sums)[Shape::kSums], const gemm::Block& block,
                                         int consumer, uint32_t staging) const {
    constexpr int kEights = Shape::kBlockN / 16;  // groups of eight columns of either half
    const int lane = lane_id(), col = first_col<Shape, Shape::kBlockN / 2>(tile);
    const float* bias = layer.biases + tile.owner * layer.bias_stride() + col + lane % 4 * 2;
    float activated[Shape::kSums / 2];
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const float2 of_gate = *reinterpret_cast<const float2*>(bias + eight * 8);
      const float2 of_up = *reinterpret_cast<const float2*>(bias + layer.inner_rows + eight * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float gate = sums[eight * 4 + i] + (i % 2 ? of_gate.y : of_gate.x);
        const float up = sums[(eight + kEights) * 4 + i] + (i % 2 ? of_up.y : of_up.x);
        activated[eight * 4 + i] = gate / (1.0f + __expf(-gate)) * up;
      }
    }
    gemm::store_sums<T, gemm::HalfOf<Shape>>(*this, activated, staging, consumer,
                                             first_row<Shape>(tile, block, consumer), col);
    return false;
  }

  template <class Shape>
  __device__ __forceinline__ void assist(const gemm::Product&, const gemm::Block&, int warp) const {
    const int64_t of_group = 2 * layer.inner_rows, first_ones = of_group * groups.members;
    const int64_t all = first_ones + layer.width_rows * groups.members;
    for (int64_t i = warp * int64_t(gridDim.x) + blockIdx.x; i < all; i += int64_t(gridDim.x) * gemm::kAssistants) {
      if (i >= first_ones) {
        pull_last(layer, int((i - first_ones) / layer.width_rows), (i - first_ones) % layer.width_rows, comm);
        continue;
      }
      const int group = int(i / of_group);
      pull_first(layer, group, i % of_group, comm);
      gemm::fence_async_global();
      __syncwarp();
      if (lane_id() == 0) {
        __threadfence();
        atomicAdd(layer.ready + group, 1u);
      }
    }
  }
};

// Other ranks' weights have been read when it begins.
struct LastLayer : gemm::Grouped {
  Layer layer;
  Device comm;

  __device__ __forceinline__ void enter() const {
    if (blockIdx.x == 0 && threadIdx.x < groups.members && threadIdx.x != groups.own) {
      comm.signal(kWeightsRead + comm.rank, layer.ranks[threadIdx.x]);
    }
  }

  template <class Shape, int kBoxes>
  __device__ __forceinline__ gemm::TransposedBoxes boxes_of_b(int col) const {
    // Columns of a tile go on from one group to the next as rows of the weights do.
    return gemm::TransposedBoxes{col};
  }

  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const gemm::Tile& tile, float (&sums)[Shape::kSums], const gemm::Block& block,
                                         int consumer, uint32_t staging) const {
    const int col = first_col<Shape, Shape::kBlockN>(tile);
    const float* bias = layer.biases + tile.owner * layer.bias_stride() + 2 * layer.inner_rows + col + lane_id() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Shape::kSums; i += 4) {
      const float2 both = *reinterpret_cast<const float2*>(bias + i / 4 * 8);
      sums[i] += both.x;
      sums[i + 1] += both.y;
      sums[i + 2] += both.x;
      sums[i + 3] += both.y;
    }
    gemm::store_sums<T, Shape>(*this, sums, staging, consumer, first_row<Shape>(tile, block, consumer), col);
    return false;
  }
};

// ---- sums ----

template <int kLanes>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    combine(const __grid_constant__ Layer layer, const __grid_constant__ Device comm) {
  const int members = layer.groups.members, lane = lane_id(), thread = int(threadIdx.x);
  const bool has_peer = blockIdx.x == 0 && thread < members && thread != layer.groups.own;
  if (has_peer && layer.tokens == 0) comm.signal(kWeightsRead + comm.rank, layer.ranks[thread]);
  const int64_t warp = int64_t(blockIdx.x) * (kThreads / 32) + warp_id(), warps = int64_t(gridDim.x) * (kThreads / 32);
  for (int64_t token = warp; token < layer.tokens; token += warps) {
    int64_t row = -1;
    const float weight = lane < members ? layer.weights[token * members + lane] : 0.0f;
    layer.pairs.visit(token, [&](int member, int64_t number) {
      const int group = (member - layer.groups.own + members) % members;
      const int64_t at = layer.groups.first(group) + number;
      if (lane == member) row = at;
    });
    const unsigned chosen = __ballot_sync(kAllLanes, row >= 0);
    for (int64_t first = lane * kLanes; first < layer.width + lane * kLanes; first += 32 * kLanes) {
      float sums[kLanes] = {};
      for (unsigned left = chosen; left; left &= left - 1) {
        const int member = __ffs(int(left)) - 1;
        const int64_t of_member = __shfl_sync(kAllLanes, row, member);
        const float scale = __shfl_sync(kAllLanes, weight, member);
        if (first >= layer.width) continue;
        const auto packet = load_packet<bf16, kLanes>(layer.results + of_member * layer.wide + first);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) sums[i] += scale * to_float(packet.lanes[i]);
      }
      if (first >= layer.width) continue;
      Packet<bf16, kLanes> packet;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) packet.lanes[i] = __float2bfloat16(sums[i]);
      store_packet(layer.out + token * layer.width + first, packet);
    }
  }
  if (has_peer) comm.wait(kWeightsRead + layer.ranks[thread]);
}

// ---- host ----

// Memory of one kind that is kept from call to call.
template <int kKind, class T>
struct Kept {
  T element;
};
template <int kKind, class T>
T* kept(int64_t elements) {
  return reinterpret_cast<T*>(kept_memory<Kept<kKind, T>>(std::max<int64_t>(elements, 1)));
}

inline void launch_combine(const Layer& layer, const Comm& comm) {
  const int64_t of_block = kThreads / 32;
  const unsigned blocks = unsigned(std::clamp<int64_t>((layer.tokens + of_block - 1) / of_block, 1, max_blocks()));
  const auto kernel = layer.width % 8 == 0 ? combine<8> : combine<1>;
  kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(layer, comm.device());
  PKB_CUDA_LAUNCHED();
}

template <class Base>
void multiply(Layer layer, const Comm& comm) {
  using Shape = gemm::TransposedB<Base>;
  const cudaStream_t stream = comm.cuda_stream();
  const int64_t members = layer.groups.members, tile = Shape::kTileRows;
  layer.groups.align = int(tile);
  layer.inner_rows = round_up(layer.inner, Shape::kBlockN / 2);
  layer.width_rows = round_up(layer.width, Shape::kBlockN);
  const int64_t rows = round_up(layer.tokens * std::min<int64_t>(layer.top_k, members), tile) + members * tile;
  layer.rows = kept<1, bf16>(rows * layer.row_depth());
  layer.activated = kept<2, bf16>(rows * layer.activated_depth());
  layer.results = kept<3, bf16>(rows * layer.wide);
  layer.first_weights = kept<4, bf16>(members * 2 * layer.inner_rows * layer.row_depth());
  layer.last_weights = kept<5, bf16>(members * layer.width_rows * layer.activated_depth());
  layer.biases = kept<6, float>(members * layer.bias_stride());
  layer.lora_a = kept<7, bf16>(members * layer.lora_stride());
  layer.ready = kept<8, uint32_t>(kMaxRanks);

  pack<<<unsigned(max_blocks()), kThreads, 0, stream>>>(layer, comm.device());
  PKB_CUDA_LAUNCHED();
  const unsigned thin_blocks = unsigned(rows / kThinRows);
  const auto bytes_of = [](int64_t cols) { return size_t(kThinRows * cols * sizeof(float)); };
  if (layer.lora > 0) {
    multiply_lora<false><<<thin_blocks, kThinThreads, bytes_of(2 * layer.lora), stream>>>(layer);
    PKB_CUDA_LAUNCHED();
  }
  FirstLayers first;
  first.groups = layer.groups;
  gemm::Product product = first.prepare<Shape>(rows, 2 * layer.inner_rows, layer.row_depth());
  product.a[0] = gemm::operand_map<bf16>(layer.rows, rows, layer.row_depth(), layer.row_depth(), gemm::kBlockM);
  product.b[0] = gemm::operand_map<bf16>(layer.first_weights, members * 2 * layer.inner_rows, layer.row_depth(),
                                         layer.row_depth(), gemm::kBlockK);
  first.out[0] = gemm::operand_map<bf16>(layer.activated, rows, layer.hidden, layer.activated_depth(), gemm::kStoreRows);
  first.layer = layer;
  first.comm = comm.device();
  gemm::launch<bf16, Shape>(product, first, stream);
  if (layer.lora > 0) {
    multiply_lora<true><<<thin_blocks, kThinThreads, bytes_of(layer.lora), stream>>>(layer);
    PKB_CUDA_LAUNCHED();
  }
  LastLayer last;
  last.groups = layer.groups;
  product = last.prepare<Shape>(rows, layer.width_rows, layer.activated_depth());
  product.a[0] = gemm::operand_map<bf16>(layer.activated, rows, layer.activated_depth(), layer.activated_depth(),
                                         gemm::kBlockM);
  product.b[0] = gemm::operand_map<bf16>(layer.last_weights, members * layer.width_rows, layer.activated_depth(),
                                         layer.activated_depth(), gemm::kBlockK);
  last.out[0] = gemm::operand_map<bf16>(layer.results, rows, layer.wide, layer.wide, gemm::kStoreRows);
  last.layer = layer;
  last.comm = comm.device();
  gemm::launch<bf16, Shape>(product, last, stream);
  launch_combine(layer, comm);
}

inline const bf16* data_of(const tvm::ffi::TensorView& tensor) {
  if (tensor.dtype() != kDtype<bf16>) TVM_FFI_THROW(TypeError) << "expected bfloat16, got " << tensor.dtype();
  return static_cast<const bf16*>(tensor.data_ptr());
}
inline Linear linear_of(const tvm::ffi::TensorView& weight, const tvm::ffi::TensorView& bias) {
  return Linear{data_of(weight), data_of(bias)};
}

// The layer of hidden_states (T, H), of all experts of a group.
inline Layer layer_of(const tvm::ffi::TensorView& hidden_states, const tvm::ffi::TensorView& gate_weight,
                      const tvm::ffi::Optional<tvm::ffi::TensorView>& gate_bias, const Linear& gate, const Linear& up,
                      const Linear& down, int64_t inner, int64_t top_k, const Group& group,
                      const tvm::ffi::TensorView& out) {
  Layer layer{};
  layer.x = data_of(hidden_states);
  layer.router = data_of(gate_weight);
  layer.router_bias = gate_bias.has_value() ? data_of(gate_bias.value()) : nullptr;
  layer.gate = gate;
  layer.up = up;
  layer.down = down;
  layer.out = const_cast<bf16*>(data_of(out));
  layer.width = hidden_states.size(hidden_states.ndim() - 1);
  layer.tokens = layer.width > 0 ? hidden_states.numel() / layer.width : 0;
  layer.inner = inner;
  layer.experts = int(gate_weight.size(0));
  layer.top_k = int(top_k);
  std::copy(group.ranks, group.ranks + group.size, layer.ranks);
  layer.groups.members = group.size;
  layer.groups.own = group.rank;
  return layer;
}

// Everything. `layer` has its arguments, sizes and members.
inline void launch(Layer layer, const Comm& comm) {
  const int members = layer.groups.members;
  if (layer.experts > kMaxExperts || layer.experts % members != 0) {
    TVM_FFI_THROW(ValueError) << "expected at most " << kMaxExperts << " experts, a multiple of the " << members
                              << " ranks of the group, got " << layer.experts;
  }
  layer.wide = round_up(layer.width, 8);
  layer.hidden = round_up(layer.inner, 8);
  layer.lora = round_up(layer.lora_rank, 8);
  layer.chosen = kept<9, uint32_t>(layer.tokens);
  layer.weights = kept<10, float>(layer.tokens * members);
  layer.pairs = Pairs::of(members, layer.tokens, kept<11, char>(Pairs::bytes(members, layer.tokens)));
  layer.groups.counts = layer.pairs.counts;

  const cudaStream_t stream = comm.cuda_stream();
  const unsigned blocks = unsigned(std::max<int64_t>(gemm::divide_up(layer.tokens, kThinRows), 1));
  const size_t shared = kThinRows * layer.experts * sizeof(float);
  if (layer.experts <= 32) route<1><<<blocks, kThinThreads, shared, stream>>>(layer, comm.device());
  else if (layer.experts <= 128) route<4><<<blocks, kThinThreads, shared, stream>>>(layer, comm.device());
  else route<16><<<blocks, kThinThreads, shared, stream>>>(layer, comm.device());
  PKB_CUDA_LAUNCHED();
  if (layer.tokens == 0) return launch_combine(layer, comm);
  number_pairs(layer.pairs, IsChosen{layer.chosen}, stream);
  const int64_t rows = layer.tokens * std::min(layer.top_k, members);
  if (gemm::is_large(rows, 2 * layer.inner)) multiply<gemm::Deep>(layer, comm);
  else multiply<gemm::Small>(layer, comm);
}

}  // namespace moe
}  // namespace pkb
