// VocabParallelLogProb: logits stay where they are; every rank boils its shard of a row down to what the filter needs.
//
// What moves: a warp streams a rank's shard of a token through shared memory and keeps its k largest logits, with the
// number of those that equal the k-th (without filters, the largest logit and the sum of exponentials). This summary
// goes to the token's owner, which joins the W summaries, cuts the tail, and writes the log-probability to every rank's
// output. Each 8-byte word of a summary carries the number of the exchange, so that its reader needs no other signal.
// The bound is reading the logits from device memory once.
//
// Top-p alone needs whole rows, and small problems are sooner read than summarised: then a block gathers a row from all
// ranks and filters it by itself. No row is ever sorted: borders are found by bisecting the keys of floating-point
// numbers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr float kInfinity = __builtin_inff();

constexpr int kScanWarps = 8, kScanThreads = 32 * kScanWarps;
constexpr int kStages = 3, kStageVectors = 512;  // tiles on their way, and vectors of 16 bytes in one
constexpr int kUnroll = 4;                       // vectors of a tile that a lane looks at together
constexpr int kMaxK = 128;                       // half as many as the maxima that bound the k-th largest
constexpr int kCandidates = 768;                 // logits that a warp keeps at most

constexpr int64_t kBytesToSummarise = 1 << 20;   // a rank's logits from which summaries pay
constexpr int kSmallRow = 2048, kRowThreads = 512;
constexpr int64_t kRowBytesInShared = 200 << 10;

// ---- Numbers ----

template <typename T>
constexpr int kPerVector = sizeof(uint4) / sizeof(T);

// Low bits of a float that a T leaves zero.
template <typename T>
constexpr int kSpareBits = 0;
template <>
constexpr int kSpareBits<__nv_bfloat16> = 16;
template <>
constexpr int kSpareBits<__half> = 13;

// Keys are ordered as the numbers; both zeros have one key.
template <typename T>
__device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits >> 31 ? ~bits : bits | 1u << 31) >> kSpareBits<T>;
}

template <typename T>
__device__ float value_of(uint32_t key) {
  const uint32_t bits = key << kSpareBits<T>;
  return __uint_as_float(bits >> 31 ? bits ^ 1u << 31 : ~(bits | ((1u << kSpareBits<T>)-1)));
}

__device__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// One of the numbers in a vector; the index is known when it is compiled.
template <typename T>
__device__ float element(const uint4& v, int i) {
  if constexpr (sizeof(T) == 4) return __uint_as_float(word_of(v, i));
  const auto half_word = uint16_t(word_of(v, i / 2) >> (i % 2 * 16));
  if constexpr (kSpareBits<T> == 16) return __uint_as_float(uint32_t(half_word) << 16);
  return __half2float(__ushort_as_half(half_word));
}

// The larger numbers of two words.
template <typename T>
__device__ uint32_t larger(uint32_t a, uint32_t b) {
  uint32_t most;
  if constexpr (kSpareBits<T> == 16) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  } else if constexpr (kSpareBits<T> == 13) {
    asm("max.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  } else {
    most = __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  }
  return most;
}

template <typename T>
__device__ float largest(const uint4& v) {
  const uint32_t most = larger<T>(larger<T>(v.x, v.y), larger<T>(v.z, v.w));
  const uint4 both{most, 0, 0, 0};
  if constexpr (sizeof(T) == 4) return element<T>(both, 0);
  return fmaxf(element<T>(both, 0), element<T>(both, 1));
}

template <typename T>
__device__ uint4 lowest_vector() {
  const uint32_t word = sizeof(T) == 4 ? 0xff800000u : kSpareBits<T> == 16 ? 0xff80ff80u : 0xfc00fc00u;
  return uint4{word, word, word, word};
}

