// SAM3IoUSuppression: foreground bits travel first, then only the masks that stay. One launch.
//
// What moves: each rank packs its masks to one bit a pixel and stores the bits into every rank's scratch, in words
// that signal their own arrival. A block packs the same pixels of all objects: it waits only for the words of its
// counterparts on the other ranks before it counts all overlaps in those pixels, by binary matrix products (and +
// popcount on tensor cores). Blocks add their counts up in scratch and meet; each decides about its share of the
// pairs then, and they meet again. Where there are many objects, some warps of each block keep the link busy in the
// meantime: once the bits are on their way they fetch foreign masks, first those that nobody can suppress, however
// they overlap. The others write this rank's own masks in the end, and then fetch too. Masks and scores are read
// once their ranks have signalled that their calls have begun, and equal blocks of all ranks meet when they have
// read them.
//
// The bound is the link: the input bytes of the foreign masks that stay, and one bit a pixel of all foreign masks.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "pkb/common_bits_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr float kBlank = -10.0f;
// A block has two teams of warps: deciders and, where there is much to fetch, movers.
constexpr int kThreads = 512, kWarps = kThreads / 32;  // of deciders
constexpr int kMoverWarps = 4, kMovers = kMoverWarps * 32;
constexpr int kManyObjects = 8;  // from so many on there are movers

// A unit of pixels, of all objects, is packed and counted by one block: each lane of a warp packs kOctets runs of
// eight pixels of an object into one word. Which pixel has which bit does not matter, as long as all masks agree.
constexpr int kOctet = 8, kOctets = 3;
constexpr int kUnit = 32 * kOctet * kOctets;
template <typename T>
constexpr int kPackedTogether = sizeof(T) == 2 ? 4 : 2;  // objects that a warp reads at once
constexpr int kWords = 32;          // of an object in a unit
constexpr uint32_t kIsThere = 1u << 31;  // in each word in scratch: it has arrived
static_assert(kOctets * kOctet < 31);
constexpr int kPitch = kWords + 16;  // in shared memory: fragments meet all banks

// Masks move in chunks; a lane has runs of four pixels, so that a warp's accesses lie in a row.
constexpr int kRun = 4, kRuns = 8;

// Overlaps are counted in tiles of so many objects by so many, and kept as the fragments of the products lie.
constexpr int kTileRows = 16, kTileColumns = 32, kProducts = kTileColumns / 8;
constexpr int kTileCounts = kTileRows * kTileColumns;

// Where counts have more tiles, each block decides about a share of them.
constexpr int kFewTiles = 2;
constexpr int kMostObjects = 1024, kMostLoserWords = kMostObjects / 32;

// At the beginning of scratch. Calls take turns: each sets to zero for the next one what the one before has used,
// the first `tiles` tiles of its counts, its bits, the numbers of its blocks that have counted and decided, and who
// has lost, a bit an object.
struct Turns {
  unsigned counted[2], decided[2];
  int tiles[2];
  int64_t vectors[2];  // of bits
  uint32_t losers[2][kMostLoserWords];
};
constexpr uint64_t kTurnsBytes = 512, kMostCountsBytes = 3 << 20;
static_assert(sizeof(Turns) <= kTurnsBytes);

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
  uint32_t *bits, *other_bits;  // (units, objects, kWords), of this call and of the one before
  int first[pkb::kMaxRanks + 1];  // object of each rank
  int objects, units, tiles;
  bool has_movers;  // else deciders fetch foreign masks alone
  int64_t pixels, group;
  float threshold;
  bool reverse;
  bool in_octets;  // masks consist of whole octets, all aligned
};

// Dynamic shared memory: bits of a unit; the last occlusions of all objects; a list of objects.
__host__ __device__ int bits_bytes(int objects) {
  return (objects + kTileColumns - 1) / kTileColumns * kTileColumns * kPitch * int(sizeof(uint32_t));
}
__host__ __device__ int shared_bytes(int objects) {
  return bits_bytes(objects) + objects * int(sizeof(int64_t) + sizeof(int));
}

// ---- Teams ----

