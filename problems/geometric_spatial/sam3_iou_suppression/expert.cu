// SAM3IoUSuppression: foreground bits travel first, then only the masks that stay. One launch.
//
// What moves: each rank packs its masks to one bit a pixel and stores the bits into every rank's scratch. A block packs
// the same pixels of all objects: it has to meet only its counterparts on the other ranks before it counts all overlaps
// in those pixels, by binary matrix products (and + popcount on tensor cores). Blocks add their counts up in scratch
// and meet once; each decides for itself then. Masks that stay are read from where they lie, own and foreign ones in
// turn, so that the link and the memory work side by side, and the others are filled. Masks that nobody can suppress,
// however they overlap, are read while the bits travel. Masks and scores are read once their ranks have signalled that their
// calls have begun, and equal blocks of all ranks meet when they have read them.
//
// The bound is the link: the input bytes of the foreign masks that stay, and one bit a pixel of all foreign masks.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "pkb/common_bits_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr float kBlank = -10.0f;
constexpr int kThreads = 512, kWarps = kThreads / 32, kBlocksPerSm = 1;

// A unit of pixels, of all objects, is packed and counted by one block: each lane of a warp packs kOctets runs of eight
// pixels of an object into one word. Which pixel has which bit does not matter, as long as all masks agree.
constexpr int kOctet = 8, kOctets = 3;
constexpr int kUnit = 32 * kOctet * kOctets;
constexpr int kPackedTogether = 4;  // objects that a warp reads at once
constexpr int kWords = 32;          // of an object in a unit
constexpr int kPitch = kWords + 16;  // in shared memory: fragments meet all banks

// Masks move in chunks; a lane has runs of four pixels, so that a warp's accesses lie in a row.
constexpr int kRun = 4, kRuns = 8;
constexpr int kChunk = 32 * kRun * kRuns;

// Overlaps are counted in tiles of so many objects by so many, and kept as the fragments of the products lie.
constexpr int kTileRows = 16, kTileColumns = 32, kProducts = kTileColumns / 8;
constexpr int kTileCounts = kTileRows * kTileColumns;

constexpr int kSkip = std::numeric_limits<int>::max();  // what is no entry of a list of objects

// At the beginning of scratch. Calls take turns: each sets to zero for the next one what the one before has used, the
// first `tiles` tiles of its counts and the number of its blocks that have counted.
struct Turns {
  unsigned counted[2];
  int tiles[2];
};
constexpr uint64_t kTurnsBytes = 256, kMostCountsBytes = 3 << 20;

template <typename T>
struct Globals {
  const T* masks;  // this rank's, as the scores
  const T* scores;
  const int64_t* last;
  float* out_masks;
  float* out_scores;
  bool* suppressed;
  Turns* turns;
  int turn;
  int *counts, *other_counts;  // of the tiles, of this call and of the one before
  uint32_t* bits;              // (units, objects, kWords)
  int first[pkb::kMaxRanks + 1];  // object of each rank
  int objects, chunks, units, tiles;
  int stride;  // lists go through the objects in such steps
  int64_t pixels, group;
  float threshold;
  bool reverse;
  bool in_octets;  // masks consist of whole octets, all aligned
};

// Dynamic shared memory: bits of a unit, or a list of objects, or their areas; then whether each object is suppressed.
__host__ __device__ int bits_bytes(int objects) {
  return (objects + kTileColumns - 1) / kTileColumns * kTileColumns * kPitch * int(sizeof(uint32_t));
}

// ---- Packing ----

// This lane's word of a unit of an object: pixels beyond the end are background.
template <typename T>
struct Packer {
  static constexpr int kVectors = kOctet * sizeof(T) / sizeof(uint4);
  uint4 raw[kOctets][kVectors];

