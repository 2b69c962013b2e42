// The k largest of many numbers, without sorting: the k-th largest is found by bisecting the keys of floating-point
// numbers, and the k largest of a stream by keeping what is above the best bound known.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {

// ---- keys ----

// Low bits of a float that a T leaves zero.
template <class T>
constexpr int kSpareBits = 0;
template <>
inline constexpr int kSpareBits<__nv_bfloat16> = 16;
template <>
inline constexpr int kSpareBits<__half> = 13;

// The key of a number that a T can hold. Keys are ordered as the numbers; both zeros have one key.
template <class T>
__device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits >> 31 ? ~bits : bits | 1u << 31) >> kSpareBits<T>;
}

template <class T>
__device__ float value_of(uint32_t key) {
  const uint32_t bits = key << kSpareBits<T>;
  return __uint_as_float(bits >> 31 ? bits ^ 1u << 31 : ~(bits | ((1u << kSpareBits<T>)-1)));
}

// Largest key up to `high` for which `holds`; it does for `low` and for all that are less than one for which it does.
template <class Holds>
__device__ uint32_t largest_key(uint32_t low, uint32_t high, Holds holds) {
  const int differing = 32 - __clz(low ^ high);  // the bits above are common to all keys in between
  uint32_t key = differing == 32 ? 0 : high >> differing << differing;
  for (int bit = differing - 1; bit >= 0; --bit) {
    const uint32_t next = key | 1u << bit;
    if (next <= high && holds(next)) key = next;
  }
  return key;
}

// ---- the k-th largest of what a team can visit ----

// Numbers, each of them once, but for the first `weighted` of them. What the functions below are given has such a
// visit(); the team is a Warp or a Block.
struct List {
  const float* values;
  int size;
  const float* weights = nullptr;
  int weighted = 0;

  template <class Team, class Visit>
  __device__ void visit(const Team& team, Visit visit) const {
    for (int i = team.thread(); i < size; i += team.threads()) visit(values[i], i < weighted ? weights[i] : 1.0f);
  }
};

// Vectors of numbers of type T.
template <class T>
struct Vectors {
  const uint4* vectors;
  int size;

  template <class Team, class Visit>
  __device__ void visit(const Team& team, Visit visit) const {
    for (int i = team.thread(); i < size; i += team.threads()) {
      const uint4 vector = vectors[i];
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) visit(element<T>(vector, e), 1.0f);
    }
  }
};

struct KeyRange {
  uint32_t low, high;  // least and largest key
};

template <class T, class Team, class Numbers>
__device__ KeyRange range_of(const Team& team, const Numbers& numbers) {
  KeyRange range{~0u, 0};
  numbers.visit(team, [&](float x, float) {
    range.low = min(range.low, key_of<T>(x));
    range.high = max(range.high, key_of<T>(x));
  });
  return KeyRange{team.min(range.low), team.max(range.high)};
}

// Key of the k-th largest of at least k numbers.
template <class T, class Team, class Numbers>
__device__ uint32_t kth_largest(const Team& team, const Numbers& numbers, const KeyRange& range,
                                                int k) {
  return largest_key(range.low, range.high, [&](uint32_t key) {
    int count = 0;
    numbers.visit(team, [&](float x, float weight) { count += key_of<T>(x) >= key ? int(weight) : 0; });
    return team.sum(count) >= k;
  });
}

// ---- the k largest of a stream that a warp reads ----

constexpr int kSelectUnroll = 4;                    // vectors that a lane looks at together
constexpr int kSelectTile = 32 * kSelectUnroll;     // and a warp: a tile

// What a lane holds of a tile: every 32nd vector.
struct LaneVectors {
  uint4 vectors[kSelectUnroll];
};

// Of a tile in shared memory that has `size` vectors; -infinity beyond them.
template <class T>
__device__ __forceinline__ LaneVectors lane_vectors(const uint4* tile, int size) {
  LaneVectors held;
#pragma unroll
  for (int u = 0; u < kSelectUnroll; ++u) {
    held.vectors[u] = lane_id() + 32 * u < size ? tile[lane_id() + 32 * u] : lowest_vector<T>();
  }
  return held;
}

// Largest numbers at each place of the vectors.
template <class T>
__device__ __forceinline__ uint4 maxima_of(const LaneVectors& held) {
  uint4 most = held.vectors[0];
#pragma unroll
  for (int u = 1; u < kSelectUnroll; ++u) most = larger<T>(most, held.vectors[u]);
  return most;
}