template <int kBarrier, int kTeamThreads, int kBefore>
struct Team {
  static constexpr int kThreads = kTeamThreads;
  __device__ static int thread() { return int(threadIdx.x) - kBefore; }
  __device__ static void sync() { asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kTeamThreads) : "memory"); }

  // Calls f(rank) for the other ranks of the group, each in a thread of its own.
  template <typename F>
  __device__ static void for_each_peer(const pkb::Device& comm, int64_t group, F f) {
    if (thread() < comm.group_size(group) && thread() != comm.group_rank(group)) f(comm.group_member(group, thread()));
  }
  __device__ static void wait_all_begun(int64_t group, const pkb::Device& comm) {
    for_each_peer(comm, group, [&](int r) { comm.wait_begun(r); });
    sync();
  }
};
using Deciders = Team<1, kThreads, 0>;
using Movers = Team<2, kMovers, kThreads>;

// ---- Packing ----

__device__ __forceinline__ void send_word(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word | kIsThere) : "memory");
}
__device__ __forceinline__ uint4 look_at_words(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool are_there(const uint4& v) { return (v.x & v.y & v.z & v.w & kIsThere) != 0; }
__device__ __forceinline__ void wait_words(uint4& words, const uint4* from) {
  while (!are_there(words)) words = look_at_words(from);
}
__device__ __forceinline__ uint4 bits_of(const uint4& v) {
  return {v.x & ~kIsThere, v.y & ~kIsThere, v.z & ~kIsThere, v.w & ~kIsThere};
}

// This lane's word of a unit of an object: pixels beyond the end are background.
template <typename T>
struct Packer {
  static constexpr int kVectors = kOctet * sizeof(T) / sizeof(uint4);
  uint4 raw[kOctets][kVectors];

  __device__ void load(const T* mask, int64_t begin, int64_t pixels) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      const int64_t at = begin + o * 32 * kOctet;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        raw[o][v] = at < pixels ? __ldg(reinterpret_cast<const uint4*>(mask + at) + v) : uint4{0, 0, 0, 0};
      }
    }
  }

  __device__ uint32_t word() const {
    uint32_t made = 0;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          made |= positive(pkb::word_of(raw[o][0], pair)) & 0x00010001u << (o * 4 + pair);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kOctet; ++i) {
          made |= uint32_t(pkb::element<T>(raw[o][i / 4], i % 4) > 0) << (o * kOctet + i);
        }
      }
    }
    return made;
  }

  // All bits of each of two numbers that is positive.
  __device__ static uint32_t positive(uint32_t two) {
    const uint32_t zeros = 0;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return __hgt2_mask(reinterpret_cast<const __nv_bfloat162&>(two), reinterpret_cast<const __nv_bfloat162&>(zeros));
    } else {
      return __hgt2_mask(reinterpret_cast<const __half2&>(two), reinterpret_cast<const __half2&>(zeros));
    }
  }
};

// The same for several masks that do not consist of octets.
template <typename T, int kMost>
__device__ void pack_by_pixels(uint32_t (&words)[kMost], int number, const T* masks, int64_t begin, int64_t pixels) {
#pragma unroll 1
  for (int k = number - 1; k >= 0; --k) {
    uint32_t made = 0;
#pragma unroll 1
    for (int i = 0; i < kOctets * kOctet; ++i) {
      const int64_t at = begin + i / kOctet * 32 * kOctet + i % kOctet;
      made |= uint32_t(at < pixels && float(masks[k * pixels + at]) > 0) << i;
    }
#pragma unroll
    for (int i = kMost - 1; i > 0; --i) words[i] = words[i - 1];  // so that indices are known
    words[0] = made;
  }
}