  __device__ void load(const Globals<T>& g, const T* mask, int unit) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int64_t at = int64_t(unit) * kUnit + (o * 32 + pkb::lane_id()) * kOctet;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (g.in_octets) {
          raw[o][v] = at < g.pixels ? __ldg(reinterpret_cast<const uint4*>(mask + at) + v) : uint4{0, 0, 0, 0};
        } else {
          pkb::Pack<T> pack;
#pragma unroll
          for (int i = 0; i < pkb::kPerVector<T>; ++i) {
            const int64_t pixel = at + v * pkb::kPerVector<T> + i;
            pack.values[i] = pixel < g.pixels ? mask[pixel] : T(0.0f);
          }
          raw[o][v] = reinterpret_cast<const uint4&>(pack);
        }
      }
    }
  }

  __device__ uint32_t word() const {
    uint32_t made = 0;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < kOctet; ++i) {
        const float value = pkb::element<T>(raw[o][i / pkb::kPerVector<T>], i % pkb::kPerVector<T>);
        made |= uint32_t(value > 0) << (o * kOctet + i);
      }
    }
    return made;
  }
};

// Gives every rank the foreground bits of this block's units of this rank's masks.
template <typename T>
__device__ void pack_own(const Globals<T>& g, const pkb::Device& comm) {
  const int W = comm.group_size(g.group), own = comm.group_rank(g.group);
  const int first = g.first[own], objects = g.first[own + 1] - first;
  for (int unit = int(blockIdx.x); unit < g.units; unit += int(gridDim.x)) {
    for (int object = pkb::warp_id() * kPackedTogether; object < objects; object += kWarps * kPackedTogether) {
      Packer<T> packers[kPackedTogether];
#pragma unroll
      for (int i = 0; i < kPackedTogether; ++i) {
        if (object + i < objects) packers[i].load(g, g.masks + (object + i) * g.pixels, unit);
      }
#pragma unroll
      for (int i = 0; i < kPackedTogether; ++i) {
        if (object + i >= objects) continue;
        const uint32_t word = packers[i].word();
        uint32_t* place = g.bits + (int64_t(unit) * g.objects + first + object + i) * kWords + pkb::lane_id();
        for (int w = 0; w < W; ++w) *comm.peer(place, comm.group_member(g.group, w)) = word;
      }
    }
  }
}

template <typename T>
__device__ const T* of_owner(const T* own, int owner, const Globals<T>& g, const pkb::Device& comm) {
  return comm.peer(own, comm.group_member(g.group, owner));
}

template <typename T>
__device__ int owner_of(const Globals<T>& g, int object) {
  int owner = 0;
  while (g.first[owner + 1] <= object) ++owner;
  return owner;
}

template <typename T>
__device__ void copy_scores(const Globals<T>& g, const pkb::Device& comm) {
  for (int object = threadIdx.x; object < g.objects; object += kThreads) {
    const int owner = owner_of(g, object);
    g.out_scores[object] = float(of_owner(g.scores, owner, g, comm)[object - g.first[owner]]);
  }
}

// ---- Counting ----

// Tiles that hold pairs (i, j), i <= j: of row tile r, column tiles from r * kTileRows / kTileColumns on.
struct Tile {
  int row, column;  // first objects
};
__host__ __device__ int tiles_in_all(int objects) {
  const int rows = (objects + kTileRows - 1) / kTileRows, columns = (objects + kTileColumns - 1) / kTileColumns;
  int tiles = 0;
  for (int r = 0; r < rows; ++r) tiles += columns - r * kTileRows / kTileColumns;
  return tiles;
}
__device__ Tile tile_at(int objects, int index) {
  const int columns = (objects + kTileColumns - 1) / kTileColumns;
  int r = 0;
  for (; index >= columns - r * kTileRows / kTileColumns; ++r) index -= columns - r * kTileRows / kTileColumns;
  return {r * kTileRows, (r * kTileRows / kTileColumns + index) * kTileColumns};
}
// Where the count of a pair is.
__device__ int place_of_pair(int objects, int i, int j) {
  const int columns = (objects + kTileColumns - 1) / kTileColumns;
  const int r = i / kTileRows, skipped = r / 2;  // column tiles left out of row tile r; two row tiles are as high
  static_assert(kTileColumns == 2 * kTileRows, "the sum of r / 2 over the rows before");
  int tile = j / kTileColumns - skipped;
  // Row tiles before r have r * columns tiles, less 0 + 0 + 1 + 1 + ... + (r - 1) / 2.
  tile += r * columns - (r / 2 * (r / 2 - 1) + (r % 2 ? r / 2 : 0));
  const int row = i % kTileRows, column = j % kTileColumns;
  const int lane = row % 8 * 4 + column % 8 / 2, part = row / 8 * 2 + column % 2;
  return tile * kTileCounts + (column / 8 * 4 + part) * 32 + lane;
}

