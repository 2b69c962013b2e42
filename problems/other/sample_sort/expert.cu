// SampleSort: each rank sorts its own values, then pulls the runs of all ranks' sorted values that are its piece, and
// merges them.
//
// What moves: values become unsigned keys of the same order, which a radix sort (pkb/radix_sort_cuda.h) leaves sorted in
// scratch, where peers can read them. One kernel does the rest: its first block learns the others' numbers of values with
// the word that they are sorted, and finds, exactly, where the piece begins and ends in every rank's run, by samples of all
// runs that narrow all windows at once; then all blocks pull these runs over the link and merge them in pairs along merge
// paths ("GPU merge path", Green, McColl and Bader 2012). Nothing is rebalanced afterwards, and the host waits for nothing.
//
// Bound: memory, the passes of the sort, and link, the values of other ranks; on one rank the last pass writes the
// result. The baseline sorts twice, with indices, gathers samples, and exchanges counts and values twice through the host.
//
// Left on the table: up to a tile of values has the latency of a block's passes; runs are merged once they have all come;
// runs begin at any value, so that they come in loads of 2 to 8 bytes a thread.
#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/grid_cuda.h"
#include "pkb/radix_sort_cuda.h"
#include "pkb/ragged_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr int kItems = 8, kTile = kThreads * kItems;  // keys that a thread and a block merge

// Keys of floating-point numbers: ordered as these, NaN last.
template <class Key>
struct Order {
  static constexpr Key kSign = Key(Key(1) << (8 * sizeof(Key) - 1));
  Key infinity;
  __device__ __forceinline__ Key key(Key bits) const {
    if (Key(bits & Key(~kSign)) > infinity) return Key(~Key(0));
    return bits & kSign ? Key(~bits) : Key(bits | kSign);
  }
  __device__ __forceinline__ Key bits(Key key) const { return key & kSign ? Key(key & Key(~kSign)) : Key(~key); }
};

template <class Key>
struct LoadValue {
  const Key* values;
  Order<Key> order;
  __device__ Key operator()(uint64_t i) const { return order.key(values[i]); }
};

// Stores keys, or the values that they stand for.
template <class Key>
struct Finish {
  Key* to;
  bool as_value;
  Order<Key> order;
  __device__ __forceinline__ void operator()(uint64_t i, Key key) const { to[i] = as_value ? order.bits(key) : key; }
};

struct Splits {
  uint64_t begin[pkb::kMaxRanks], end[pkb::kMaxRanks];  // of this rank's piece in every rank's sorted keys
};

template <class Key>
struct Piece {
  const Key* sorted;  // in scratch
  uint64_t own, size;  // keys of this rank, and values of its piece
  Splits* splits;
  Key *runs, *merged;  // room for the piece each
  uint64_t* paths;     // where tiles begin in the first of their two runs
  Finish<Key> out;
};

// Narrows, for all ranks' runs at once, the windows in which the first `target` keys of all end; by the first block.
// Equal keys are ordered by rank, then by place.
template <class Key>
__device__ void find_split(const Piece<Key>& g, const uint64_t* sizes, uint64_t target, uint64_t* split,
                           const pkb::Device& comm) {
  __shared__ uint64_t low[pkb::kMaxRanks], high[pkb::kMaxRanks], next_low[pkb::kMaxRanks], next_high[pkb::kMaxRanks];
  __shared__ Key keys[kThreads];
  __shared__ uint64_t places[kThreads];
  __shared__ int counts[pkb::kMaxRanks];
  const int thread = int(threadIdx.x), W = comm.world_size, samples = kThreads / W;
  const int q = thread / samples, j = thread % samples;
  if (thread < W) {
    low[thread] = 0;
    high[thread] = sizes[thread];
  }
  __syncthreads();
  while (true) {
    bool exists = false;
    uint64_t place = 0;
    if (q < W) {
      const uint64_t window = high[q] - low[q];
      exists = window > samples || uint64_t(j) < window;
      place = low[q] + (window > samples ? (j + 1) * window / (samples + 1) : j);
      if (j == 0) counts[q] = int(window < samples ? window : samples);
    }
    if (exists) {
      keys[thread] = comm.peer(g.sorted, q)[place];
      places[thread] = place;
    }
    if (thread < W) {
      next_low[thread] = low[thread];
      next_high[thread] = high[thread];
    }
    if (!__syncthreads_or(exists)) break;  // all windows are empty
    if (exists) {
      const Key key = keys[thread];
      uint64_t least = place, most = place;  // keys before this one, of all ranks
      for (int other = 0; other < W; ++other) {
        if (other == q) continue;
        const int first = other * samples;
        int before = 0, end = counts[other];  // samples of `other` before this key
        while (before < end) {
          const int middle = (before + end) / 2;
          const Key its = keys[first + middle];
          if (its < key || (its == key && other < q)) before = middle + 1;
          else end = middle;
        }
        least += before > 0 ? places[first + before - 1] + 1 : low[other];
        most += before < counts[other] ? places[first + before] : high[other];
      }
      if (most < target) atomicMax(reinterpret_cast<unsigned long long*>(next_low + q), place + 1);
      if (least >= target) atomicMin(reinterpret_cast<unsigned long long*>(next_high + q), place);
    }
    __syncthreads();
    if (thread < W) {
      low[thread] = next_low[thread];
      high[thread] = next_high[thread];
    }
    __syncthreads();
  }
  if (thread < W) split[thread] = low[thread];  // read once all blocks have met
}

