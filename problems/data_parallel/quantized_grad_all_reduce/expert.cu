// QuantizedGradAllReduce: gradients are rounded in registers on their way out, and only codes and scales cross the
// link.
//
// What moves: a warp loads a tile, finds the largest magnitude of each block by shuffles, and pushes the codes, one
// byte an element, and a scale a block into boxes in its peers' scratch (pkb/exchange_cuda.h). Ranks receive in rounds,
// with a signal from each block of the kernel after each: they add up what has arrived in the round before, their own
// tile rounded anew, while the next one is on its way, and store the mean. On two ranks, and of few elements, every
// rank gets all codes and adds up everything; else each adds up a share and stores the mean to all ranks' outputs,
// which have begun, as their codes show.
//
// Bound: link, N bytes a peer, or (W - 1) / W of N and of a result into each rank; memory on one rank. The baseline
// sends float32 values, 8 (W - 1) / W N bytes, and makes a dozen passes over them.
//
// Left on the table: small gradients wait for a signal, which tagged words would save. Blocks that are no power of two
// of vectors, or longer than a warp's, are rounded one element a lane, by a warp that reads them twice.
#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kWarps = kThreads / 32;
constexpr int kUnit = 8;                  // elements of a lane, whose codes are one store
constexpr int kFastTile = 32 * kUnit;
constexpr int kAtOnce = 4;                // tiles that a warp loads together
constexpr int kMaxRounds = 8;
constexpr float kLargestCode = 127.0f, kSmallest = 1e-8f;

template <class T>
struct Globals {
  const T* x;
  T* out;
  int64_t count, tiles;
  int64_t tile, scales;        // elements and scales of a tile
  int lanes;                   // of a warp that share a scale
  int64_t begin[pkb::kMaxRanks + 1];  // first tile of each rank's share, where ranks share them
  int64_t scales_at;           // where in a box scales begin, behind the codes
  bool is_shared;              // each rank adds up a share for all; otherwise everything, for itself
  pkb::Boxes boxes;

  __device__ int64_t first_tile(int r) const { return is_shared ? begin[r] : 0; }
  __device__ int64_t end_tile(int r) const { return is_shared ? begin[r + 1] : tiles; }
};

// A rank's box of the codes and scales of a sender; tiles count from the receiver's first.
template <class T>
struct Box {
  char* data;
  const Globals<T>& g;
  __device__ int8_t* codes(int64_t tile) const { return reinterpret_cast<int8_t*>(data) + tile * g.tile; }
  __device__ float* scales(int64_t tile) const {
    return reinterpret_cast<float*>(data + g.scales_at) + tile * g.scales;
  }
};

// Eight elements, as far as there are so many left, and zeros.
template <class T>
__device__ __forceinline__ void load_unit(const T* from, int64_t left, float (&x)[kUnit]) {
  constexpr int kLanes = pkb::kPerVector<T>;
  if (left >= kUnit) {
#pragma unroll
    for (int v = 0; v < kUnit; v += kLanes) {
      const pkb::Packet<T, kLanes> packet = pkb::load_packet<T, kLanes>(from + v);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) x[v + i] = pkb::to_float(packet.lanes[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) x[i] = i < left ? pkb::to_float(from[i]) : 0.0f;
}

__device__ __forceinline__ float scale_of(float largest) { return fmaxf(largest, kSmallest) / kLargestCode; }

__device__ __forceinline__ int code_of(float x, float inverse_scale) {
  return max(-127, min(127, __float2int_rn(x * inverse_scale)));
}

// The codes and the scale of a unit, of whose block `lanes` lanes have a unit each.
struct Coded {
  uint2 codes;
  float scale;
};
__device__ __forceinline__ Coded encode_unit(const float (&x)[kUnit], int lanes) {
  float largest = 0.0f;
#pragma unroll
  for (float value : x) largest = fmaxf(largest, fabsf(value));
  for (int apart = lanes / 2; apart > 0; apart /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(pkb::kAllLanes, largest, apart));
  }
  Coded coded{uint2{0, 0}, scale_of(largest)};
  const float inverse = 1.0f / coded.scale;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const uint32_t byte = uint8_t(code_of(x[i], inverse));
    (i < 4 ? coded.codes.x : coded.codes.y) |= byte << i % 4 * 8;
  }
  return coded;
}

__device__ __forceinline__ void add_unit(const Coded& coded, float (&sums)[kUnit]) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    sums[i] += coded.scale * float(int8_t((i < 4 ? coded.codes.x : coded.codes.y) >> i % 4 * 8));
  }
}

// Stores means of eight elements to a rank's output.
template <class T>
__device__ __forceinline__ void store_unit(T* to, int64_t left, const float (&x)[kUnit]) {
  constexpr int kLanes = pkb::kPerVector<T>;
  if (left >= kUnit) {
#pragma unroll
    for (int v = 0; v < kUnit; v += kLanes) {
      pkb::Packet<T, kLanes> packet;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) packet.lanes[i] = T(x[v + i]);
      pkb::store_packet(to + v, packet);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    if (i < left) to[i] = T(x[i]);
  }
}

