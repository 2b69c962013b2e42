// KJTAllToAll: each rank adds up the ids of its features, and owners pull their features' bags from where these lie.
//
// What moves: a first kernel adds up bag lengths by feature. The last of its blocks writes where each feature begins in
// this rank's lists into scratch, says so to the others with its batch size, waits for them, reads where its own features
// begin in theirs, and lists the segments (feature, source rank) of the result in their staggered order. It tells the
// host how long the results are. The second kernel begins without the host: it pulls lengths, ids and weights over the
// link straight to their places in results that are kept from call to call, and is launched again where these were too short.
//
// Bound: link, the bags that arrive; on one rank memory, a read and a write of every list. The baseline asks the host for
// every feature's sum and every rank's counts, sends each list by a collective, and regroups it segment by segment.
//
// Left on the table: segments begin at any id, so that loads have 8 bytes (2 to 8 for weights) a thread instead of 16.
#include <vector>

#include "pkb/exchange_cuda.h"
#include "pkb/grid_cuda.h"
#include "pkb/ragged_cuda.h"
#include "pkb/returned_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kAtOnce = pkb::kLoadsAtOnce;

// Where a feature begins in the lists of a rank.
struct Begin {
  uint64_t bags, ids;
};

// The bags of one feature that one rank sends: where they lie there, and where they belong.
struct Segment {
  Begin from, to;
  int rank;
};

struct Lists {
  const int64_t *lengths, *values;
  const char* weights;            // null if there are none
  int features, own_features, first_own;
  int stagger;
  uint64_t bags;
  uint32_t batch;                 // samples of every feature; or where each feature's begin:
  const int64_t* first_bags;      // one more than features
  uint64_t* partial_sums;         // ids of a feature in a block's part, at the sum of their numbers
  unsigned* ended;                // blocks of the first kernel
  Begin* begins;                  // in scratch, for peers; one more than features
  Segment* segments;              // one more than there are
  int64_t *stride, *stride_per_rank, *stride_per_key;  // results; null if they are absent
  int64_t* host;                  // bags and ids that arrive

  __device__ __forceinline__ uint64_t first_bag(int feature) const {
    return first_bags ? uint64_t(first_bags[feature]) : uint64_t(feature) * batch;
  }
  // The last feature that begins at this bag or before, and is not empty.
  __device__ __forceinline__ int feature_of(uint64_t bag) const {
    if (!first_bags) return int(bag / batch);
    int low = 0, high = features;  // first_bag(low) <= bag < first_bag(high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_bag(middle) <= bag ? low : high) = middle;
    }
    return low;
  }
  // The block whose part has this bag.
  __device__ __forceinline__ uint64_t block_of(uint64_t bag) const {
    return ((bag + 1) * gridDim.x + bags - 1) / bags - 1;
  }
};

// By the last block: where features begin.
__device__ __forceinline__ void write_begins(const Lists& g) {
  uint64_t before = 0;
  for (int first = 0; first < g.features; first += kThreads) {
    const int f = first + int(threadIdx.x);
    uint64_t ids = 0;
    if (f < g.features && g.first_bag(f) < g.first_bag(f + 1)) {
      const uint64_t last = g.block_of(g.first_bag(f + 1) - 1);
      for (uint64_t block = g.block_of(g.first_bag(f)); block <= last; ++block) ids += __ldcg(g.partial_sums + block + f);
    }
    const pkb::Before sums = pkb::sums_before_thread<kThreads>(ids);
    if (f < g.features) g.begins[f] = Begin{g.first_bag(f), before + sums.before};
    before += sums.all;
  }
  if (threadIdx.x == 0) g.begins[g.features] = Begin{g.bags, before};
}

// By the last block: the segments of this rank's features.
__device__ __forceinline__ void list_segments(const Lists& g, const pkb::Device& comm) {
  const int W = comm.world_size, count = g.own_features * W;
  Begin before{0, 0};
  for (int first = 0; first < count; first += kThreads) {
    const int s = first + int(threadIdx.x), f = s / W, column = s % W;
    const int rank = column / g.stagger + W / g.stagger * (column % g.stagger);
    Begin from{0, 0}, end{0, 0};
    if (s < count) {
      const Begin* begins = comm.peer(g.begins, rank) + g.first_own + f;
      from = begins[0];
      end = begins[1];
    }
    const pkb::Before bags = pkb::sums_before_thread<kThreads>(end.bags - from.bags);
    const pkb::Before ids = pkb::sums_before_thread<kThreads>(end.ids - from.ids);
    if (s < count) {
      g.segments[s] = Segment{from, Begin{before.bags + bags.before, before.ids + ids.before}, rank};
      if (g.stride_per_key) g.stride_per_key[s] = int64_t(end.bags - from.bags);
    }
    before = Begin{before.bags + bags.all, before.ids + ids.all};
  }
  if (threadIdx.x == 0) {
    g.segments[count] = Segment{Begin{0, 0}, before, 0};
    g.host[0] = int64_t(before.bags);
    g.host[1] = int64_t(before.ids);
  }
}