// Bit i: whether number i of the lane is at least the threshold, which a T can hold. A word of 32 bits has number w, its
// place among the lane's words, and, of 16-bit numbers, number w + 16 in its upper half. NaNs may be marked.
template <class T>
__device__ __forceinline__ uint32_t reaching(const LaneVectors& held, float threshold) {
  constexpr int kWords = 4 * kSelectUnroll;
  static_assert(kWords == 16, "marks of 16-bit numbers are the bits of a word");
  uint32_t marks = 0;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      marks |= uint32_t(element<T>(held.vectors[w / 4], w % 4) >= threshold) << w;
    }
    return marks;
  } else {
    // By the sign of the difference. -0 stands for both zeros: what equals it has the difference +0. -infinity less
    // itself is a positive NaN.
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    const T one = threshold == 0.0f ? T(-0.0f) : T(threshold);
    const Pair both{one, one};
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t word = word_of(held.vectors[w / 4], w % 4);
      const Pair difference = __hsub2(reinterpret_cast<const Pair&>(word), both);
      marks = marks >> 1 | (reinterpret_cast<const uint32_t&>(difference) & 0x80008000u);
    }
    return ~marks;
  }
}

// Number i of the lane, as reaching() counts, read from the tile.
template <class T>
__device__ __forceinline__ float number_of_tile(const uint4* tile, int i) {
  const int w = i % 16, word = (lane_id() + w / 4 * 32) * 4 + w % 4;
  if constexpr (sizeof(T) == 4) return reinterpret_cast<const float*>(tile)[word];
  return float(reinterpret_cast<const T*>(tile)[2 * word + i / 16]);
}

// The k largest numbers of a stream: begin(), add() each tile, end(). Then `count`, fewer than k, lie in `kept` from
// place 1 on, above the threshold, which is the k-th largest, and `*weight` numbers equal it. If fewer than k have been
// added, the threshold is the least of them or less.
//
// Until then `kept` has what was above the threshold when it was added, and a lane's `equals` counts what equals the
// threshold and is not kept. The threshold rises with the maxima at each place of the vectors of all lanes, since k of
// these reach the k-th largest of them. It is looked for again each time that the stream has become twice as long, so
// that few numbers are ever looked at one by one.
//
// k is at most 32 * kPerVector<T>, the number of maxima, and k + 64 at most kCapacity, the length of `kept`.
template <class T, int kCapacity>
struct StreamSelect {
  float* kept = nullptr;    // in shared memory
  float* weight = nullptr;  // of the threshold; in shared memory
  int k = 0;
  float threshold = 0.0f;
  int count = 0, equals = 0, tiles = 0;
  uint4 maxima{};

  __device__ void begin() {
    count = equals = tiles = 0;
    maxima = lowest_vector<T>();
    threshold = -kInfinity;
  }

  // `tile` holds, in shared memory, what the lanes hold; beyond its end it is not read.
  __device__ void add(const LaneVectors& held, const uint4* tile) {
    maxima = larger<T>(maxima, maxima_of<T>(held));
    if (tiles == 0) bound();
    uint32_t marks = reaching<T>(held, threshold);
    while (__any_sync(kAllLanes, marks != 0)) {
      const int number = __ffs(marks) - 1;
      append(number < 0 ? -kInfinity : number_of_tile<T>(tile, number), number >= 0);
      marks &= marks - 1;
      if (count + 32 >= kCapacity) select();
    }
    ++tiles;
    if (tiles > 1 && (tiles & (tiles - 1)) == 0) bound();
  }

  __device__ void end() {
    select();
    const int all = Warp().sum(equals);
    if (lane_id() == 0) *weight = float(all);
    __syncwarp();
  }

 private:
  // The threshold is at least the k-th largest of the maxima: k numbers are not less.
  __device__ void bound() {
    uint32_t keys[kPerVector<T>], low = ~0u, high = 0;
#pragma unroll
    for (int e = 0; e < kPerVector<T>; ++e) {
      keys[e] = key_of<T>(element<T>(maxima, e));
      low = min(low, keys[e]);
      high = max(high, keys[e]);
    }
    const uint32_t key = largest_key(Warp().min(low), Warp().max(high), [&](uint32_t key) {
      int reached = 0;
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) reached += keys[e] >= key;
      return Warp().sum(reached) >= k;
    });
    if (key <= key_of<T>(threshold)) return;
    threshold = value_of<T>(key);
    equals = 0;
  }

  // Keeps those of x, one a lane where it exists, that are above the threshold, and counts those that equal it.
  __device__ void append(float x, bool exists) {
    const unsigned above = __ballot_sync(kAllLanes, x > threshold);
    if (x > threshold) kept[1 + count + lanes_before(above)] = x;
    equals += exists && x == threshold;
    count += __popc(above);
  }

  // Makes the k-th largest so far the threshold and drops what is less.
  __device__ void select() {
    const int of_threshold = Warp().sum(equals);
    const float before = threshold;
    if (lane_id() == 0) {
      kept[0] = threshold;
      *weight = float(of_threshold);
    }
    __syncwarp();
    const List list{kept, count + 1, weight, 1};
    threshold = value_of<T>(kth_largest<T>(Warp(), list, range_of<T>(Warp(), list), k));
    const int end = count + 1;
    count = 0;
    equals = lane_id() == 0 && threshold == before ? of_threshold : 0;
    for (int i = 1; i < end; i += 32) {
      const int at = i + lane_id();
      const float x = at < end ? kept[at] : -kInfinity;
      __syncwarp();
      append(x, at < end);
    }
    __syncwarp();
  }
};

}  // namespace pkb