// Largest key up to `high` for which `holds`; it does for `low` and for all that are less than one for which it does.
template <typename Holds>
__device__ uint32_t largest_key(uint32_t low, uint32_t high, Holds holds) {
  const int differing = 32 - __clz(low ^ high);  // the bits above are common to all keys in between
  uint32_t key = differing == 32 ? 0 : high >> differing << differing;
  for (int bit = differing - 1; bit >= 0; --bit) {
    const uint32_t next = key | 1u << bit;
    if (next <= high && holds(next)) key = next;
  }
  return key;
}

// ---- Teams: threads that reduce together; each of them gets the result ----

struct Warp {
  __device__ int thread() const { return threadIdx.x % 32; }
  __device__ int threads() const { return 32; }
  __device__ int sum(int x) const { return __reduce_add_sync(kAllLanes, x); }
  __device__ uint32_t min(uint32_t x) const { return __reduce_min_sync(kAllLanes, x); }
  __device__ uint32_t max(uint32_t x) const { return __reduce_max_sync(kAllLanes, x); }
  __device__ float sum(float x) const {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(kAllLanes, x, apart);
    return x;
  }
};

struct Block {
  __device__ int thread() const { return threadIdx.x; }
  __device__ int threads() const { return blockDim.x; }
  __device__ int sum(int x) const { return reduce(Warp().sum(x), 0, [](int a) { return Warp().sum(a); }); }
  __device__ float sum(float x) const { return reduce(Warp().sum(x), 0.0f, [](float a) { return Warp().sum(a); }); }
  __device__ uint32_t min(uint32_t x) const {
    return reduce(Warp().min(x), ~0u, [](uint32_t a) { return Warp().min(a); });
  }
  __device__ uint32_t max(uint32_t x) const {
    return reduce(Warp().max(x), 0u, [](uint32_t a) { return Warp().max(a); });
  }

 private:
  template <typename X, typename OfWarp>
  __device__ static X reduce(X of_own_warp, X neutral, OfWarp of_warp) {
    if (blockDim.x == 32) return of_own_warp;
    __shared__ X of_warps[kRowThreads / 32];
    const int lane = threadIdx.x % 32;
    __syncthreads();  // the last result has been read
    if (lane == 0) of_warps[threadIdx.x / 32] = of_own_warp;
    __syncthreads();
    return of_warp(lane < int(blockDim.x) / 32 ? of_warps[lane] : neutral);
  }
};

// ---- The filter ----

// What of a row matters: logits, each of them once, but for the first `weighted` of them.
struct List {
  const float* values;
  int size;
  const float* weights = nullptr;
  int weighted = 0;

  template <typename Team, typename Visit>
  __device__ void visit(const Team& team, Visit visit) const {
    for (int i = team.thread(); i < size; i += team.threads()) visit(values[i], i < weighted ? weights[i] : 1.0f);
  }
};

// A whole row.
template <typename T>
struct Row {
  const uint4* vectors;
  int size;

  template <typename Team, typename Visit>
  __device__ void visit(const Team& team, Visit visit) const {
    for (int i = team.thread(); i < size; i += team.threads()) {
      const uint4 vector = vectors[i];
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) visit(element<T>(vector, e), 1.0f);
    }
  }
};

struct Filters {
  int k;       // 0: off
  float tail;  // mass that top-p may leave out
  bool has_p;
};

struct Range {
  uint32_t low, high;  // least and largest key
};

template <typename T, typename Team, typename Logits>
__device__ Range range_of(const Team& team, const Logits& logits) {
  Range range{~0u, 0};
  logits.visit(team, [&](float x, float) {
    range.low = min(range.low, key_of<T>(x));
    range.high = max(range.high, key_of<T>(x));
  });
  return Range{team.min(range.low), team.max(range.high)};
}

// Key of the k-th largest of at least k logits.
template <typename T, typename Team, typename Logits>
__device__ uint32_t kth_largest(const Team& team, const Logits& logits, const Range& range, int k) {
  return largest_key(range.low, range.high, [&](uint32_t key) {
    int count = 0;
    logits.visit(team, [&](float x, float weight) { count += key_of<T>(x) >= key ? int(weight) : 0; });
    return team.sum(count) >= k;
  });
}