__global__ void __launch_bounds__(kThreads)
    add_up_features(const __grid_constant__ Lists g, const __grid_constant__ pkb::Device comm) {
  __shared__ uint32_t batches[pkb::kMaxRanks];
  const int thread = int(threadIdx.x), W = comm.world_size;
  const uint64_t begin = g.bags * blockIdx.x / gridDim.x, end = g.bags * (blockIdx.x + 1) / gridDim.x;
  for (int f = begin < end ? g.feature_of(begin) : g.features; f < g.features && g.first_bag(f) < end; ++f) {
    const uint64_t first = max(begin, g.first_bag(f)), last = min(end, g.first_bag(f + 1));
    if (first >= last) continue;
    uint64_t sum = 0;
#pragma unroll 4
    for (uint64_t i = first + thread; i < last; i += kThreads) sum += uint64_t(g.lengths[i]);
    sum = pkb::reduce_block<kThreads>(sum, [](uint64_t a, uint64_t b) { return a + b; });
    if (thread == 0) g.partial_sums[blockIdx.x + f] = sum;
  }
  if (!pkb::arrives_last(g.ended)) return;
  write_begins(g);
  __syncthreads();
  if (thread < W) {
    batches[thread] = g.batch;
    if (thread != comm.rank) {
      pkb::post_number(comm, thread, 0, g.batch);
      batches[thread] = pkb::await_number(comm, thread, 0);
    }
    if (g.stride_per_rank) g.stride_per_rank[thread] = batches[thread];
  }
  __syncthreads();
  if (g.stride && thread == 0) {
    int64_t sum = 0;
    for (int r = 0; r < W; ++r) sum += batches[r];
    *g.stride = sum;
  }
  list_segments(g, comm);
}

// One of the lists: `at` tells which begins of a segment are its.
template <class Unit>
__device__ __forceinline__ void pull_list(const Lists& g, const pkb::Device& comm, const Unit* own, Unit* to,
                                          uint64_t Begin::*at) {
  constexpr uint64_t kTile = uint64_t(kThreads) * kAtOnce;
  const int count = g.own_features * comm.world_size;
  const uint64_t all = g.segments[count].to.*at;
  for (uint64_t first = blockIdx.x * kTile + threadIdx.x; first < all; first += gridDim.x * kTile) {
    int s = 0, end = count;  // the last segment that begins at `first` or before
    while (end - s > 1) {
      const int middle = (s + end) / 2;
      (g.segments[middle].to.*at <= first ? s : end) = middle;
    }
    Unit values[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t i = first + k * kThreads;
      if (i >= all) continue;
      while (g.segments[s + 1].to.*at <= i) ++s;
      const Segment& segment = g.segments[s];
      values[k] = __ldcs(comm.peer(own, segment.rank) + segment.from.*at + (i - segment.to.*at));
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + k * kThreads < all) to[first + k * kThreads] = values[k];
    }
  }
}

struct Results {
  int64_t *lengths, *values;
  char* weights;
  uint64_t bags, ids;  // for which there is room
};

template <class Weight>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    pull_lists(const __grid_constant__ Lists g, const __grid_constant__ Results to, const __grid_constant__ pkb::Device comm) {
  const Begin& all = g.segments[g.own_features * comm.world_size].to;
  if (all.bags > to.bags || all.ids > to.ids) return;  // the host launches this kernel again
  pull_list(g, comm, g.lengths, to.lengths, &Begin::bags);
  pull_list(g, comm, g.values, to.values, &Begin::ids);
  if (g.weights) {
    pull_list(g, comm, reinterpret_cast<const Weight*>(g.weights), reinterpret_cast<Weight*>(to.weights), &Begin::ids);
  }
  comm.barrier_blocks();  // this rank's lists have been read
}

int64_t* data_of(const Optional<TensorView>& tensor) {
  return tensor.has_value() ? static_cast<int64_t*>(tensor.value().data_ptr()) : nullptr;
}

}  // namespace

