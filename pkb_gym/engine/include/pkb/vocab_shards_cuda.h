// Rows of logits of which every rank has a shard along the vocabulary: gathered whole for a block, or read once by a warp
// that keeps what a filter needs (pkb/token_filter_cuda.h) and sends that to the token's owner.
//
// A summary of a shard is its k largest logits, with the number of those that equal the k-th, or, without filters, its
// largest logit and the sum of exponentials; and the target's logit. An owner has a summary of its token from every rank.
// Its words carry the number of the call (pkb/tagged_cuda.h) and lie in scratch. Bound: memory, one read of the shard.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "pkb/bulk_copy_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/select_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/token_filter_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {
namespace vocab {

constexpr int kScanWarps = 16, kScanThreads = 32 * kScanWarps;
constexpr int kStages = 5, kStageVectors = kSelectTile;  // tiles on their way to a warp, and vectors in one
constexpr int kMaxK = 128;        // as many as there are maxima of a warp's float32 vectors
constexpr int kCandidates = 512;  // logits that a warp keeps at most

constexpr int64_t kBytesToSummarise = 1 << 20;  // a rank's logits from which summaries pay
constexpr int kSmallRow = 2048, kRowThreads = 512, kRowBlocks = 2;
constexpr int64_t kRowBytesInShared = 200 << 10;

template <typename T>
struct Shards {
  const T* logits;  // this rank's; peers' lie at the same offset
  const int64_t* target;
  uint64_t* summaries;  // tagged words in scratch, for this rank's tokens
  int64_t tokens, group;
  int shard;  // numbers of a row on one rank
  TokenFilter filter;

  int entries() const { return std::max(1, filter.k); }  // of a summary
};

template <typename T>
__device__ float logit_of(const Shards<T>& g, const Device& comm, int64_t token, int64_t id) {
  if (id < 0 || id >= int64_t(g.shard) * comm.group_size(g.group)) return __int_as_float(0x7fffffff);
  const T* owners = comm.peer(g.logits, comm.group_member(g.group, int(id / g.shard)));
  return float(owners[token * g.shard + id % g.shard]);
}

// ---- Whole rows ----

// Copies a token's logits from all ranks, as units of type Unit.
template <typename Unit, typename T>
__device__ void copy_pieces(const Shards<T>& g, const Device& comm, int64_t token, T* row) {
  const int units = g.shard * int(sizeof(T)) / int(sizeof(Unit));  // of a rank
  for (int i = threadIdx.x; i < units * comm.group_size(g.group); i += blockDim.x) {
    const T* piece = comm.peer(g.logits, comm.group_member(g.group, i / units)) + token * g.shard;
    reinterpret_cast<Unit*>(row)[i] = reinterpret_cast<const Unit*>(piece)[i % units];
  }
}

// Gathers a token's logits and fills the last vector up; returns the number of vectors.
template <typename T>
__device__ int gather_row(const Shards<T>& g, const Device& comm, int64_t token, T* row) {
  if (g.shard % kPerVector<T> == 0) copy_pieces<uint4>(g, comm, token, row);
  else copy_pieces<T>(g, comm, token, row);
  const int V = g.shard * comm.group_size(g.group), vectors = (V + kPerVector<T> - 1) / kPerVector<T>;
  for (int i = V + threadIdx.x; i < vectors * kPerVector<T>; i += blockDim.x) row[i] = T(-kInfinity);
  return vectors;
}

// ---- Streaming a shard ----

// The tiles of a warp's rows, in turn, kStages of them on their way at a time. All lanes call everything.
template <typename T>
struct Tiles {
  const Shards<T>& g;
  uint4 (&stages)[kStages][kStageVectors];
  BulkRing<kStages> ring;
  int64_t token, step;  // of the row that is being fetched, and between rows
  const uint4* from = nullptr;
  int left = 0;         // vectors of it that have not been fetched

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

  __device__ void begin() {
    ring.begin();
    open();
    for (int i = 0; i < kStages; ++i) fetch();
  }

  __device__ void open() {
    if (token >= g.tokens) return;
    const Span row = span(token);
    from = reinterpret_cast<const uint4*>(g.logits) + row.begin;
    left = row.size;
  }

  // Begins the copy of the next tile, if there is one, to the stage that was given back longest ago.
  __device__ void fetch() {
    if (token >= g.tokens) return;
    const int size = min(left, kStageVectors);
    ring.fetch(stages[ring.filling()], from, size * int(sizeof(uint4)));
    from += size;
    left -= size;
    if (left == 0) {
      token += step;
      open();
    }
  }