// Adds the overlaps in this block's units to the counts of the rank.
template <typename T>
__device__ void count(const Globals<T>& g, uint32_t* bits) {
  constexpr int kVectors = kWords / 4;
  for (int unit = int(blockIdx.x); unit < g.units; unit += int(gridDim.x)) {
    __syncthreads();
    const auto* from = reinterpret_cast<const uint4*>(g.bits + int64_t(unit) * g.objects * kWords);
    for (int i = threadIdx.x; i < bits_bytes(g.objects) / (kPitch * 4) * kVectors; i += kThreads) {
      const uint4 vector = i < g.objects * kVectors ? __ldcg(from + i) : uint4{0, 0, 0, 0};
      *reinterpret_cast<uint4*>(bits + i / kVectors * kPitch + i % kVectors * 4) = vector;
    }
    __syncthreads();
    for (int index = pkb::warp_id(); index < g.tiles; index += kWarps) {
      const Tile tile = tile_at(g.objects, index);
      const uint32_t* own = bits + pkb::lane_id() / 4 * kPitch + pkb::lane_id() % 4 * 4;
      int sums[kProducts][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 rows[2], columns[kProducts];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          rows[r] = *reinterpret_cast<const uint4*>(own + (tile.row + 8 * r) * kPitch + half * 16);
        }
#pragma unroll
        for (int n = 0; n < kProducts; ++n) {
          columns[n] = *reinterpret_cast<const uint4*>(own + (tile.column + 8 * n) * kPitch + half * 16);
        }
#pragma unroll
        for (int n = 0; n < kProducts; ++n) {
          pkb::bits::add_common(sums[n], rows[0].x, rows[1].x, rows[0].y, rows[1].y, columns[n].x, columns[n].y);
          pkb::bits::add_common(sums[n], rows[0].z, rows[1].z, rows[0].w, rows[1].w, columns[n].z, columns[n].w);
        }
      }
      int* to = g.counts + index * kTileCounts + pkb::lane_id();
#pragma unroll
      for (int n = 0; n < kProducts; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) atomicAdd(to + (n * 4 + i) * 32, sums[n][i]);
      }
    }
  }
}

// The blocks of this rank meet when they have counted, in two halves.
template <typename T>
__device__ void tell_counted(const Globals<T>& g) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&g.turns->counted[g.turn]) : "memory");
  }
}

template <typename T>
__device__ void wait_counted(const Globals<T>& g, const pkb::Device& comm) {
  if (threadIdx.x == 0) {
    unsigned arrived;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(&g.turns->counted[g.turn]) : "memory");
    } while (arrived < gridDim.x);
  }
  __syncthreads();
  comm.hold();
}

// Makes ready for the next call what the one before has used.
template <typename T>
__device__ void clear_other_turn(const Globals<T>& g) {
  const int other = 1 - g.turn, counts = g.turns->tiles[other] * kTileCounts;
  for (int i = int(blockIdx.x) * kThreads + int(threadIdx.x); i < counts; i += int(gridDim.x) * kThreads) {
    g.other_counts[i] = 0;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    g.turns->counted[other] = 0;
    g.turns->tiles[g.turn] = g.tiles;
  }
}

