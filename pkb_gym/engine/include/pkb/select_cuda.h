// The k largest of many numbers, without sorting: the k-th largest is found by bisecting the keys of floating-point
// numbers, and the k largest of a stream by keeping what is above the best bound known.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

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

// Reads kUnroll vectors a lane at a time, -infinity beyond the end, and calls visit(vectors). Called by a warp.
template <class T, int kUnroll, class Visit>
__device__ void for_vectors(const uint4* vectors, int size, Visit visit) {
  for (int base = lane_id(); base - lane_id() < size; base += 32 * kUnroll) {
    uint4 some[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) some[u] = base + 32 * u < size ? vectors[base + 32 * u] : lowest_vector<T>();
    visit(some);
  }
}

constexpr int kSelectUnroll = 4;

// Largest numbers at each place of the vectors that are this lane's.
template <class T>
__device__ uint4 lane_maxima(const uint4* vectors, int size) {
  uint4 most = lowest_vector<T>();
  for_vectors<T, kSelectUnroll>(vectors, size, [&](const uint4(&some)[kSelectUnroll]) {
#pragma unroll
    for (int u = 0; u < kSelectUnroll; ++u) most = larger<T>(most, some[u]);
  });
  return most;
}

// The k largest numbers of a stream seen so far: `count` in `kept` that are above the threshold, and `equals` (a number
// for each lane) that equal it. begin() with the first vectors sets a threshold that k of them reach; they, and those
// that follow, are then given to add(); after end(), fewer than k are above the threshold, the k-th largest, and
// `equals` is of all lanes. kCapacity is the length of `kept`; k is at most 32 * kPerVector<T>, the number of maxima of
// lanes, and 2 * k + 64 + 32 * kPerVector<T> at most kCapacity.
template <class T, int kCapacity>
struct StreamSelect {
  float* kept;  // in shared memory
  int k;
  float threshold = 0.0f;
  int count = 0, equals = 0;

  __device__ void begin(const uint4* vectors, int size) {
    count = equals = 0;
    threshold = value_of<T>(key_of_threshold(lane_maxima<T>(vectors, size)));
  }

  __device__ void add(const uint4* vectors, int size) {
    for_vectors<T, kSelectUnroll>(vectors, size, [&](const uint4(&some)[kSelectUnroll]) {
      float most[kSelectUnroll], of_all = -kInfinity;
#pragma unroll
      for (int u = 0; u < kSelectUnroll; ++u) of_all = fmaxf(of_all, most[u] = largest<T>(some[u]));
      if (!__any_sync(kAllLanes, of_all >= threshold)) return;
#pragma unroll
      for (int u = 0; u < kSelectUnroll; ++u) {
        if (__any_sync(kAllLanes, most[u] >= threshold)) keep(some[u]);
      }
    });
    if (count > 2 * k + 64) raise_threshold();
  }

  __device__ void end() {
    if (count >= k) raise_threshold();
    equals = Warp().sum(equals);
    __syncwarp();
  }

 private:
  // The k-th largest of the lanes' maxima: at least k numbers are not less.
  __device__ uint32_t key_of_threshold(const uint4& maxima) const {
    uint32_t keys[kPerVector<T>], low = ~0u, high = 0;
#pragma unroll
    for (int e = 0; e < kPerVector<T>; ++e) {
      keys[e] = key_of<T>(element<T>(maxima, e));
      low = min(low, keys[e]);
      high = max(high, keys[e]);
    }
    return largest_key(Warp().min(low), Warp().max(high), [&](uint32_t key) {
      int reached = 0;
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) reached += keys[e] >= key;
      return Warp().sum(reached) >= k;
    });
  }

  // Appends those of x, one a lane where it exists, that are above the threshold, and counts those that equal it.
  __device__ void append(float x, bool exists) {
    const unsigned above = __ballot_sync(kAllLanes, x > threshold);
    if (x > threshold) kept[count + lanes_before(above)] = x;
    equals += exists && x == threshold;
    count += __popc(above);
  }

  __device__ void keep(const uint4& vector) {
    if (count + 32 * kPerVector<T> > kCapacity) raise_threshold();
#pragma unroll
    for (int e = 0; e < kPerVector<T>; ++e) append(element<T>(vector, e), true);
  }

  // Makes the k-th largest of those kept, k or more, the threshold.
  __device__ void raise_threshold() {
    __syncwarp();
    const List list{kept, count};
    const Warp warp;
    threshold = value_of<T>(kth_largest<T>(warp, list, range_of<T>(warp, list), k));
    const int before = count;
    count = equals = 0;
    for (int i = 0; i < before; i += 32) {
      const int at = i + lane_id();
      const float x = at < before ? kept[at] : -kInfinity;
      __syncwarp();
      append(x, at < before);
    }
    __syncwarp();
  }
};

}  // namespace pkb