// The log-probability of a token that has logit `own`. Top-p leaves out the least logits, as long as their mass is at
// most the tail; of equal ones at this border some may go, and a target among them is taken for one that stays.
template <typename T, typename Team, typename Logits>
__device__ float log_prob(const Team& team, const Logits& logits, float own, const Filters& filters) {
  const Range range = range_of<T>(team, logits);
  const float most = value_of<T>(range.high);
  // Mass of the logits with from <= key < to.
  const auto mass_of = [&](uint32_t from, uint32_t to) {
    float mass = 0;
    logits.visit(team, [&](float x, float weight) {
      const uint32_t key = key_of<T>(x);
      if (key >= from && key < to) mass += weight * __expf(x - most);
    });
    return team.sum(mass);
  };

  uint32_t border = filters.k > 0 ? kth_largest<T>(team, logits, range, filters.k) : 0;
  float mass = mass_of(border, ~0u);
  if (filters.has_p) {
    const float allowed = filters.tail * mass;
    const uint32_t least = border;
    border = largest_key(max(least, range.low), range.high,
                         [&](uint32_t key) { return mass_of(least, key) <= allowed; });
    int equals = 0;
    logits.visit(team, [&](float x, float weight) { equals += key_of<T>(x) == border ? int(weight) : 0; });
    equals = team.sum(equals);
    const float each = __expf(value_of<T>(border) - most);
    const float out = floorf((allowed - mass_of(least, border)) / each);
    const float stay = equals - fmaxf(0.0f, fminf(out, equals - 1.0f));  // the largest logit always stays
    mass = mass_of(border + 1, ~0u) + stay * each;
  }
  return key_of<T>(own) < border ? -kInfinity : own - most - logf(mass);
}

// ---- The call ----

template <typename T>
struct Globals {
  const T* logits;  // this rank's shard; peers' lie at the same offset
  const int64_t* target;
  float* logprobs;
  int64_t tokens, group;
  int shard;  // Vl
  Filters filters;
};

template <typename T>
__device__ float logit_of(const Globals<T>& g, const pkb::Device& comm, int64_t token, int64_t id) {
  if (id < 0 || id >= int64_t(g.shard) * comm.group_size(g.group)) return __int_as_float(0x7fffffff);
  const T* owners = comm.peer(g.logits, comm.group_member(g.group, int(id / g.shard)));
  return float(owners[token * g.shard + id % g.shard]);
}

template <typename T>
__device__ void write_everywhere(const Globals<T>& g, const pkb::Device& comm, int64_t token, float result,
                                 int thread) {
  if (thread < comm.group_size(g.group)) *comm.peer(g.logprobs + token, comm.group_member(g.group, thread)) = result;
}

// ---- Whole rows ----

// Copies a token's logits from all ranks, as units of type Unit.
template <typename Unit, typename T>
__device__ void copy_pieces(const Globals<T>& g, const pkb::Device& comm, int64_t token, T* row) {
  const int units = g.shard * int(sizeof(T)) / int(sizeof(Unit));  // of a rank
  for (int i = threadIdx.x; i < units * comm.group_size(g.group); i += blockDim.x) {
    const T* piece = comm.peer(g.logits, comm.group_member(g.group, i / units)) + token * g.shard;
    reinterpret_cast<Unit*>(row)[i] = reinterpret_cast<const Unit*>(piece)[i % units];
  }
}

// Gathers a token's logits and fills the last vector up; returns the number of vectors.
template <typename T>
__device__ int gather_row(const Globals<T>& g, const pkb::Device& comm, int64_t token, T* row) {
  if (g.shard % kPerVector<T> == 0) copy_pieces<uint4>(g, comm, token, row);
  else copy_pieces<T>(g, comm, token, row);
  const int V = g.shard * comm.group_size(g.group), vectors = (V + kPerVector<T> - 1) / kPerVector<T>;
  for (int i = V + threadIdx.x; i < vectors * kPerVector<T>; i += blockDim.x) row[i] = T(-kInfinity);
  return vectors;
}