// Gives every rank the foreground bits of this block's units of this rank's masks.
template <typename T>
__device__ void pack_own(const Globals<T>& g, const pkb::Device& comm) {
  constexpr int kTogether = kPackedTogether<T>;
  const int W = comm.group_size(g.group), own = comm.group_rank(g.group);
  const int first = g.first[own], objects = g.first[own + 1] - first;
#pragma unroll 1
  for (int unit = int(blockIdx.x); unit < g.units; unit += int(gridDim.x)) {
    const int64_t begin = int64_t(unit) * kUnit + pkb::lane_id() * kOctet;
    uint32_t* places = g.bits + (int64_t(unit) * g.objects + first) * kWords + pkb::lane_id();
#pragma unroll 1
    for (int object = pkb::warp_id() * kTogether; object < objects; object += kWarps * kTogether) {
      uint32_t words[kTogether];
      const T* masks = g.masks + object * g.pixels;
      if (g.in_octets) {
        Packer<T> packers[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (object + i < objects) packers[i].load(masks + i * g.pixels, begin, g.pixels);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) words[i] = packers[i].word();
      } else {
        pack_by_pixels(words, min(kTogether, objects - object), masks, begin, g.pixels);
      }
#pragma unroll 1
      for (int w = 0; w < W; ++w) {
        uint32_t* theirs = comm.peer(places + object * kWords, comm.group_member(g.group, w));
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (object + i < objects) send_word(theirs + i * kWords, words[i]);
        }
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

template <typename Team, typename T>
__device__ void copy_scores(const Globals<T>& g, const pkb::Device& comm) {
#pragma unroll 1
  for (int object = Team::thread(); object < g.objects; object += Team::kThreads) {
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
#pragma unroll 1
  for (int unit = int(blockIdx.x); unit < g.units; unit += int(gridDim.x)) {
    Deciders::sync();
    constexpr int kTogether = 2;
    const auto* from = reinterpret_cast<const uint4*>(g.bits + int64_t(unit) * g.objects * kWords);
    const int there = g.objects * kVectors, all = bits_bytes(g.objects) / (kPitch * 4) * kVectors;
#pragma unroll 1
    for (int first = threadIdx.x; first < all; first += kTogether * kThreads) {
      uint4 vectors[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int i = first + k * kThreads;
        vectors[k] = i < there ? look_at_words(from + i) : uint4{kIsThere, kIsThere, kIsThere, kIsThere};
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int i = first + k * kThreads;
        wait_words(vectors[k], from + i);
        if (i < all) *reinterpret_cast<uint4*>(bits + i / kVectors * kPitch + i % kVectors * 4) = bits_of(vectors[k]);
      }
    }
    Deciders::sync();
#pragma unroll 1
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

// The blocks of this rank meet, in two halves; `met` is how many have come.
__device__ void tell(unsigned* met) {
  Deciders::sync();
  if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(met) : "memory");
}
__device__ void wait_for_all(const unsigned* met, const pkb::Device& comm) {
  if (threadIdx.x == 0) {
    unsigned come;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(met) : "memory");
    } while (come < gridDim.x);
  }
  Deciders::sync();
  comm.hold();
}

// Makes ready for the next call what the one before has used.
template <typename T>
__device__ void clear_other_turn(const Globals<T>& g) {
  const int other = 1 - g.turn, counts = g.turns->tiles[other] * kTileCounts;
#pragma unroll 1
  for (int i = int(blockIdx.x) * kThreads + int(threadIdx.x); i < counts; i += int(gridDim.x) * kThreads) {
    g.other_counts[i] = 0;
  }
  auto* words = reinterpret_cast<uint4*>(g.other_bits);
  const int64_t vectors = g.turns->vectors[other];
#pragma unroll 1
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += int64_t(gridDim.x) * kThreads) {
    words[i] = uint4{0, 0, 0, 0};
  }
  if (blockIdx.x != 0) return;
  if (threadIdx.x < kMostLoserWords) g.turns->losers[other][threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    g.turns->counted[other] = g.turns->decided[other] = 0;
    g.turns->tiles[g.turn] = g.tiles;
    g.turns->vectors[g.turn] = int64_t(g.objects) * g.units * (kWords / 4);
  }
}

// ---- Deciding ----

// The last occlusion of an object, or what orders them alike if the video is tracked backward.
template <typename T>
__device__ int64_t order_of(const Globals<T>& g, int object) {
  return g.reverse ? ~__ldg(g.last + object) : __ldg(g.last + object);
}
template <typename T>
__device__ bool was_occluded(const Globals<T>& g, int64_t order) {
  return (order >= 0) != g.reverse;
}
// Whether an object loses against another one that overlaps it.
template <typename T>
__device__ bool yields(const Globals<T>& g, int64_t own_order, int64_t other_order) {
  return was_occluded(g, other_order) && own_order > other_order;
}

// Finds out who loses in pairs, from the counts of all blocks: this block's share of them, or all.
template <typename T>
__device__ void compare_pairs(const Globals<T>& g, bool in_shares, uint32_t* losers) {
  const int counts = g.tiles * kTileCounts, share = in_shares ? (counts + int(gridDim.x) - 1) / int(gridDim.x) : counts;
  const int begin = in_shares ? int(blockIdx.x) * share : 0, end = min(begin + share, counts);
#pragma unroll 1
  for (int at = begin + int(threadIdx.x); at < end; at += kThreads) {
    const Tile tile = tile_at(g.objects, at / kTileCounts);
    const int lane = at % 32, part = at / 32 % 4, n = at / 128 % kProducts;
    const int i = tile.row + lane / 4 + part / 2 * 8, j = tile.column + n * 8 + lane % 4 * 2 + part % 2;
    if (i >= j || j >= g.objects) continue;
    const int both = __ldcg(g.counts + at);
    const int of_i = __ldcg(g.counts + place_of_pair(g.objects, i, i));
    const int of_j = __ldcg(g.counts + place_of_pair(g.objects, j, j));
    const int64_t order_i = order_of(g, i), order_j = order_of(g, j);
    if (!(float(both) / fmaxf(float(of_i + of_j - both), 1.0f) >= g.threshold)) continue;
    if (yields(g, order_i, order_j)) atomicOr(losers + i / 32, 1u << i % 32);
    if (yields(g, order_j, order_i)) atomicOr(losers + j / 32, 1u << j % 32);
  }
}

// Whether an object has lost, of a bit an object.
__device__ bool is_loser(const uint32_t* losers, int object) { return losers[object / 32] >> object % 32 & 1; }

// Finds out who loses; `losers` are in shared memory, and zero before.
template <typename T>
__device__ void decide(const Globals<T>& g, const pkb::Device& comm, uint32_t* losers) {
  const bool in_shares = g.tiles > kFewTiles;
  uint32_t* of_all = g.turns->losers[g.turn];
  compare_pairs(g, in_shares, in_shares ? of_all : losers);
  if (in_shares) {
    tell(&g.turns->decided[g.turn]);
    wait_for_all(&g.turns->decided[g.turn], comm);
    if (threadIdx.x < kMostLoserWords) losers[threadIdx.x] = __ldcg(of_all + threadIdx.x);
  }
  Deciders::sync();
}

// Deciders tell the movers of their block.
__device__ void tell_decided(int* decided) {
  if (threadIdx.x == 0) {
    const auto at = unsigned(__cvta_generic_to_shared(decided));
    asm volatile("st.release.cta.shared.u32 [%0], 1;" ::"r"(at) : "memory");
  }
}
__device__ bool is_decided(const int* decided) {
  unsigned value;
  const auto at = unsigned(__cvta_generic_to_shared(decided));
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return __any_sync(pkb::kAllLanes, value != 0);
}

// ---- Gathering ----

// Objects whose masks are written, those first that yield to the fewest.
struct List {
  int length, safe;  // so many in all, and so many that yield to nobody, overlap or not
};

// Lists `length` objects from `first` on, behind the last of which comes object 0. `order` has room for all objects.
template <typename Team, typename T>
__device__ List list_objects(const Globals<T>& g, int first, int length, int64_t* order, int* list) {
  const auto object_at = [&](int i) { return first + i < g.objects ? first + i : first + i - g.objects; };
#pragma unroll 1
  for (int i = Team::thread(); i < g.objects; i += Team::kThreads) order[i] = order_of(g, object_at(i));
  Team::sync();
  int64_t bound = INT64_MAX;  // the first of those that others yield to: whoever is not behind it is safe
#pragma unroll 1
  for (int i = pkb::lane_id(); i < g.objects; i += 32) {
    if (was_occluded(g, order[i])) bound = min(bound, order[i]);
  }
  bound = pkb::reduce_warp(bound, [](int64_t a, int64_t b) { return a < b ? a : b; });
  int safe = 0;
#pragma unroll 1
  for (int i = pkb::lane_id(); i < length; i += 32) safe += order[i] <= bound;
  safe = __reduce_add_sync(pkb::kAllLanes, safe);
#pragma unroll 1
  for (int i = Team::thread(); i < length; i += Team::kThreads) {
    const int64_t own = order[i];
    int before = 0;
#pragma unroll 4
    for (int k = 0; k < length; ++k) before += order[k] < own || (order[k] == own && k < i);
    list[before] = object_at(i);
  }
  Team::sync();
  return {length, safe};
}

// Pixels of a lane that lie together.
template <typename T>
struct alignas(4 * sizeof(T)) Run {
  T values[kRun];
};

// What a warp moves at once of a mask.
template <typename T>
struct Chunk {
  static constexpr int kPixels = 32 * kRun * kRuns;
  const T* from;  // of this lane
  float* to;
  int left;  // pixels

  __host__ __device__ static int number(int64_t pixels) { return int((pixels + kPixels - 1) / kPixels); }

  __device__ Chunk(const Globals<T>& g, const pkb::Device& comm, int object, int chunk) {
    const int owner = owner_of(g, object);
    const int64_t begin = int64_t(chunk) * kPixels + pkb::lane_id() * kRun;
    from = of_owner(g.masks, owner, g, comm) + (object - g.first[owner]) * g.pixels + begin;
    to = g.out_masks + object * g.pixels + begin;
    left = int(min(g.pixels - begin, int64_t(kPixels)));
  }

  // Writes it, as it is or blank.
  __device__ void move(bool blank, bool in_octets) const {
    if (!in_octets) {
#pragma unroll 1
      for (int r = 0; r < kRuns; ++r) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          const int at = r * 32 * kRun + i;
          if (at < left) to[at] = blank ? kBlank : float(from[at]);
        }
      }
      return;
    }
    Run<T> runs[kRuns];
    if (!blank) {
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        if (r * 32 * kRun < left) runs[r] = *reinterpret_cast<const Run<T>*>(from + r * 32 * kRun);
      }
    }
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      if (r * 32 * kRun >= left) continue;
      const T* v = runs[r].values;
      float4 made{kBlank, kBlank, kBlank, kBlank};
      if (!blank) made = float4{float(v[0]), float(v[1]), float(v[2]), float(v[3])};
      __stcs(reinterpret_cast<float4*>(to + r * 32 * kRun), made);
    }
  }
};

