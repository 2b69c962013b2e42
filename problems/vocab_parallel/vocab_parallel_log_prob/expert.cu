// VocabParallelLogProb: logits stay where they are; every rank boils its shard of a row down to what the filter needs.
//
// What moves: a warp streams a rank's shard of a token through shared memory and keeps its k largest logits, with the
// number of those that equal the k-th (without filters, the largest logit and the sum of exponentials). This summary
// goes, with the target's logit, to the token's owner, and the warp goes on to its next row; nothing waits before all
// rows have been summarised. Then the owner joins the W summaries, cuts the tail, and sends the log-probability to the
// others. Each 8-byte word of a message carries the number of the call, so that its reader needs no other signal
// (pkb/tagged_cuda.h), and lies in scratch, so that nobody touches a peer's arguments or outputs. Words lie in two
// halves of scratch by turns, and each rank needs words of all others in every call, so that none can be two calls
// ahead. The bound is reading the logits from device memory once.
//
// Top-p alone needs whole rows, and small problems are sooner read than summarised: then a block gathers a row from all
// ranks and filters it by itself, between a wait for all calls' beginning and a barrier of equal blocks. No row is ever
// sorted: borders are found by bisecting the keys of floating-point numbers.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "pkb/bulk_copy_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/select_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

using pkb::kInfinity;
using pkb::kPerVector;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

constexpr int kScanWarps = 16, kScanThreads = 32 * kScanWarps;
constexpr int kStages = 5, kStageVectors = pkb::kSelectTile;  // tiles on their way to a warp, and vectors in one
constexpr int kMaxK = 128;        // as many as there are maxima of a warp's float32 vectors
constexpr int kCandidates = 512;  // logits that a warp keeps at most

constexpr int64_t kBytesToSummarise = 1 << 20;   // a rank's logits from which summaries pay
constexpr int kSmallRow = 2048, kRowThreads = 512, kRowBlocks = 2;
constexpr int64_t kRowBytesInShared = 200 << 10;

// ---- The filter ----

struct Filters {
  int k;       // 0: off
  float tail;  // mass that top-p may leave out
  bool has_p;
};

// The log-probability of a token that has logit `own`. Top-p leaves out the least logits, as long as their mass is at
// most the tail; of equal ones at this border some may go, and a target among them is taken for one that stays.
template <typename T, typename Team, typename Logits>
__device__ float log_prob(const Team& team, const Logits& logits, float own, const Filters& filters) {
  const pkb::KeyRange range = pkb::range_of<T>(team, logits);
  const float most = pkb::value_of<T>(range.high);
  // Mass of the logits with from <= key < to.
  const auto mass_of = [&](uint32_t from, uint32_t to) {
    float mass = 0;
    logits.visit(team, [&](float x, float weight) {
      const uint32_t key = pkb::key_of<T>(x);
      if (key >= from && key < to) mass += weight * __expf(x - most);
    });
    return team.sum(mass);
  };

  uint32_t border = filters.k > 0 ? pkb::kth_largest<T>(team, logits, range, filters.k) : 0;
  float mass = mass_of(border, ~0u);
  if (filters.has_p) {
    const float allowed = filters.tail * mass;
    const uint32_t least = border;
    border = pkb::largest_key(max(least, range.low), range.high,
                         [&](uint32_t key) { return mass_of(least, key) <= allowed; });
    int equals = 0;
    logits.visit(team, [&](float x, float weight) { equals += pkb::key_of<T>(x) == border ? int(weight) : 0; });
    equals = team.sum(equals);
    const float each = __expf(pkb::value_of<T>(border) - most);
    const float out = floorf((allowed - mass_of(least, border)) / each);
    const float stay = equals - fmaxf(0.0f, fminf(out, equals - 1.0f));  // the largest logit always stays
    mass = mass_of(border + 1, ~0u) + stay * each;
  }
  return pkb::key_of<T>(own) < border ? -kInfinity : own - most - logf(mass);
}

// ---- The call ----