  // Waits for the tile of a row that begins at vector `first`, which is the next one, and returns where it lies. What is
  // not of the row becomes -infinity, up to the end of the last vector.
  __device__ const uint4* take(const Span& row, int first) {
    uint4* vectors = stages[ring.take()];
    if (g.shard % kPerVector<T>) {
      auto* numbers = reinterpret_cast<T*>(vectors);
      const int lane = lane_id(), used = (row.skipped + g.shard - 1) % kPerVector<T> + 1;
      const int last = row.size - 1 - first;
      if (first == 0 && lane < row.skipped) numbers[lane] = T(-kInfinity);
      if (last < kStageVectors && lane >= used && lane < kPerVector<T>) {
        numbers[last * kPerVector<T> + lane] = T(-kInfinity);
      }
      __syncwarp();
    }
    return vectors;
  }

  // The tile taken last has been read.
  __device__ void give_back() {
    fence_async_shared();  // before the stage is filled again
    __syncwarp();
    fetch();
  }
};

// ---- Summaries ----

// The k largest logits of a shard: the k-th, those above it, and how many equal it.
template <typename T>
struct Largest : StreamSelect<T, kCandidates> {
  __device__ int entries() const { return this->k; }
  __device__ float entry(int i) const {
    return i == 0 ? this->threshold : i <= this->count ? this->kept[i] : -kInfinity;
  }
  __device__ float first_weight() const { return *this->weight; }
};

// Without filters: a single logit, the largest, that counts as often as makes up for all.
template <typename T>
struct Mass {
  float most = -kInfinity, sum = 0.0f;

  __device__ int entries() const { return 1; }
  __device__ float entry(int) const { return most; }
  __device__ float first_weight() const { return sum; }

  __device__ void begin() { *this = Mass{}; }

  __device__ void add(const LaneVectors& held, const uint4*) {
    const float of_lane = fmaxf(largest<T>(maxima_of<T>(held)), most);
    if (__any_sync(kAllLanes, of_lane > most)) {
      const float now = value_of<T>(Warp().max(key_of<T>(of_lane)));
      sum *= __expf(most - now);
      most = now;
    }
    if (most == -kInfinity) return;
#pragma unroll
    for (const uint4& vector : held.vectors) {
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) sum += __expf(element<T>(vector, e) - most);
    }
  }

  __device__ void end() { sum = Warp().sum(sum); }
};

// ---- Exchange ----

// Where a rank's summary of a token lies: for each of its tokens an owner has one from every rank, which consists of the
// entries, the weight of the first, and the target's logit where that is the rank's. Words are tagged with the epoch.
template <typename T>
__device__ uint64_t* summary_of(const Shards<T>& g, int W, int64_t token, int rank, int entries) {
  return g.summaries + (token / W * W + rank) * (entries + 2);
}

template <typename T, typename Summary>
__device__ void send(const Shards<T>& g, const Device& comm, const Summary& summary, float target_logit,
                     int64_t token, int owner) {
  const int entries = summary.entries();
  uint64_t* to = summary_of(g, comm.group_size(g.group), token, comm.group_rank(g.group), entries);
  to = comm.peer(to, comm.group_member(g.group, owner));
  for (int i = lane_id(); i < entries + 2; i += 32) {
    const float word = i < entries ? summary.entry(i) : i == entries ? summary.first_weight() : target_logit;
    store_tagged(to + i, word, uint32_t(comm.epoch));
  }
  __syncwarp();
}

struct WarpMemory {
  uint4 stages[kStages][kStageVectors];
  float values[kCandidates];
  float weights[kMaxRanks], target_logits[kMaxRanks];
  uint64_t arrived[kStages + kStages % 2];  // an even number: what follows begins at a multiple of 16 bytes
};

// Summarises this rank's shard of some tokens, every `warps`-th, and sends the summaries to their owners; by a warp.
// Owners of tokens are ranks in turn.
template <typename T, typename Summary>
__device__ void summarise(const Shards<T>& g, const Device& comm, WarpMemory& memory, int64_t warp, int64_t warps,
                          Summary& summary) {
  const int W = comm.group_size(g.group), rank = comm.group_rank(g.group);
  if constexpr (std::is_same_v<Summary, Largest<T>>) {
    summary.kept = memory.values;
    summary.weight = memory.weights;
    summary.k = g.filter.k;
  }
  Tiles<T> feed{g, memory.stages, {memory.arrived}, warp, warps};
  feed.begin();
  for (int64_t token = warp; token < g.tokens; token += warps) {
    const int64_t target = g.target[token] - int64_t(rank) * g.shard;  // of this shard, or beyond it
    const float target_logit = target >= 0 && target < g.shard ? float(g.logits[token * g.shard + target]) : 0.0f;
    const auto row = feed.span(token);
    summary.begin();
    for (int first = 0; first < row.size; first += kStageVectors) {
      const uint4* vectors = feed.take(row, first);
      summary.add(lane_vectors<T>(vectors, row.size - first), vectors);
      feed.give_back();
    }
    summary.end();
    send(g, comm, summary, target_logit, token, int(token % W));
  }
}