// Deciders write chunks `item`, `item` + `step` ... below `end` of the masks of `object_at(0)` and so on; those of
// losers become blank. Returns the first that is not below `end`.
template <typename T, typename ObjectAt>
__device__ int write_masks(const Globals<T>& g, const pkb::Device& comm, ObjectAt object_at, int item, int end,
                           const uint32_t* losers) {
  const int chunks = Chunk<T>::number(g.pixels), step = int(gridDim.x) * kWarps;
#pragma unroll 1
  for (; item < end; item += step) {
    const int object = object_at(item / chunks);
    Chunk<T>(g, comm, object, item % chunks).move(losers && is_loser(losers, object), g.in_octets);
  }
  return item;
}

// What the teams of a block share.
struct Progress {
  int decided;  // by deciders
  int taken;    // chunks of foreign masks
  uint32_t losers[kMostLoserWords];
};

// A warp fetches chunks of the listed foreign masks, until the block has none left: at a venture until it is decided
// who loses, then those that stay.
template <typename T>
__device__ void fetch(const Globals<T>& g, const pkb::Device& comm, const int* list, int length, Progress& progress) {
  const int chunks = Chunk<T>::number(g.pixels), items = length * chunks;
  bool known = false;
#pragma unroll 1
  while (true) {
    int taken = 0;
    if (pkb::lane_id() == 0) taken = atomicAdd(&progress.taken, 1);
    const int item = __shfl_sync(pkb::kAllLanes, taken, 0) * int(gridDim.x) + int(blockIdx.x);
    if (item >= items) break;
    const int object = list[item / chunks];
    known = known || is_decided(&progress.decided);
    if (known && is_loser(progress.losers, object)) continue;
    Chunk<T>(g, comm, object, item % chunks).move(false, g.in_octets);
  }
}