// Tiles of 256 elements, some blocks in each: a lane has a unit.
template <class T>
struct FastTiles {
  static constexpr int kTogether = kAtOnce;
  const Globals<T>& g;

  __device__ static int64_t element(int64_t tile) { return tile * kFastTile + pkb::lane_id() * kUnit; }

  // Gives send(k) -> Box the codes of tiles first .. first + kAtOnce - 1 before `end`, for each k.
  template <class BoxOf>
  __device__ void encode(int64_t first, int64_t end, int64_t share, int copies, const BoxOf& box_of) const {
    float x[kAtOnce][kUnit];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u < end) load_unit(g.x + element(first + u), g.count - element(first + u), x[u]);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u >= end) break;
      const Coded coded = encode_unit(x[u], g.lanes);
      const int64_t tile = first + u - share;
#pragma unroll 1
      for (int k = 0; k < copies; ++k) {
        const Box<T> box = box_of(k);
        reinterpret_cast<uint2*>(box.codes(tile))[pkb::lane_id()] = coded.codes;
        if (pkb::lane_id() % g.lanes == 0) box.scales(tile)[pkb::lane_id() / g.lanes] = coded.scale;
      }
    }
  }

  template <class BoxOf, class OutOf>
  __device__ void add_up(int64_t first, int64_t end, int64_t share, int rank, int W, const BoxOf& box_of, int copies,
                         const OutOf& out_of) const {
    float sums[kAtOnce][kUnit] = {};
#pragma unroll 1
    for (int r = 0; r < W; ++r) {
      if (r == rank) {
        float x[kAtOnce][kUnit];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          if (first + u < end) load_unit(g.x + element(first + u), g.count - element(first + u), x[u]);
        }
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          if (first + u < end) add_unit(encode_unit(x[u], g.lanes), sums[u]);
        }
        continue;
      }
      const Box<T> box = box_of(r);
      Coded coded[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (first + u >= end) break;
        const int64_t tile = first + u - share;
        coded[u].codes = __ldcg(reinterpret_cast<const uint2*>(box.codes(tile)) + pkb::lane_id());
        coded[u].scale = __ldcg(box.scales(tile) + pkb::lane_id() / g.lanes);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (first + u < end) add_unit(coded[u], sums[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (first + u >= end) break;
#pragma unroll
      for (float& sum : sums[u]) sum /= float(W);
#pragma unroll 1
      for (int k = 0; k < copies; ++k) {
        store_unit(out_of(k) + element(first + u), g.count - element(first + u), sums[u]);
      }
    }
  }
};

// A tile is a block of any length: a lane has every 32nd element.
template <class T>
struct AnyTiles {
  static constexpr int kTogether = 1;
  const Globals<T>& g;

  __device__ int size(int64_t tile) const { return int(min(g.tile, g.count - tile * g.tile)); }

  __device__ float scale(const T* x, int size) const {
    float largest = 0.0f;
    for (int i = pkb::lane_id(); i < size; i += 32) largest = fmaxf(largest, fabsf(pkb::to_float(x[i])));
    return scale_of(pkb::reduce_warp(largest, [](float a, float b) { return fmaxf(a, b); }));
  }

  template <class BoxOf>
  __device__ void encode(int64_t first, int64_t end, int64_t share, int copies, const BoxOf& box_of) const {
    if (first >= end) return;
    const T* x = g.x + first * g.tile;
    const float scale = this->scale(x, size(first)), inverse = 1.0f / scale;
#pragma unroll 1
    for (int k = 0; k < copies; ++k) {
      const Box<T> box = box_of(k);
      for (int i = pkb::lane_id(); i < size(first); i += 32) {
        box.codes(first - share)[i] = int8_t(code_of(pkb::to_float(x[i]), inverse));
      }
      if (pkb::lane_id() == 0) *box.scales(first - share) = scale;
    }
  }

  template <class BoxOf, class OutOf>
  __device__ void add_up(int64_t first, int64_t end, int64_t share, int rank, int W, const BoxOf& box_of, int copies,
                         const OutOf& out_of) const {
    if (first >= end) return;
    const T* x = g.x + first * g.tile;
    const float own_scale = scale(x, size(first)), inverse = 1.0f / own_scale;
    for (int i = pkb::lane_id(); i < size(first); i += 32) {
      float sum = 0.0f;
      for (int r = 0; r < W; ++r) {
        if (r == rank) {
          sum += own_scale * float(code_of(pkb::to_float(x[i]), inverse));
        } else {
          const Box<T> box = box_of(r);
          sum += __ldcg(box.scales(first - share)) * float(__ldcg(box.codes(first - share) + i));
        }
      }
#pragma unroll 1
      for (int k = 0; k < copies; ++k) out_of(k)[first * g.tile + i] = T(sum / float(W));
    }
  }
};