// Rank r does tokens [r * T / W, (r + 1) * T / W), a row at a time a block. Rows lie in shared memory, or in `memory`.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, 2) filter_rows(const Globals<T> g, const pkb::Device comm,
                                                              char* memory, int64_t row_bytes) {
  extern __shared__ uint4 shared[];
  T* row = reinterpret_cast<T*>(memory ? memory + blockIdx.x * row_bytes : reinterpret_cast<char*>(shared));
  const int64_t tokens = g.tokens / comm.group_size(g.group), first = comm.group_rank(g.group) * tokens;
  for (int64_t i = blockIdx.x; i < tokens; i += gridDim.x) {
    const int64_t token = first + i;
    const float own = logit_of(g, comm, token, g.target[token]);
    __syncthreads();
    const int vectors = gather_row(g, comm, token, row);
    __syncthreads();
    const Row<T> logits{reinterpret_cast<const uint4*>(row), vectors};
    write_everywhere(g, comm, token, log_prob<T>(Block(), logits, own, g.filters), threadIdx.x);
  }
}

// ---- Streaming a shard ----

__device__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// The tiles of a warp's rows, in turn, kStages of them on their way at a time. All lanes call everything.
template <typename T>
struct Tiles {
  const Globals<T>& g;
  uint4* stages;
  uint64_t* arrived;  // a barrier for each stage
  int64_t token, step;  // of the next row to be fetched, and between rows
  int per_row;
  int tile = 0, fetched = 0, taken = 0;

  // Vectors that a token's logits lie in. They may begin and end within one, since rows need not be aligned.
  struct Span {
    int64_t begin;
    int size, skipped;  // skipped: numbers in front of the row
  };
  __device__ Span span(int64_t token) const {
    const int64_t first = token * g.shard;
    const int skipped = int(first % kPerVector<T>);
    return Span{first / kPerVector<T>, (skipped + g.shard + kPerVector<T> - 1) / kPerVector<T>, skipped};
  }
  __device__ int begin_of(const Span& row, int tile) const { return int(int64_t(row.size) * tile / per_row); }

  __device__ void begin() {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kStages; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived + i)) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    for (int i = 0; i < kStages; ++i) fetch();
  }

  // Begins the copy of the next tile, if there is one, to the stage that was given back longest ago.
  __device__ void fetch() {
    if (token >= g.tokens) return;
    if (threadIdx.x % 32 == 0) {
      const Span row = span(token);
      const int begin = begin_of(row, tile), bytes = (begin_of(row, tile + 1) - begin) * int(sizeof(uint4));
      const int stage = fetched % kStages;
      const uint32_t barrier = shared_address(arrived + stage);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              shared_address(stages + stage * kStageVectors)),
          "l"(reinterpret_cast<const uint4*>(g.logits) + row.begin + begin), "r"(bytes), "r"(barrier)
          : "memory");
    }
    ++fetched;
    if (++tile == per_row) {
      tile = 0;
      token += step;
    }
  }

  struct Tile {
    const uint4* vectors;
    int size;
  };

  // Waits for tile `tile` of the row of `token`, which is the next one. What is not of the row becomes -infinity.
  __device__ Tile take(int64_t token, int tile) {
    const int stage = taken % kStages, parity = taken / kStages % 2;
    const uint32_t barrier = shared_address(arrived + stage);
    asm volatile(
        "{\n"
        ".reg .pred arrived;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], %1;\n"
        "@!arrived bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
    ++taken;
    const Span row = span(token);
    uint4* vectors = stages + stage * kStageVectors;
    const int size = begin_of(row, tile + 1) - begin_of(row, tile);
    if (g.shard % kPerVector<T>) {
      auto* numbers = reinterpret_cast<T*>(vectors);
      const int lane = threadIdx.x % 32, used = (row.skipped + g.shard - 1) % kPerVector<T> + 1;
      if (tile == 0 && lane < row.skipped) numbers[lane] = T(-kInfinity);
      if (tile == per_row - 1 && lane >= used && lane < kPerVector<T>) {
        numbers[(size - 1) * kPerVector<T> + lane] = T(-kInfinity);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // before the stage is filled again
      __syncwarp();
    }
    return Tile{vectors, size};
  }

  // The tile taken last has been read.
  __device__ void give_back() {
    __syncwarp();
    fetch();
  }
};

// Reads kUnroll vectors a lane at a time, -infinity beyond the end, and calls visit(vectors).
template <typename T, typename Visit>
__device__ void for_vectors(const uint4* vectors, int size, Visit visit) {
  for (int base = threadIdx.x % 32; base - int(threadIdx.x % 32) < size; base += 32 * kUnroll) {
    uint4 some[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) some[u] = base + 32 * u < size ? vectors[base + 32 * u] : lowest_vector<T>();
    visit(some);
  }
}

// Largest numbers at each place of the vectors that are this lane's.
template <typename T>
__device__ uint4 lane_maxima(const uint4* vectors, int size) {
  uint4 most = lowest_vector<T>();
  for_vectors<T>(vectors, size, [&](const uint4(&some)[kUnroll]) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      most.x = larger<T>(most.x, some[u].x);
      most.y = larger<T>(most.y, some[u].y);
      most.z = larger<T>(most.z, some[u].z);
      most.w = larger<T>(most.w, some[u].w);
    }
  });
  return most;
}