// ---- Deciding ----

// Whether an object loses against another one that overlaps it.
__device__ bool yields(int64_t own_last, int64_t other_last, bool reverse) {
  return other_last > -1 && (reverse ? own_last < other_last : own_last > other_last);
}

// Finds out who loses, from the counts of all blocks.
template <typename T>
__device__ void decide(const Globals<T>& g, int* areas, int* suppressed) {
  constexpr int kTogether = 8;
  for (int i = threadIdx.x; i < g.objects; i += kThreads) {
    suppressed[i] = 0;
    areas[i] = __ldcg(g.counts + place_of_pair(g.objects, i, i));
  }
  __syncthreads();
  const int pairs = g.tiles * kTileCounts;
  for (int begin = threadIdx.x; begin < pairs; begin += kTogether * kThreads) {
    int common[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int at = begin + k * kThreads;
      common[k] = at < pairs ? __ldcg(g.counts + at) : 0;
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int at = begin + k * kThreads;
      if (at >= pairs || (common[k] == 0 && g.threshold > 0)) continue;
      const Tile tile = tile_at(g.objects, at / kTileCounts);
      const int lane = at % 32, part = at / 32 % 4, n = at / 128 % kProducts;
      const int i = tile.row + lane / 4 + part / 2 * 8, j = tile.column + n * 8 + lane % 4 * 2 + part % 2;
      if (i >= j || j >= g.objects) continue;
      const int64_t last_i = g.last[i], last_j = g.last[j];
      const int either = areas[i] + areas[j] - common[k];
      if (!(float(common[k]) / fmaxf(float(either), 1.0f) >= g.threshold)) continue;
      if (yields(last_i, last_j, g.reverse)) atomicOr(suppressed + i, 1);
      if (yields(last_j, last_i, g.reverse)) atomicOr(suppressed + j, 1);
    }
  }
  __syncthreads();
}

// ---- Gathering ----

// An object that yields to nobody, overlap or not, has a last occlusion up to (reverse: from) this one on. All threads
// of the block call it.
template <typename T>
__device__ int64_t safe_bound(const Globals<T>& g) {
  const auto better = [&](int64_t a, int64_t b) { return (a < b) != g.reverse ? a : b; };
  const int64_t none = g.reverse ? INT64_MIN : INT64_MAX;
  int64_t bound = none;
  for (int object = threadIdx.x; object < g.objects; object += kThreads) {
    bound = better(bound, g.last[object] > -1 ? g.last[object] : none);
  }
  return pkb::reduce_block<kThreads>(bound, better);
}

// Lists what `entry` makes of each object, unless it is kSkip. Neighbours in the list are far apart, so that work on
// own and on foreign masks alternates; ranks begin with different peers. All threads of the block call it.
template <typename T, typename Entry>
__device__ int list_objects(const Globals<T>& g, int own, int* list, Entry entry) {
  int length = 0;
  for (int i = 0; i < g.objects; i += kThreads) {
    const int place = i + int(threadIdx.x);
    const int made = place < g.objects ? entry(int((int64_t(place) * g.stride + g.first[own + 1]) % g.objects)) : kSkip;
    const pkb::Count listed = pkb::count_in_block<kThreads>(made != kSkip);
    if (made != kSkip) list[length + listed.before] = made;
    length += listed.all;
  }
  __syncthreads();
  return length;
}

// Pixels of a lane that lie together.
template <typename T>
struct alignas(4 * sizeof(T)) Run {
  T values[kRun];
};