template <class Key>
__device__ void find_piece(const Piece<Key>& g, const pkb::Device& comm) {
  __shared__ uint64_t sizes[pkb::kMaxRanks];
  const int thread = int(threadIdx.x), W = comm.world_size;
  if (thread < W) {
    sizes[thread] = g.own;
    if (thread != comm.rank) {
      pkb::post_number(comm, thread, 0, uint32_t(g.own));
      sizes[thread] = pkb::await_number(comm, thread, 0);
    }
  }
  __syncthreads();
  uint64_t all = 0;
  for (int r = 0; r < W; ++r) all += sizes[r];
  const uint64_t begin = comm.rank * (all / W) + min(uint64_t(comm.rank), all % W);
  find_split(g, sizes, begin, g.splits->begin, comm);
  find_split(g, sizes, begin + g.size, g.splits->end, comm);
}

// Keys of the first of two runs among the first `diagonal` of both together.
template <class Key>
__device__ __forceinline__ uint64_t merge_path(const Key* a, uint64_t a_size, const Key* b, uint64_t b_size,
                                               uint64_t diagonal) {
  uint64_t low = diagonal > b_size ? diagonal - b_size : 0, high = min(diagonal, a_size);
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (a[middle] <= b[diagonal - 1 - middle]) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Calls f(number, from, first, a, b) for the tiles of pairs of runs that lie one after another, `begins` apart: for each
// tile `part`, `part + parts`, ... of them its pair, which begins at `from` with a run of `a` keys and then one of `b`, and
// its first key in the pair.
template <class F>
__device__ __forceinline__ void visit_tiles(const uint64_t* begins, int runs, uint64_t part, uint64_t parts, const F& f) {
  uint64_t number = 0;  // of tiles of pairs before
  for (int run = 0; run < runs; run += 2) {
    const uint64_t from = begins[run], middle = begins[min(run + 1, runs)], end = begins[min(run + 2, runs)];
    const uint64_t tiles = (end - from + kTile - 1) / kTile;
    uint64_t tile = number <= part ? part - number : (parts - (number - part) % parts) % parts;
    for (; tile < tiles; tile += parts) f(number + tile, from, tile * kTile, middle - from, end - middle);
    number += tiles;
  }
}

// A tile's keys from `first` of a pair on, by one block.
template <class Key, class Store>
__device__ __forceinline__ void merge_tile(const Key* pair, uint64_t first, uint64_t a_size, uint64_t b_size,
                                           uint64_t a_begin, uint64_t a_end, const Store& store) {
  __shared__ Key keys[kTile];
  const int size = int(min(uint64_t(kTile), a_size + b_size - first));
  const int in_a = int(a_end - a_begin), in_b = size - in_a;
  const Key *a = pair + a_begin, *b = pair + a_size + (first - a_begin);
  for (int i = threadIdx.x; i < size; i += kThreads) keys[i] = __ldcg(i < in_a ? a + i : b + (i - in_a));
  __syncthreads();
  const int diagonal = min(int(threadIdx.x) * kItems, size);
  int i = int(merge_path(keys, uint64_t(in_a), keys + in_a, uint64_t(in_b), uint64_t(diagonal)));
  int j = diagonal - i;
  Key taken[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (diagonal + k >= size) break;
    const bool from_a = i < in_a && (j >= in_b || keys[i] <= keys[in_a + j]);
    taken[k] = from_a ? keys[i++] : keys[in_a + j++];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (diagonal + k < size) keys[diagonal + k] = taken[k];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < size; k += kThreads) store(k, keys[k]);
  __syncthreads();
}

template <class Key>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    pull_and_merge(const __grid_constant__ Piece<Key> g, const __grid_constant__ pkb::Device comm) {
  __shared__ uint64_t begins[pkb::kMaxRanks + 1];  // of runs in this rank's piece
  const pkb::Grid grid(comm.scratch<char>(pkb::kGridScratch));
  const int thread = int(threadIdx.x), W = comm.world_size;
  if (blockIdx.x == 0) find_piece(g, comm);
  grid.meet();
  if (thread == 0) {
    begins[0] = 0;
    for (int r = 0; r < W; ++r) begins[r + 1] = begins[r] + (g.splits->end[r] - g.splits->begin[r]);
  }
  __syncthreads();
  for (int k = 1; k <= W; ++k) {
    const int r = pkb::rank_after(comm, k % W);
    pkb::copy(reinterpret_cast<char*>(g.runs + begins[r]),
              reinterpret_cast<const char*>(comm.peer(g.sorted, r) + g.splits->begin[r]),
              (begins[r + 1] - begins[r]) * sizeof(Key), (blockIdx.x + k * gridDim.x / W) % gridDim.x, gridDim.x);
  }
  comm.arrive_blocks();  // this block has read the others' keys
  grid.meet();

  Key *from = g.runs, *to = g.merged;
  const uint64_t first_thread = blockIdx.x * uint64_t(kThreads) + thread, threads = gridDim.x * uint64_t(kThreads);
  for (int runs = W; runs > 1; runs = (runs + 1) / 2) {
    visit_tiles(begins, runs, first_thread, threads, [&](uint64_t tile, uint64_t pair, uint64_t first, uint64_t a, uint64_t b) {
      g.paths[tile] = merge_path(from + pair, a, from + pair + a, b, first);
    });
    grid.meet();
    const bool last = runs == 2;
    visit_tiles(begins, runs, blockIdx.x, gridDim.x, [&](uint64_t tile, uint64_t pair, uint64_t first, uint64_t a, uint64_t b) {
      const uint64_t a_begin = __ldcg(g.paths + tile);
      const uint64_t a_end = first + kTile < a + b ? __ldcg(g.paths + tile + 1) : a;
      merge_tile(from + pair, first, a, b, a_begin, a_end, [&](int i, Key key) {
        if (last) g.out(pair + first + i, key);
        else to[pair + first + i] = key;
      });
    });
    grid.meet();
    if (thread == 0) {
      for (int pair = 0; 2 * pair <= runs + 1; ++pair) begins[pair] = begins[min(2 * pair, runs)];
    }
    __syncthreads();
    Key* const merged = to;
    to = from;
    from = merged;
  }
  comm.wait_blocks();
}

// Types that keep memory for keys apart from other memory.
template <class Key>
struct Spare {
  Key key;
};
template <class Key>
struct Run {
  Key key;
};

template <class Key>
void sort(const TensorView& values, const TensorView& out, Key infinity, const pkb::Comm& comm) {
  const Order<Key> order{infinity};
  const auto n = uint64_t(values.numel());
  const cudaStream_t stream = comm.cuda_stream();
  const bool alone = comm.world_size == 1;
  const LoadValue<Key> load{static_cast<const Key*>(values.data_ptr()), order};
  const Finish<Key> result{static_cast<Key*>(out.data_ptr()), true, order};
  uint64_t at = pkb::kRaggedData;
  auto* const splits = comm.scratch<Splits>(at);
  at += (sizeof(Splits) + 255) / 256 * 256;
  Key* const sorted = comm.scratch<Key>(at);
  if (at + n * sizeof(Key) > comm.scratch_bytes) TVM_FFI_THROW(ValueError) << "scratch has no room for " << n << " keys";

  const pkb::RadixSort<Key> radix{reinterpret_cast<Key*>(pkb::kept_memory<Spare<Key>>(int64_t(n))),
                                  pkb::kept_memory<uint4>(int64_t(pkb::RadixSort<Key>::state_bytes(n) / sizeof(uint4) + 1))};
  radix.launch(n, load, sorted, alone ? result : Finish<Key>{sorted, false, order}, stream);
  if (alone) return;

  Piece<Key> g{sorted, n, uint64_t(out.numel()), splits};
  g.runs = reinterpret_cast<Key*>(pkb::kept_memory<Run<Key>>(int64_t(g.size) * (comm.world_size > 2 ? 2 : 1)));
  g.merged = g.runs + g.size;
  g.paths = pkb::kept_memory<uint64_t>(int64_t(g.size / kTile) + pkb::kMaxRanks);
  g.out = result;
  constexpr auto kKernel = pull_and_merge<Key>;
  const int resident = pkb::resident_blocks<kKernel, kThreads, 0>();
  const unsigned blocks = unsigned(std::min<int>(resident, int(pkb::max_blocks())));  // as many on every rank
  kKernel<<<blocks, kThreads, 0, stream>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView local_shard, int64_t group, TensorView sorted_shard, pkb::Comm comm) {
  if (group >= 0 && comm.group(group).size != comm.world_size) {
    TVM_FFI_THROW(ValueError) << "expected the group of all ranks";
  }
  pkb::with_float_type(local_shard.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 8) sort<uint64_t>(local_shard, sorted_shard, 0x7ff0000000000000u, comm);
    else if constexpr (sizeof(T) == 4) sort<uint32_t>(local_shard, sorted_shard, 0x7f800000u, comm);
    else sort<uint16_t>(local_shard, sorted_shard, std::is_same_v<T, __half> ? 0x7c00 : 0x7f80, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