// All warps of the block blank the chunks of losers among those that it was to fetch.
template <typename T>
__device__ void blank(const Globals<T>& g, const pkb::Device& comm, const int* list, int length,
                      const uint32_t* losers) {
  const int chunks = Chunk<T>::number(g.pixels), step = int(gridDim.x) * (kWarps + kMoverWarps);
#pragma unroll 1
  for (int item = pkb::warp_id() * int(gridDim.x) + int(blockIdx.x); item < length * chunks; item += step) {
    const int object = list[item / chunks];
    if (is_loser(losers, object)) Chunk<T>(g, comm, object, item % chunks).move(true, g.in_octets);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads + kMovers, 1) suppress(const __grid_constant__ Globals<T> g,
                                                                  const __grid_constant__ pkb::Device comm) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Progress progress;
  const int own = comm.group_rank(g.group), mine = g.first[own + 1] - g.first[own], foreign = g.objects - mine;
  auto* bits = reinterpret_cast<uint32_t*>(memory);
  auto* order = reinterpret_cast<int64_t*>(memory + bits_bytes(g.objects));
  auto* list = reinterpret_cast<int*>(order + g.objects);
  const bool is_last = blockIdx.x == gridDim.x - 1, is_mover = int(threadIdx.x) >= kThreads;

  comm.signal_begun(g.group);
  if (threadIdx.x == 0) progress.decided = progress.taken = 0;
  if (threadIdx.x < kMostLoserWords) progress.losers[threadIdx.x] = 0;
  if (is_mover) {
    list_objects<Movers>(g, g.first[own + 1], foreign, order, list);
    Movers::wait_all_begun(g.group, comm);
  } else {
    pack_own(g, comm);
  }
  if (g.has_movers) __syncthreads();  // the bits go first; foreign masks are there, and their list

  if (is_mover) {
    if (is_last) copy_scores<Movers>(g, comm);
  } else {
    const int chunks = Chunk<T>::number(g.pixels), number = g.has_movers ? mine : g.objects;
    const auto object_at = [&](int i) { return g.has_movers ? g.first[own] + i : list[i]; };
    int item = int(blockIdx.x) * kWarps + pkb::warp_id();
    clear_other_turn(g);
    if (!g.has_movers) {
      const List all = list_objects<Deciders>(g, g.first[own + 1], g.objects, order, list);
      Deciders::wait_all_begun(g.group, comm);
      item = write_masks(g, comm, object_at, item, all.safe * chunks, nullptr);
    }

    comm.hold();
    count(g, bits);
    tell(&g.turns->counted[g.turn]);
    if (!g.has_movers && is_last) copy_scores<Deciders>(g, comm);
    wait_for_all(&g.turns->counted[g.turn], comm);
    decide(g, comm, progress.losers);

    tell_decided(&progress.decided);
    write_masks(g, comm, object_at, item, number * chunks, progress.losers);
#pragma unroll 1
    for (int object = threadIdx.x; is_last && object < g.objects; object += kThreads) {
      g.suppressed[object] = is_loser(progress.losers, object);
    }
  }
  if (g.has_movers) fetch(g, comm, list, foreign, progress);
  comm.arrive_blocks(1, g.group);
  if (g.has_movers) blank(g, comm, list, foreign, progress.losers);
  comm.wait_blocks(1, g.group);
}