// ---- Summaries ----

// The k largest logits of a shard seen so far: `count` in `kept` that are above the threshold, and `equals` (a number
// for each lane) that equal it. A summary is the threshold, what is above it, and how many equal it.
template <typename T>
struct Largest {
  float* kept;
  int k;
  float threshold = 0.0f;
  int count = 0, equals = 0;

  __device__ int entries() const { return k; }
  __device__ float entry(int i) const { return i == 0 ? threshold : i <= count ? kept[i - 1] : -kInfinity; }
  __device__ float weight() const { return float(equals); }

  __device__ void begin(const uint4* vectors, int size) {
    count = equals = 0;
    threshold = value_of<T>(key_of_threshold(lane_maxima<T>(vectors, size)));
  }

  __device__ void add(const uint4* vectors, int size) {
    for_vectors<T>(vectors, size, [&](const uint4(&some)[kUnroll]) {
      float most[kUnroll], of_all = -kInfinity;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) of_all = fmaxf(of_all, most[u] = largest<T>(some[u]));
      if (!__any_sync(kAllLanes, of_all >= threshold)) return;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (__any_sync(kAllLanes, most[u] >= threshold)) keep(some[u]);
      }
    });
    if (count > 2 * k + 64) raise_threshold();
  }

  // Afterwards fewer than k are above the threshold.
  __device__ void end() {
    if (count >= k) raise_threshold();
    equals = Warp().sum(equals);
    __syncwarp();
  }

 private:
  // The k-th largest of the lanes' maxima: at least k logits are not less.
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

  __device__ void keep(const uint4& vector) {
    if (count + 32 * kPerVector<T> > kCandidates) raise_threshold();
    const unsigned lanes_before = (1u << threadIdx.x % 32) - 1;
#pragma unroll
    for (int e = 0; e < kPerVector<T>; ++e) {
      const float x = element<T>(vector, e);
      const unsigned above = __ballot_sync(kAllLanes, x > threshold);
      if (x > threshold) kept[count + __popc(above & lanes_before)] = x;
      equals += x == threshold;
      count += __popc(above);
    }
  }

  // Makes the k-th largest of those kept, k or more, the threshold.
  __device__ void raise_threshold() {
    __syncwarp();
    const List list{kept, count};
    const Warp warp;
    threshold = value_of<T>(kth_largest<T>(warp, list, range_of<T>(warp, list), k));
    const unsigned lanes_before = (1u << threadIdx.x % 32) - 1;
    const int before = count;
    count = equals = 0;
    for (int i = 0; i < before; i += 32) {
      const int at = i + int(threadIdx.x % 32);
      const float x = at < before ? kept[at] : -kInfinity;
      const unsigned above = __ballot_sync(kAllLanes, x > threshold);
      __syncwarp();
      if (x > threshold) kept[count + __popc(above & lanes_before)] = x;
      equals += at < before && x == threshold;
      count += __popc(above);
    }
    __syncwarp();
  }
};