template <typename T>
struct Globals {
  const T* logits;  // this rank's shard; peers' lie at the same offset
  const int64_t* target;
  float* logprobs;
  uint64_t* summaries;  // tagged words in scratch: summaries for this rank's tokens,
  uint64_t* results;    // and log-probabilities of the others'
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

// Rank r does tokens [r * T / W, (r + 1) * T / W), a row at a time a block, and writes the results to all outputs. Rows
// lie in shared memory, or in `memory`. All blocks are resident together on every rank, since they wait for each other.
template <typename T>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks) filter_rows(const Globals<T> g, const pkb::Device comm,
                                                              char* memory, int64_t row_bytes) {
  extern __shared__ uint4 shared[];
  T* row = reinterpret_cast<T*>(memory ? memory + blockIdx.x * row_bytes : reinterpret_cast<char*>(shared));
  const int64_t tokens = g.tokens / comm.group_size(g.group), first = comm.group_rank(g.group) * tokens;
  comm.signal_begun(g.group);
  comm.wait_all_begun(0, g.group);
  for (int64_t i = blockIdx.x; i < tokens; i += gridDim.x) {
    const int64_t token = first + i;
    const float own = logit_of(g, comm, token, g.target[token]);
    __syncthreads();
    const int vectors = gather_row(g, comm, token, row);
    __syncthreads();
    const pkb::Vectors<T> logits{reinterpret_cast<const uint4*>(row), vectors};
    const float result = log_prob<T>(pkb::Block(), logits, own, g.filters);
    const int thread = threadIdx.x;
    if (thread < comm.group_size(g.group)) *comm.peer(g.logprobs + token, comm.group_member(g.group, thread)) = result;
  }
  comm.barrier_blocks(0, g.group);
}

// ---- Streaming a shard ----

// The tiles of a warp's rows, in turn, kStages of them on their way at a time. All lanes call everything.
template <typename T>
struct Tiles {
  const Globals<T>& g;
  uint4 (&stages)[kStages][kStageVectors];
  pkb::BulkRing<kStages> ring;
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
      const int lane = pkb::lane_id(), used = (row.skipped + g.shard - 1) % kPerVector<T> + 1;
      const int last = row.size - 1 - first;
      if (first == 0 && lane < row.skipped) numbers[lane] = T(-kInfinity);
      if (last < kStageVectors && lane >= used && lane < kPerVector<T>) {
        numbers[last * kPerVector<T> + lane] = T(-kInfinity);
      }
      pkb::fence_async_shared();  // before the stage is filled again
      __syncwarp();
    }
    return vectors;
  }

  // The tile taken last has been read.
  __device__ void give_back() {
    __syncwarp();
    fetch();
  }
};

// ---- Summaries ----

// The k largest logits of a shard: the k-th, those above it, and how many equal it.
template <typename T>
struct Largest : pkb::StreamSelect<T, kCandidates> {
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

  __device__ void add(const pkb::LaneVectors& held, const uint4*) {
    const float of_lane = fmaxf(pkb::largest<T>(pkb::maxima_of<T>(held)), most);
    if (__any_sync(pkb::kAllLanes, of_lane > most)) {
      const float now = pkb::value_of<T>(pkb::Warp().max(pkb::key_of<T>(of_lane)));
      sum *= __expf(most - now);
      most = now;
    }
    if (most == -kInfinity) return;
#pragma unroll
    for (const uint4& vector : held.vectors) {
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) sum += __expf(pkb::element<T>(vector, e) - most);
    }
  }

  __device__ void end() { sum = pkb::Warp().sum(sum); }
};

// ---- Exchange ----

// Where a rank's summary of a token lies: for each of its tokens an owner has one from every rank, which consists of the
// entries, the weight of the first, and the target's logit where that is the rank's. Words are tagged with the epoch.
template <typename T>
__device__ uint64_t* summary_of(const Globals<T>& g, int W, int64_t token, int rank, int entries) {
  return g.summaries + (token / W * W + rank) * (entries + 2);
}