constexpr int kMostSharedBytes = 220 << 10;

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
  g.units = int((g.pixels + kUnit - 1) / kUnit);
  g.tiles = tiles_in_all(g.objects);
  g.has_movers = comm.group(a.group).size > 1 && g.objects >= kManyObjects;
  g.group = a.group;
  g.threshold = a.threshold;
  g.reverse = a.reverse;
  g.in_octets = g.pixels % kOctet == 0;

  // Bits lie in two halves of scratch in turn: a peer may be one call ahead, never two, since it meets this rank.
  const uint64_t counts_bytes = uint64_t(g.tiles) * kTileCounts * sizeof(int);
  const uint64_t before = kTurnsBytes + 2 * kMostCountsBytes;
  const uint64_t half = (comm.scratch_bytes - before) / 2 / 256 * 256;
  const uint64_t bytes = uint64_t(g.objects) * g.units * kWords * sizeof(uint32_t);
  const int shared = shared_bytes(g.objects);
  if (counts_bytes > kMostCountsBytes || shared > kMostSharedBytes || g.objects > kMostObjects) {
    TVM_FFI_THROW(ValueError) << "expected at most 1000 objects, got " << g.objects;
  }
  if (bytes > half) TVM_FFI_THROW(ValueError) << bytes << " bytes of foreground bits do not fit into scratch";
  g.turns = comm.scratch<Turns>();
  g.turn = int(comm.epoch % 2);
  g.counts = comm.scratch<int>(kTurnsBytes + g.turn * kMostCountsBytes);
  g.other_counts = comm.scratch<int>(kTurnsBytes + (1 - g.turn) * kMostCountsBytes);
  g.bits = comm.scratch<uint32_t>(before + g.turn * half);
  g.other_bits = comm.scratch<uint32_t>(before + (1 - g.turn) * half);

  pkb::allow_shared_memory<suppress<T>>(shared);
  // All blocks are resident together, one on a multiprocessor, since they wait for each other.
  const int64_t chunks = int64_t(g.objects) * Chunk<T>::number(g.pixels);
  const int64_t useful = std::max<int64_t>((chunks + kWarps - 1) / kWarps, g.units);
  const int blocks = int(std::clamp<int64_t>(useful, 1, pkb::multiprocessors()));
  const int threads = kThreads + (g.has_movers ? kMovers : 0);
  suppress<T><<<blocks, threads, shared, comm.cuda_stream()>>>(g, comm.device());
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