// Writes the listed masks, as they are where their owners have them; those listed as ~object become blank.
template <typename T>
__device__ void gather_masks(const Globals<T>& g, const pkb::Device& comm, const int* list, int length) {
  const int first = int(blockIdx.x) * kWarps + pkb::warp_id(), all = int(gridDim.x) * kWarps;
  for (int item = first; item < length * g.chunks; item += all) {
    const int entry = list[item / g.chunks], object = entry < 0 ? ~entry : entry, owner = owner_of(g, object);
    const int64_t begin = int64_t(item % g.chunks) * kChunk + pkb::lane_id() * kRun;
    const T* from = of_owner(g.masks, owner, g, comm) + (object - g.first[owner]) * g.pixels + begin;
    float* to = g.out_masks + object * g.pixels + begin;
    if (!g.in_octets) {
      for (int i = 0; i < kRuns * kRun; ++i) {
        const int64_t at = i / kRun * 32 * kRun + i % kRun;
        if (begin + at < g.pixels) to[at] = entry < 0 ? kBlank : float(from[at]);
      }
    } else if (entry < 0) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (begin + r * 32 * kRun >= g.pixels) continue;
        __stcs(reinterpret_cast<float4*>(to + r * 32 * kRun), float4{kBlank, kBlank, kBlank, kBlank});
      }
    } else {
      Run<T> runs[kRuns];
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (begin + r * 32 * kRun < g.pixels) runs[r] = *reinterpret_cast<const Run<T>*>(from + r * 32 * kRun);
      }
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (begin + r * 32 * kRun >= g.pixels) continue;
        const T* v = runs[r].values;
        __stcs(reinterpret_cast<float4*>(to + r * 32 * kRun),
               float4{float(v[0]), float(v[1]), float(v[2]), float(v[3])});
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) suppress(const __grid_constant__ Globals<T> g,
                                                                   const __grid_constant__ pkb::Device comm) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto* bits = reinterpret_cast<uint32_t*>(memory);
  auto* list = reinterpret_cast<int*>(memory);
  auto* suppressed = reinterpret_cast<int*>(memory + bits_bytes(g.objects));
  const int own = comm.group_rank(g.group);

  comm.signal_begun(g.group);
  pack_own(g, comm);
  comm.arrive_blocks(0, g.group);
  clear_other_turn(g);

  comm.wait_all_begun(0, g.group);
  const bool is_last = blockIdx.x == gridDim.x - 1;

  const int64_t bound = safe_bound(g);
  const auto is_safe = [&](int object) { return g.reverse ? g.last[object] >= bound : g.last[object] <= bound; };
  const int safe = list_objects(g, own, list, [&](int object) { return is_safe(object) ? object : kSkip; });
  gather_masks(g, comm, list, safe);

  comm.wait_blocks(0, g.group);  // the bits are here
  count(g, bits);
  tell_counted(g);
  if (is_last) copy_scores(g, comm);
  wait_counted(g, comm);
  decide(g, list, suppressed);
  const int others = list_objects(g, own, list, [&](int object) {
    return is_safe(object) ? kSkip : suppressed[object] ? ~object : object;
  });
  gather_masks(g, comm, list, others);
  for (int object = threadIdx.x; is_last && object < g.objects; object += kThreads) {
    g.suppressed[object] = suppressed[object] != 0;
  }
  comm.barrier_blocks(1, g.group);
}

constexpr int kMostSharedBytes = 200 << 10;  // of 1000 objects

struct Arguments {
  TensorView masks, scores;
  const tvm::ffi::Array<int64_t>& counts;
  TensorView last_occluded;
  float threshold;
  bool reverse;
  int64_t group;
  TensorView out_masks, out_scores, suppressed;
};