// Waits for the summaries of a token that this rank owns and lays them out as a list in the warp's memory: first entries,
// which have weights, come first. Targets' logits follow by rank.
template <typename T>
__device__ List receive(const Shards<T>& g, const Device& comm, int64_t token, int entries, WarpMemory& memory) {
  const int W = comm.group_size(g.group);
  const uint64_t* from = summary_of(g, W, token, 0, entries);
  for (int i = lane_id(); i < W * (entries + 2); i += 32) {
    const int w = i / (entries + 2), entry = i % (entries + 2);
    const float value = wait_tagged(from + i, uint32_t(comm.epoch));
    if (entry == 0) memory.values[w] = value;
    else if (entry < entries) memory.values[W + w * (entries - 1) + entry - 1] = value;
    else (entry == entries ? memory.weights : memory.target_logits)[w] = value;
  }
  __syncwarp();
  return List{memory.values, W * entries, memory.weights, W};
}

// The first two quarters of scratch are for the tagged words of even and of odd calls, the rest for rows.
inline uint64_t quarter_of_scratch(const Comm& comm) { return comm.scratch_bytes / 1024 * 256; }

// Whether summaries pay, and fit with `further` words a token.
template <typename T>
bool summaries_pay(const Shards<T>& g, int W, int further, const Comm& comm) {
  const int entries = g.entries();
  return (g.filter.k > 0 || !g.filter.has_p) && entries <= kMaxK && W * entries <= kCandidates &&
         g.tokens * g.shard * int64_t(sizeof(T)) >= kBytesToSummarise &&
         uint64_t(g.tokens) * (entries + 2 + further) * sizeof(uint64_t) <= quarter_of_scratch(comm);
}

// How whole rows are read: blocks, and where the rows lie.
struct RowPlan {
  unsigned blocks;
  int threads;
  int64_t row_bytes;
  char* memory;  // null: in shared memory
  size_t shared_bytes() const { return memory ? 0 : size_t(row_bytes); }
};

// As many blocks as are resident together for certain: kRowBlocks by registers, fewer where rows fill the shared memory.
template <typename T>
RowPlan plan_rows(const Shards<T>& g, int W, const Comm& comm) {
  const int64_t V = int64_t(W) * g.shard, row_bytes = (V * int64_t(sizeof(T)) + 255) / 256 * 256;
  const bool in_shared = row_bytes <= kRowBytesInShared;
  int64_t blocks = in_shared ? std::clamp<int64_t>(kRowBytesInShared / row_bytes, 1, kRowBlocks) : kRowBlocks;
  blocks = std::min(blocks * multiprocessors(), g.tokens / W);
  char* memory = nullptr;
  if (!in_shared) {
    const uint64_t half = 2 * quarter_of_scratch(comm);
    blocks = std::min(blocks, int64_t(half) / row_bytes);
    if (blocks == 0) TVM_FFI_THROW(ValueError) << "a row of " << row_bytes << " bytes does not fit into scratch";
    memory = comm.scratch<char>(half);
  }
  return RowPlan{unsigned(blocks), V <= kSmallRow ? 32 : kRowThreads, row_bytes, memory};
}

// The shards of a call. The border of top-p is formed in the dtype of the logits; k of V or more keeps all.
template <typename T>
Shards<T> shards_of(const tvm::ffi::TensorView& logits, const tvm::ffi::TensorView& target, int64_t group, int64_t k,
                    double p, int W) {
  if (target.numel() % W) {
    TVM_FFI_THROW(ValueError) << target.numel() << " tokens cannot be shared evenly by " << W << " ranks";
  }
  Shards<T> g{};
  g.logits = static_cast<const T*>(logits.data_ptr());
  g.target = static_cast<const int64_t*>(target.data_ptr());
  g.tokens = target.numel();
  g.group = group;
  g.shard = int(logits.shape()[2]);
  g.filter.k = k > 0 && k < int64_t(W) * g.shard ? int(k) : 0;
  g.filter.has_p = p < 1.0;
  g.filter.tail = float(T(float(1.0 - p)));
  return g;
}

}  // namespace vocab
}  // namespace pkb