template <class T, class Tiles>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    average(const __grid_constant__ Globals<T> g, int rounds, const __grid_constant__ pkb::Device comm) {
  const Tiles tiles{g};
  const int thread = int(threadIdx.x), own = comm.rank, W = comm.world_size;
  const bool has_peer = thread < W && thread != own;
  const auto box_of = [&](int receiver, int sender) {
    return Box<T>{g.boxes.template box<char>(comm, receiver, sender), g};
  };
  // Tiles of rank r's share that are this block's in a round.
  const auto visit = [&](int r, int round, const auto& use) {
    const int64_t first = g.first_tile(r), share = g.end_tile(r) - first;
    const int64_t slices = int64_t(rounds) * gridDim.x, slice = int64_t(round) * gridDim.x + blockIdx.x;
    const int64_t end = first + share * (slice + 1) / slices;
    for (int64_t tile = first + share * slice / slices + pkb::warp_id() * Tiles::kTogether; tile < end;
         tile += kWarps * Tiles::kTogether) {
      use(tile, end, first);
    }
  };
  for (int round = 0; round <= rounds; ++round) {
    if (round < rounds) {
      const int shares = W == 1 ? 0 : g.is_shared ? W - 1 : 1;  // that differ
      for (int k = 1; k <= shares; ++k) {
        const int copies = g.is_shared ? 1 : W - 1;
        visit(pkb::rank_after(comm, k), round, [&](int64_t tile, int64_t end, int64_t first) {
          tiles.encode(tile, end, first, copies,
                       [&](int copy) { return box_of(pkb::rank_after(comm, k + copy), own); });
        });
      }
      __syncthreads();
      if (has_peer) comm.signal_block(round, thread);
    }
    if (round == 0) continue;  // codes of the round before have had the time of this round's pushes to arrive
    if (has_peer) comm.wait_block(round - 1, thread);
    __syncthreads();
    visit(own, round - 1, [&](int64_t tile, int64_t end, int64_t first) {
      tiles.add_up(
          tile, end, first, own, W, [&](int r) { return box_of(own, r); }, g.is_shared ? W : 1,
          [&](int k) { return comm.peer(g.out, k == 0 ? own : pkb::rank_after(comm, k)); });
    });
  }
  if (!g.is_shared) return;
  __syncthreads();  // means on other ranks
  if (has_peer) {
    comm.signal_block(rounds, thread);
    comm.wait_block(rounds, thread);
  }
}

template <class T>
void launch(const T* x, T* out, int64_t count, int64_t block, const pkb::Comm& comm) {
  const int64_t lanes = block / kUnit, W = comm.world_size;
  const bool is_fast = block % kUnit == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0;
  const int64_t tile = is_fast ? kFastTile : block, tiles = (count + tile - 1) / tile;
  // All codes to all ranks, or shares of them, and results.
  const uint64_t all = count * (W - 1), shared = all / W * (1 + sizeof(T));
  const bool is_shared = W > 2 && all > shared + pkb::kCrossingBytes;
  const int64_t in_box = is_shared ? (tiles + W - 1) / W : tiles, scales = is_fast ? 32 / lanes : 1;
  const int64_t scales_at = (in_box * tile + 15) / 16 * 16;
  const uint64_t box = W > 1 ? scales_at + in_box * scales * sizeof(float) : 0;
  Globals<T> g{x,  out,       count,     tiles, tile, scales, int(lanes), {},
               scales_at, is_shared, pkb::Boxes::for_bytes(box, comm)};
  for (int r = 0; r <= W; ++r) g.begin[r] = std::min<int64_t>(tiles, r * in_box);
  const int together = is_fast ? kWarps * kAtOnce : kWarps;  // tiles that a block takes at a time
  const unsigned blocks = pkb::blocks_for(in_box, together);  // as many on every rank
  const int rounds = W > 1 ? int(std::clamp<int64_t>(in_box / (int64_t(blocks) * together), 1, kMaxRounds)) : 1;
  const auto kernel = is_fast ? average<T, FastTiles<T>> : average<T, AnyTiles<T>>;
  kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, rounds, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView flat_grad, int64_t block_size, TensorView out, pkb::Comm comm) {
  if (block_size < 1) TVM_FFI_THROW(ValueError) << "expected blocks of at least 1 element, got " << block_size;
  if (flat_grad.numel() == 0) return;
  pkb::with_type<__nv_bfloat16, __half, float>(flat_grad.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch(static_cast<const T*>(flat_grad.data_ptr()), static_cast<T*>(out.data_ptr()), flat_grad.numel(), block_size,
           comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