// Without filters: a single logit, the largest, that counts as often as makes up for all.
template <typename T>
struct Mass {
  float most = -kInfinity, sum = 0.0f;

  __device__ int entries() const { return 1; }
  __device__ float entry(int) const { return most; }
  __device__ float weight() const { return sum; }

  __device__ void begin(const uint4*, int) { *this = Mass{}; }

  __device__ void add(const uint4* vectors, int size) {
    const float of_lane = largest<T>(lane_maxima<T>(vectors, size));
    const float now = value_of<T>(Warp().max(max(key_of<T>(of_lane), key_of<T>(most))));
    if (now == -kInfinity) return;
    sum *= __expf(most - now);
    most = now;
    for_vectors<T>(vectors, size, [&](const uint4(&some)[kUnroll]) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int e = 0; e < kPerVector<T>; ++e) sum += __expf(element<T>(some[u], e) - most);
      }
    });
  }

  __device__ void end() { sum = Warp().sum(sum); }
};

// ---- Exchange ----

// Where summaries lie: for each of its tokens an owner has one from every rank, of entries + 1 words. A word is a float
// and the number of the exchange.
struct Exchange {
  uint64_t* words;
  uint32_t number;

  __device__ uint64_t* of(int64_t token, int W, int rank, int entries) const {
    return words + (token / W * W + rank) * (entries + 1);
  }

  // One 8-byte store or load is never torn, and nothing else hangs on it: relaxed order is enough.
  __device__ void store(uint64_t* to, float value) const {
    const uint64_t word = uint64_t(number) << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
  }
  __device__ float wait_and_load(const uint64_t* from) const {
    uint64_t word;
    do {
      asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    } while (uint32_t(word >> 32) != number);
    return __uint_as_float(uint32_t(word));
  }
};

template <typename Summary>
__device__ void send(const Summary& summary, const Exchange& exchange, const pkb::Device& comm, int64_t group,
                     int64_t token, int owner) {
  const int entries = summary.entries(), lane = threadIdx.x % 32;
  uint64_t* to = exchange.of(token, comm.group_size(group), comm.group_rank(group), entries);
  to = comm.peer(to, comm.group_member(group, owner));
  for (int i = lane; i <= entries; i += 32) exchange.store(to + i, i < entries ? summary.entry(i) : summary.weight());
  __syncwarp();
}

// Joins the summaries of a token that this rank owns. Their first entries, which have weights, come first.
template <typename T>
__device__ void join(const Globals<T>& g, const Exchange& exchange, const pkb::Device& comm, int64_t token, int entries,
                     float own, float* values, float* weights) {
  const int W = comm.group_size(g.group), lane = threadIdx.x % 32;
  const uint64_t* from = exchange.of(token, W, 0, entries);
  for (int i = lane; i < W * (entries + 1); i += 32) {
    const int w = i / (entries + 1), entry = i % (entries + 1);
    const float value = exchange.wait_and_load(from + i);
    if (entry == 0) values[w] = value;
    else if (entry == entries) weights[w] = value;
    else values[W + w * (entries - 1) + entry - 1] = value;
  }
  __syncwarp();
  const float result = log_prob<T>(Warp(), List{values, W * entries, weights, W}, own, g.filters);
  write_everywhere(g, comm, token, result, lane);
  __syncwarp();
}

struct WarpMemory {
  uint4 stages[kStages * kStageVectors];
  float values[kCandidates];
  float weights[pkb::kMaxRanks];
  uint64_t arrived[kStages];
};