template <typename T, typename Summary>
__device__ void send(const Globals<T>& g, const pkb::Device& comm, const Summary& summary, float target_logit,
                     int64_t token, int owner) {
  const int entries = summary.entries();
  uint64_t* to = summary_of(g, comm.group_size(g.group), token, comm.group_rank(g.group), entries);
  to = comm.peer(to, comm.group_member(g.group, owner));
  for (int i = pkb::lane_id(); i < entries + 2; i += 32) {
    const float word = i < entries ? summary.entry(i) : i == entries ? summary.first_weight() : target_logit;
    pkb::store_tagged(to + i, word, uint32_t(comm.epoch));
  }
  __syncwarp();
}

struct WarpMemory {
  uint4 stages[kStages][kStageVectors];
  float values[kCandidates];
  float weights[pkb::kMaxRanks], target_logits[pkb::kMaxRanks];
  uint64_t arrived[kStages + kStages % 2];  // an even number: what follows begins at a multiple of 16 bytes
};

// Joins the summaries of a token that this rank owns, and sends the result to the others. First entries, which have
// weights, come first.
template <typename T>
__device__ void join(const Globals<T>& g, const pkb::Device& comm, int64_t token, int entries, WarpMemory& memory) {
  const int W = comm.group_size(g.group), lane = pkb::lane_id();
  const int64_t target = g.target[token];
  const uint64_t* from = summary_of(g, W, token, 0, entries);
  for (int i = lane; i < W * (entries + 2); i += 32) {
    const int w = i / (entries + 2), entry = i % (entries + 2);
    const float value = pkb::wait_tagged(from + i, uint32_t(comm.epoch));
    if (entry == 0) memory.values[w] = value;
    else if (entry < entries) memory.values[W + w * (entries - 1) + entry - 1] = value;
    else (entry == entries ? memory.weights : memory.target_logits)[w] = value;
  }
  __syncwarp();
  const bool exists = target >= 0 && target < int64_t(g.shard) * W;
  const float own = exists ? memory.target_logits[target / g.shard] : __int_as_float(0x7fffffff);
  const pkb::List list{memory.values, W * entries, memory.weights, W};
  const float result = log_prob<T>(pkb::Warp(), list, own, g.filters);
  if (lane == comm.group_rank(g.group)) {
    g.logprobs[token] = result;
  } else if (lane < W) {
    pkb::store_tagged(comm.peer(g.results + token, comm.group_member(g.group, lane)), result, uint32_t(comm.epoch));
  }
  __syncwarp();
}

// A warp scans whole rows of this rank's shard, joins some of the tokens that this rank owns, every W-th, and takes
// some results of the others. Nothing waits before all of its warp's rows have been sent.
template <typename T, typename Summary>
__global__ void __launch_bounds__(kScanThreads, 1) scan_shards(const Globals<T> g, const pkb::Device comm) {
  extern __shared__ uint4 shared[];
  WarpMemory& memory = reinterpret_cast<WarpMemory*>(shared)[pkb::warp_id()];
  const int W = comm.group_size(g.group), rank = comm.group_rank(g.group);
  // Neighbouring rows are different blocks', so that few rows occupy all multiprocessors.
  const int64_t warps = int64_t(gridDim.x) * kScanWarps, warp = int64_t(pkb::warp_id()) * gridDim.x + blockIdx.x;

  Summary summary{};
  if constexpr (std::is_same_v<Summary, Largest<T>>) {
    summary.kept = memory.values;
    summary.weight = memory.weights;
    summary.k = g.filters.k;
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
      summary.add(pkb::lane_vectors<T>(vectors, row.size - first), vectors);
      feed.give_back();
    }
    summary.end();
    send(g, comm, summary, target_logit, token, int(token % W));
  }

  comm.hold();
  for (int64_t token = warp * W + rank; token < g.tokens; token += warps * W) {
    join(g, comm, token, summary.entries(), memory);
  }
  for (int64_t token = warp * 32 + pkb::lane_id(); token < g.tokens; token += warps * 32) {
    if (int(token % W) != rank) g.logprobs[token] = pkb::wait_tagged(g.results + token, uint32_t(comm.epoch));
  }
}

// ---- Host ----