template <typename T>
void launch(const Arguments& a, const pkb::Comm& comm) {
  Globals<T> g{};
  g.masks = static_cast<const T*>(a.masks.data_ptr());
  g.scores = static_cast<const T*>(a.scores.data_ptr());
  g.last = static_cast<const int64_t*>(a.last_occluded.data_ptr());
  g.out_masks = static_cast<float*>(a.out_masks.data_ptr());
  g.out_scores = static_cast<float*>(a.out_scores.data_ptr());
  g.suppressed = static_cast<bool*>(a.suppressed.data_ptr());
  for (size_t w = 0; w < a.counts.size(); ++w) g.first[w + 1] = g.first[w] + int(a.counts[w]);
  g.objects = g.first[a.counts.size()];
  if (g.objects != a.last_occluded.numel()) {
    TVM_FFI_THROW(ValueError) << "num_obj_per_gpu adds up to " << g.objects << ", last_occluded has "
                              << a.last_occluded.numel() << " objects";
  }
  g.pixels = a.masks.shape()[1] * a.masks.shape()[2];
  g.chunks = int((g.pixels + kChunk - 1) / kChunk);
  g.units = int((g.pixels + kUnit - 1) / kUnit);
  g.tiles = tiles_in_all(g.objects);
  g.stride = std::max(1, g.objects * 5 / 8);
  while (std::gcd(g.stride, g.objects) > 1) ++g.stride;
  g.group = a.group;
  g.threshold = a.threshold;
  g.reverse = a.reverse;
  g.in_octets = g.pixels % kOctet == 0;

  // Bits lie in two halves of scratch in turn: a peer may be one call ahead, never two, since it meets this rank.
  const uint64_t counts_bytes = uint64_t(g.tiles) * kTileCounts * sizeof(int);
  const uint64_t before = kTurnsBytes + 2 * kMostCountsBytes;
  const uint64_t half = (comm.scratch_bytes - before) / 2 / 256 * 256;
  const uint64_t bytes = uint64_t(g.objects) * g.units * kWords * sizeof(uint32_t);
  const int shared_bytes = bits_bytes(g.objects) + g.objects * int(sizeof(int));
  if (counts_bytes > kMostCountsBytes || shared_bytes > kMostSharedBytes) {
    TVM_FFI_THROW(ValueError) << "expected at most 1000 objects, got " << g.objects;
  }
  if (bytes > half) TVM_FFI_THROW(ValueError) << bytes << " bytes of foreground bits do not fit into scratch";
  g.turns = comm.scratch<Turns>();
  g.turn = int(comm.epoch % 2);
  g.counts = comm.scratch<int>(kTurnsBytes + g.turn * kMostCountsBytes);
  g.other_counts = comm.scratch<int>(kTurnsBytes + (1 - g.turn) * kMostCountsBytes);
  g.bits = comm.scratch<uint32_t>(before + g.turn * half);

  pkb::allow_shared_memory<suppress<T>>(shared_bytes);
  // All blocks are resident together, since they wait for each other.
  const int64_t useful = std::max<int64_t>((int64_t(g.objects) * g.chunks + kWarps - 1) / kWarps, g.units);
  const int fit = pkb::multiprocessors() * (2 * shared_bytes < kMostSharedBytes ? kBlocksPerSm : 1);
  const int blocks = int(std::clamp<int64_t>(useful, 1, fit));
  suppress<T><<<blocks, kThreads, shared_bytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView low_res_masks_local, TensorView obj_scores_local, tvm::ffi::Array<int64_t> num_obj_per_gpu,
              TensorView last_occluded, double iou_threshold, bool reverse, int64_t group, TensorView masks,
              TensorView scores, TensorView suppressed, pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  if (int(num_obj_per_gpu.size()) != members.size) {
    TVM_FFI_THROW(ValueError) << "expected " << members.size << " counts of objects, got " << num_obj_per_gpu.size();
  }
  const int64_t n = num_obj_per_gpu[members.rank];
  if (low_res_masks_local.shape()[0] != n || obj_scores_local.numel() != n) {
    TVM_FFI_THROW(ValueError) << "expected " << n << " objects, got " << low_res_masks_local.shape()[0] << " masks and "
                              << obj_scores_local.numel() << " scores";
  }
  const Arguments a{low_res_masks_local, obj_scores_local, num_obj_per_gpu, last_occluded, float(iou_threshold),
                    reverse,             group,            masks,           scores,        suppressed};
  pkb::with_type<__nv_bfloat16, __half, float>(low_res_masks_local.dtype(),
                                               [&](auto zero) { launch<decltype(zero)>(a, comm); });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