// A warp has the same rows on all ranks; their owners are the ranks in turn. It joins a row's summaries after it has
// sent the next row's, so that they have time to arrive.
template <typename T, typename Summary>
__global__ void __launch_bounds__(kScanThreads, 1) scan_shards(const Globals<T> g, const pkb::Device comm,
                                                               const Exchange exchange, int tiles) {
  extern __shared__ uint4 shared[];
  WarpMemory& memory = reinterpret_cast<WarpMemory*>(shared)[threadIdx.x / 32];
  const int W = comm.group_size(g.group), rank = comm.group_rank(g.group);
  const int64_t warps = int64_t(gridDim.x) * kScanWarps, warp = int64_t(blockIdx.x) * kScanWarps + threadIdx.x / 32;

  Summary summary{};
  if constexpr (std::is_same_v<Summary, Largest<T>>) {
    summary.kept = memory.values;
    summary.k = g.filters.k;
  }
  Tiles<T> feed{g, memory.stages, memory.arrived, warp, warps, tiles};
  feed.begin();

  int64_t pending = -1;  // the row to be joined, and its target's logit
  float pending_logit = 0;
  int round = 0;
  for (int64_t token = warp; token < g.tokens; token += warps, ++round) {
    const int64_t target = g.target[token];
    for (int tile = 0; tile < tiles; ++tile) {
      const auto now = feed.take(token, tile);
      if (tile == 0) summary.begin(now.vectors, now.size);
      summary.add(now.vectors, now.size);
      feed.give_back();
    }
    summary.end();
    const int owner = int((warp + round) % W);
    send(summary, exchange, comm, g.group, token, owner);
    if (pending >= 0) {
      join(g, exchange, comm, pending, summary.entries(), pending_logit, memory.values, memory.weights);
    }
    pending = owner == rank ? token : -1;
    if (owner == rank) pending_logit = logit_of(g, comm, token, target);
  }
  if (pending >= 0) {
    join(g, exchange, comm, pending, summary.entries(), pending_logit, memory.values, memory.weights);
  }
}

// ---- Host ----

int multiprocessors() {
  static const int count = [] {
    int device = 0, found = 0;
    PKB_CUDA(cudaGetDevice(&device));
    PKB_CUDA(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device));
    return found;
  }();
  return count;
}

// Number of the exchange that begins; calls without one do not count, so that no rank is ever two ahead of another.
uint32_t next_exchange() {
  static uint32_t number = 0;
  return ++number;
}

template <typename T>
void launch_rows(const Globals<T>& g, int W, const pkb::Comm& comm) {
  static const bool asked = [] {
    PKB_CUDA(cudaFuncSetAttribute(filter_rows<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kRowBytesInShared)));
    return true;
  }();
  (void)asked;
  const int64_t V = int64_t(W) * g.shard, row_bytes = (V * int64_t(sizeof(T)) + 255) / 256 * 256;
  const int threads = V <= kSmallRow ? 32 : kRowThreads;
  int64_t blocks = g.tokens / W;
  char* memory = nullptr;
  if (row_bytes > kRowBytesInShared) {
    const uint64_t half = comm.scratch_bytes / 512 * 256;  // the other half holds summaries
    blocks = std::min({blocks, int64_t(half) / row_bytes, int64_t(2 * multiprocessors())});
    if (blocks == 0) TVM_FFI_THROW(ValueError) << "a row of " << row_bytes << " bytes does not fit into scratch";
    memory = comm.scratch<char>(half);
  }
  filter_rows<T><<<unsigned(std::min<int64_t>(blocks, 1 << 20)), threads, memory ? 0 : row_bytes, comm.cuda_stream()>>>(
      g, comm.device(), memory, row_bytes);
  PKB_CUDA_LAUNCHED();
}