// The first two quarters are for the tagged words of even and of odd calls, the rest for rows.
uint64_t quarter_of_scratch(const pkb::Comm& comm) { return comm.scratch_bytes / 1024 * 256; }

// Of a summary.
template <typename T>
int entries_of(const Globals<T>& g) {
  return std::max(1, g.filters.k);
}

template <typename T>
void launch_rows(const Globals<T>& g, int W, const pkb::Comm& comm) {
  pkb::allow_shared_memory<filter_rows<T>>(int(kRowBytesInShared));
  const int64_t V = int64_t(W) * g.shard, row_bytes = (V * int64_t(sizeof(T)) + 255) / 256 * 256;
  const int threads = V <= kSmallRow ? 32 : kRowThreads;
  const bool in_shared = row_bytes <= kRowBytesInShared;
  // As many as are resident together for certain: kRowBlocks by registers, fewer where rows fill the shared memory.
  int64_t blocks = in_shared ? std::clamp<int64_t>(kRowBytesInShared / row_bytes, 1, kRowBlocks) : kRowBlocks;
  blocks = std::min(blocks * pkb::multiprocessors(), g.tokens / W);
  char* memory = nullptr;
  if (!in_shared) {
    const uint64_t half = 2 * quarter_of_scratch(comm);
    blocks = std::min(blocks, int64_t(half) / row_bytes);
    if (blocks == 0) TVM_FFI_THROW(ValueError) << "a row of " << row_bytes << " bytes does not fit into scratch";
    memory = comm.scratch<char>(half);
  }
  filter_rows<T><<<unsigned(blocks), threads, memory ? 0 : row_bytes, comm.cuda_stream()>>>(g, comm.device(), memory,
                                                                                            row_bytes);
  PKB_CUDA_LAUNCHED();
}

template <typename T, typename Summary>
void launch_scan(Globals<T> g, const pkb::Comm& comm) {
  constexpr int kSharedBytes = kScanWarps * sizeof(WarpMemory);
  pkb::allow_shared_memory<scan_shards<T, Summary>>(kSharedBytes);
  g.summaries = comm.scratch<uint64_t>(comm.epoch % 2 * quarter_of_scratch(comm));
  g.results = g.summaries + g.tokens * (entries_of(g) + 2);
  // All blocks are resident together on every rank, since they wait for each other.
  const auto blocks = unsigned(std::min<int64_t>(pkb::multiprocessors(), g.tokens));
  scan_shards<T, Summary><<<blocks, kScanThreads, kSharedBytes, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

// Whether summaries and results fit.
template <typename T>
bool summaries_pay(const Globals<T>& g, int W, const pkb::Comm& comm) {
  const int entries = entries_of(g);
  return (g.filters.k > 0 || !g.filters.has_p) && entries <= kMaxK && W * entries <= kCandidates &&
         g.tokens * g.shard * int64_t(sizeof(T)) >= kBytesToSummarise &&
         uint64_t(g.tokens) * (entries + 3) * sizeof(uint64_t) <= quarter_of_scratch(comm);
}

template <typename T>
void launch(const TensorView& logits, const TensorView& target, int64_t group, int64_t k, double p,
            const TensorView& logprobs, const pkb::Comm& comm) {
  const int W = comm.group(group).size;
  Globals<T> g{};
  g.logits = static_cast<const T*>(logits.data_ptr());
  g.target = static_cast<const int64_t*>(target.data_ptr());
  g.logprobs = static_cast<float*>(logprobs.data_ptr());
  g.tokens = target.numel();
  g.group = group;
  g.shard = int(logits.shape()[2]);
  // The border of top-p is formed in the dtype of the logits; k of V or more keeps all.
  g.filters.k = k > 0 && k < int64_t(W) * g.shard ? int(k) : 0;
  g.filters.has_p = p < 1.0;
  g.filters.tail = float(T(float(1.0 - p)));
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
  pkb::with_type<__nv_bfloat16, __half, float>(vocab_parallel_logits.dtype(), [&](auto zero) {
    launch<decltype(zero)>(vocab_parallel_logits, target, tp_group, top_k.value_or(0), top_p.value_or(1.0), logprobs,
                           comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