Array<Tensor> solution(TensorView lengths, TensorView values, Array<int64_t> key_splits, int64_t batch_size, int64_t pg,
                       Optional<TensorView> weights, Optional<Array<int64_t>> stride_per_key, int64_t stagger,
                       Optional<TensorView> stride, Optional<TensorView> stride_per_rank,
                       Optional<TensorView> stride_per_key_per_rank, pkb::Comm comm) {
  if (pg >= 0 && comm.group(pg).size != comm.world_size) TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  Lists g{static_cast<const int64_t*>(lengths.data_ptr()), static_cast<const int64_t*>(values.data_ptr())};
  for (int r = 0; r < comm.world_size; ++r) {
    if (r == comm.rank) {
      g.first_own = g.features;
      g.own_features = int(key_splits[r]);
    }
    g.features += int(key_splits[r]);
  }
  static pkb::Returned bags_out, ids_out, weights_out;
  static const pkb::HostNumbers host(2);
  const cudaStream_t stream = comm.cuda_stream();
  if (stride_per_key.has_value()) {
    std::vector<int64_t> first_bags(g.features + 1);
    for (int f = 0; f < g.features; ++f) first_bags[f + 1] = first_bags[f] + stride_per_key.value()[f];
    auto* const kept = pkb::kept_memory<int64_t>(g.features + 1);
    PKB_CUDA(cudaMemcpyAsync(kept, first_bags.data(), first_bags.size() * sizeof(int64_t), cudaMemcpyHostToDevice, stream));
    g.first_bags = kept;
  }
  g.weights = weights.has_value() ? static_cast<const char*>(weights.value().data_ptr()) : nullptr;
  g.stagger = int(stagger);
  g.bags = uint64_t(lengths.size(0));
  g.batch = uint32_t(batch_size);
  g.ended = comm.scratch<unsigned>(pkb::kRaggedData);
  g.begins = comm.scratch<Begin>(pkb::kRaggedData + 256);
  if (pkb::kRaggedData + 256 + (g.features + 1) * sizeof(Begin) > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch has no room for " << g.features << " features";
  }
  g.segments = pkb::kept_memory<Segment>(int64_t(g.own_features) * comm.world_size + 1);
  g.stride = data_of(stride);
  g.stride_per_rank = data_of(stride_per_rank);
  g.stride_per_key = data_of(stride_per_key_per_rank);
  g.host = host.data();

  const unsigned parts = pkb::blocks_for(g.bags * sizeof(int64_t), pkb::kCopyTile);
  g.partial_sums = pkb::kept_memory<uint64_t>(int64_t(parts) + g.features);
  add_up_features<<<parts, kThreads, 0, stream>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
  host.record(stream);

  const uint64_t weight_bytes = g.weights ? weights.value().dtype().bits / 8 : 4;
  const auto reserve = [&](uint64_t bags, uint64_t ids) {
    bags_out.reserve(bags * sizeof(int64_t));
    ids_out.reserve(ids * sizeof(int64_t));
    if (g.weights) weights_out.reserve(ids * weight_bytes);
  };
  Results to;
  const auto pull = [&] {
    to = Results{reinterpret_cast<int64_t*>(bags_out.data()), reinterpret_cast<int64_t*>(ids_out.data()), weights_out.data(),
                 bags_out.bytes() / sizeof(int64_t), ids_out.bytes() / sizeof(int64_t)};
    if (g.weights) to.ids = std::min(to.ids, weights_out.bytes() / weight_bytes);
    const auto kernel = weight_bytes == 2   ? pull_lists<uint16_t>
                        : weight_bytes == 4 ? pull_lists<uint32_t>
                                            : pull_lists<uint64_t>;
    kernel<<<unsigned(pkb::max_blocks()), kThreads, 0, stream>>>(g, to, comm.device());  // as many on every rank
    PKB_CUDA_LAUNCHED();
  };
  reserve(g.bags, uint64_t(values.size(0)));
  pull();
  host.wait();
  const int64_t bags = host.data()[0], ids = host.data()[1];
  if (uint64_t(bags) > to.bags || uint64_t(ids) > to.ids) {
    reserve(uint64_t(bags), uint64_t(ids));
    pull();
  }
  const Tensor of_bags = bags_out.tensor({bags}, lengths.dtype(), lengths.device());
  const Tensor of_ids = ids_out.tensor({ids}, values.dtype(), values.device());
  if (!g.weights) return {of_bags, of_ids};
  return {of_bags, of_ids, weights_out.tensor({ids}, weights.value().dtype(), values.device())};
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