template <typename T, typename Summary>
void launch_scan(const Globals<T>& g, const pkb::Comm& comm) {
  constexpr int kSharedBytes = kScanWarps * sizeof(WarpMemory);
  static const bool asked = [] {
    PKB_CUDA(cudaFuncSetAttribute(scan_shards<T, Summary>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    return true;
  }();
  (void)asked;
  const int most_vectors = (g.shard + kPerVector<T> - 1) / kPerVector<T> + (g.shard % kPerVector<T> ? 1 : 0);
  const int tiles = (most_vectors + kStageVectors - 1) / kStageVectors;
  const uint32_t number = next_exchange();
  const Exchange exchange{comm.scratch<uint64_t>(number % 2 * (comm.scratch_bytes / 1024 * 256)), number};
  // All blocks are resident together on every rank, since they wait for each other.
  const int64_t blocks = std::min<int64_t>(multiprocessors(), (g.tokens + kScanWarps - 1) / kScanWarps);
  scan_shards<T, Summary><<<unsigned(blocks), kScanThreads, kSharedBytes, comm.cuda_stream()>>>(
      g, comm.device(), exchange, tiles);
  PKB_CUDA_LAUNCHED();
}

// A quarter of scratch is for the summaries of one exchange, and ranks divide a block's warps.
template <typename T>
bool summaries_pay(const Globals<T>& g, int W, const pkb::Comm& comm) {
  const int entries = std::max(1, g.filters.k);
  return (g.filters.k > 0 || !g.filters.has_p) && entries <= kMaxK && W * entries <= kCandidates &&
         kScanWarps % W == 0 && g.tokens * g.shard * int64_t(sizeof(T)) >= kBytesToSummarise &&
         uint64_t(g.tokens) * (entries + 1) * sizeof(uint64_t) <= comm.scratch_bytes / 1024 * 256;
}

struct Arguments {
  TensorView logits, target;
  int64_t group, k;
  double p;
  TensorView logprobs;
};

template <typename T>
void launch(const Arguments& a, const pkb::Comm& comm) {
  const int W = comm.group(a.group).size;
  Globals<T> g{};
  g.logits = static_cast<const T*>(a.logits.data_ptr());
  g.target = static_cast<const int64_t*>(a.target.data_ptr());
  g.logprobs = static_cast<float*>(a.logprobs.data_ptr());
  g.tokens = a.target.numel();
  g.group = a.group;
  g.shard = int(a.logits.shape()[2]);
  // The border of top-p is formed in the dtype of the logits; k of V or more keeps all.
  g.filters.k = a.k > 0 && a.k < int64_t(W) * g.shard ? int(a.k) : 0;
  g.filters.has_p = a.p < 1.0;
  g.filters.tail = float(T(float(1.0 - a.p)));
  if (g.tokens == 0) return;
  if (!summaries_pay(g, W, comm)) return launch_rows(g, W, comm);
  if (g.filters.k > 0) return launch_scan<T, Largest<T>>(g, comm);
  launch_scan<T, Mass<T>>(g, comm);
}

}  // namespace

void solution(TensorView vocab_parallel_logits, TensorView target, int64_t tp_group, Optional<int64_t> top_k,
              Optional<double> top_p, TensorView logprobs, pkb::Comm comm) {
  const int W = comm.group(tp_group).size;
  if (target.numel() % W) {
    TVM_FFI_THROW(ValueError) << target.numel() << " tokens cannot be shared evenly by " << W << " ranks";
  }
  const Arguments a{vocab_parallel_logits, target, tp_group, top_k.value_or(0), top_p.value_or(1.0), logprobs};
  const DLDataType dtype = vocab_parallel_logits.dtype();
  if (dtype.code == kDLBfloat) return launch<__nv_bfloat16>(a, comm);
  if (dtype.code == kDLFloat && dtype.bits == 16) return launch<__half>(a, comm);
  if (dtype.code == kDLFloat && dtype.bits == 32) return launch<float>(a, comm);
  TVM_FFI_THROW(TypeError) << "logits must be bfloat16, float16 or float32, got code " << int(dtype.code) << " of "
                           << int(dtype.bits) << " bits";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
