// DistributedKNN: samples come to the queries, so that nobody has to know how many queries others have.
//
// What moves: every rank multiplies its own queries with all ranks' samples, on the tensor cores (pkb/gemm_sm90.h). Up
// to 128 queries read the peers' samples once, straight from where they lie; for more, copy engines bring them beside
// the products (pkb/fetch_beside_cuda.h). After each product of up to 32768 samples a block a query takes the row of
// similarities into shared memory and bisects for the k-th largest (pkb/select_cuda.h): k candidates stay. What the
// k-th of an earlier product exceeds is dropped first, so that later rows are looked at once. A last kernel selects
// among the candidates of all products, sorts them, and reads the labels from the samples' owners.
//
// Bound: arithmetic at size large, 2 Q W n F operations, beside which samples cross the link; at few queries the link,
// W - 1 shards of samples. The baseline sends queries to all ranks and results back, one owner after another, and waits
// on the host for each one's number.
//
// Left on the table: few queries would cross the link in a hundredth of the samples' time, if ranks split the work by
// samples. Similarities are stored and read once: later products could drop nearly all in registers, by the same
// bound. float32, and rows that are no multiples of 16 bytes, run on CUDA cores.
#include <algorithm>

#include "pkb/fetch_beside_cuda.h"
#include "pkb/gemm_simt.h"
#include "pkb/gemm_sm90.h"
#include "pkb/launch_cuda.h"
#include "pkb/select_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256;
constexpr int kRowBytes = 64 << 10;        // of shared memory, for a row of similarities
constexpr int kMaxK = 8192;                // candidates that are sorted in shared memory
constexpr int64_t kFewQueries = pkb::gemm::kBlockM;
constexpr int kListed = 2048;              // samples of a row that are kept in a list
constexpr uint32_t kNoSample = ~0u;

template <class T>
constexpr int64_t kChunk = kRowBytes / int(sizeof(T));  // samples of a product

// A sample's number is that among the samples of all ranks, in order of rank.
struct Candidate {
  float similarity;
  uint32_t sample;
};

struct Candidates {
  const Candidate* list;
  int size;

  template <class Team, class Visit>
  __device__ void visit(const Team& team, Visit visit) const {
    for (int i = team.thread(); i < size; i += team.threads()) visit(list[i].similarity, 1.0f);
  }
};

// Some numbers of a row.
template <class T>
struct Listed {
  const T* row;
  const uint32_t* places;
  int size;

  template <class Team, class Visit>
  __device__ void visit(const Team& team, Visit visit) const {
    for (int i = team.thread(); i < size; i += team.threads()) visit(pkb::to_float(row[places[i]]), 1.0f);
  }
};

template <class T>
struct Globals {
  const T *queries, *samples;  // (Q, F) and (F, n); peers' samples lie at the same offset
  const int64_t* labels;
  T* similarities_out;
  int64_t* labels_out;
  int64_t Q, F, n, group;
  int k;
  T* similarities;        // (Q, stride) of one product
  int64_t stride;
  Candidate* candidates;  // (Q, lists, k)
  float* bounds;          // of each query: at least k samples are as near
  int lists;
};

// Finds places for the k largest of numbers of which this thread's are offered in turn: those above the k-th largest
// come first, as many of its equals as are left behind them. `numbers` has more than k.
template <class T>
struct Places {
  uint32_t key;  // of the k-th largest
  int above, k;
  int* taken;    // in shared memory: numbers above it, and equal ones, that have a place

  template <class Numbers>
  __device__ Places(const Numbers& numbers, int k, int (&counts)[2]) : k(k), taken(counts) {
    const pkb::Block team;
    key = pkb::kth_largest<T>(team, numbers, pkb::range_of<T>(team, numbers), k);
    int own = 0;
    numbers.visit(team, [&](float x, float) { own += pkb::key_of<T>(x) > key; });
    if (threadIdx.x < 2) taken[threadIdx.x] = 0;
    above = team.sum(own);  // a barrier of the block, behind which all find `taken` 0
  }

  // The place, or -1.
  __device__ int place(float x) const {
    const uint32_t of_x = pkb::key_of<T>(x);
    if (of_x > key) return atomicAdd(&taken[0], 1);
    if (of_x < key) return -1;
    const int place = above + atomicAdd(&taken[1], 1);
    return place < k ? place : -1;
  }
};

// The k nearest of `count` samples, from number `first` on, for each query; a block a query. Where lists have been made
// before, only what reaches their bound is looked at again: about k samples.
template <class T>
__global__ void __launch_bounds__(kThreads)
    select_row(const __grid_constant__ Globals<T> g, int count, uint32_t first, int list, bool is_first) {
  constexpr int kLanes = pkb::kPerVector<T>;
  extern __shared__ __align__(16) uint4 vectors[];
  __shared__ uint32_t listed[kListed];
  __shared__ int taken[2], reaching;
  const int64_t query = blockIdx.x;
  const T* from = g.similarities + query * g.stride;
  const T* row = reinterpret_cast<const T*>(vectors);
  const float bound = is_first ? -pkb::kInfinity : g.bounds[query];
  if (threadIdx.x == 0) reaching = 0;
  __syncthreads();
  const int size = (count + kLanes - 1) / kLanes;
  for (int i = int(threadIdx.x); i < size; i += kThreads) {
    uint4 vector = pkb::lowest_vector<T>();
    if ((i + 1) * kLanes <= count) {
      vector = pkb::load_vector(from + i * kLanes);
    } else {
#pragma unroll
      for (int e = 0; e < kLanes; ++e) {
        if (i * kLanes + e < count) reinterpret_cast<pkb::Pack<T>&>(vector).values[e] = from[i * kLanes + e];
      }
    }
    vectors[i] = vector;
    if (is_first) continue;
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      if (i * kLanes + e >= count || pkb::element<T>(vector, e) < bound) continue;
      const int place = atomicAdd(&reaching, 1);
      if (place < kListed) listed[place] = i * kLanes + e;
    }
  }
  __syncthreads();

  Candidate* to = g.candidates + (query * g.lists + list) * g.k;
  const bool has_list = !is_first && reaching <= kListed;
  const int offered = has_list ? reaching : count;
  const auto candidate = [&](int i) {
    const uint32_t at = has_list ? listed[i] : uint32_t(i);
    return Candidate{pkb::to_float(row[at]), first + at};
  };
  float reached = bound;
  if (offered <= g.k) {
    for (int i = int(threadIdx.x); i < g.k; i += kThreads) {
      to[i] = i < offered ? candidate(i) : Candidate{-pkb::kInfinity, kNoSample};
    }
  } else {
    const Places<T> places = has_list ? Places<T>(Listed<T>{row, listed, offered}, g.k, taken)
                                      : Places<T>(pkb::Vectors<T>{vectors, size}, g.k, taken);
    for (int i = int(threadIdx.x); i < offered; i += kThreads) {
      const Candidate offer = candidate(i);
      const int place = places.place(offer.similarity);
      if (place >= 0) to[place] = offer;
    }
    reached = fmaxf(bound, pkb::value_of<T>(places.key));
  }
  if (threadIdx.x == 0) g.bounds[query] = reached;
}

// Sorts a power of two of numbers in shared memory, largest first, by a bitonic network.
__device__ void sort_descending(uint64_t* numbers, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int i = int(threadIdx.x); i < size; i += kThreads) {
        const int other = i ^ apart;
        if (other < i) continue;
        const uint64_t a = numbers[i], b = numbers[other];
        if ((a < b) == ((i & run) == 0)) {
          numbers[i] = b;
          numbers[other] = a;
        }
      }
    }
  }
  __syncthreads();
}

// The k nearest among the candidates of each query, in order; a block a query. `sorted` is a power of two, at least k.
template <class T>
__global__ void __launch_bounds__(kThreads)
    merge(const __grid_constant__ Globals<T> g, int sorted, const __grid_constant__ pkb::Device comm) {
  extern __shared__ __align__(16) uint64_t nearest[];  // key and number of each
  __shared__ int taken[2];
  const int64_t query = blockIdx.x;
  const Candidates all{g.candidates + query * g.lists * g.k, g.lists * g.k};
  const auto entry = [&](int i) {
    const Candidate of = all.list[i];
    return uint64_t(pkb::key_of<T>(of.similarity)) << 32 | uint32_t(~of.sample);  // ties: the first sample first
  };
  for (int i = g.k + int(threadIdx.x); i < sorted; i += kThreads) nearest[i] = 0;
  if (g.lists == 1) {
    for (int i = int(threadIdx.x); i < g.k; i += kThreads) nearest[i] = entry(i);
  } else {
    const Places<T> places(all, g.k, taken);
    for (int i = int(threadIdx.x); i < all.size; i += kThreads) {
      const int place = places.place(all.list[i].similarity);
      if (place >= 0) nearest[place] = entry(i);
    }
  }
  sort_descending(nearest, sorted);
  for (int i = int(threadIdx.x); i < g.k; i += kThreads) {
    const uint32_t sample = ~uint32_t(nearest[i]);
    g.similarities_out[query * g.k + i] = T(pkb::value_of<T>(uint32_t(nearest[i] >> 32)));
    const int owner = comm.group_member(g.group, int(sample / g.n));
    g.labels_out[query * g.k + i] = comm.peer(g.labels, owner)[sample % g.n];
  }
}

template <class T, class Shape>
void multiply(const Globals<T>& g, const T* samples, int64_t count, cudaStream_t stream) {
  pkb::gemm::Product product = pkb::gemm::tiles<Shape>(g.Q, count, g.F);
  product.a[0] = pkb::gemm::operand_map<T>(g.queries, g.Q, g.F, g.F, pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(samples, g.F, count, g.n, pkb::gemm::kBlockK);
  product.out[0] = pkb::gemm::operand_map<T>(g.similarities, g.Q, count, g.stride, pkb::gemm::kStoreRows);
  pkb::gemm::launch<T, Shape>(product, pkb::gemm::Plain(), stream);
}

// Similarities of all queries and `count` samples, in columns of stride n.
template <class T>
void multiply_any(const Globals<T>& g, const T* samples, int64_t count, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (pkb::gemm::fits(g.F, g.n, 1)) {
      if (pkb::gemm::is_large(g.Q, count)) multiply<T, pkb::gemm::Deep>(g, samples, count, stream);
      else multiply<T, pkb::gemm::Small>(g, samples, count, stream);
      return;
    }
  }
  pkb::gemm::SimtProduct<T> product;
  product.a[0] = g.queries;
  product.b[0] = samples;
  product.out[0] = g.similarities;
  product.rows = g.Q;
  product.cols = count;
  product.depth = product.a_stride = g.F;
  product.b_stride = g.n;
  product.out_stride = g.stride;
  pkb::gemm::launch_simt(product, stream);
}

// Keeps buffers apart from others of T.
template <class T>
struct Similarity {
  T element;
};
template <class T>
struct Sample {
  T element;
};

template <class T>
void launch(Globals<T> g, const pkb::Comm& comm) {
  const pkb::Group group = comm.group(g.group);
  const cudaStream_t stream = comm.cuda_stream();
  const int chunks = int((g.n + kChunk<T> - 1) / kChunk<T>);
  const int64_t shard = g.F * g.n;
  g.lists = group.size * chunks;
  g.stride = (std::min(g.n, kChunk<T>) + 7) / 8 * 8;
  g.similarities = reinterpret_cast<T*>(pkb::kept_memory<Similarity<T>>(std::max<int64_t>(g.Q * g.stride, 1)));
  g.bounds = pkb::kept_memory<float>(std::max<int64_t>(g.Q, 1));
  g.candidates = pkb::kept_memory<Candidate>(std::max<int64_t>(g.Q * g.lists * g.k, 1));

  const auto search = [&](int place, const T* samples, bool is_first) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * kChunk<T>, count = std::min(kChunk<T>, g.n - first);
      multiply_any(g, samples + first, count, stream);
      const int bytes = int((count * int64_t(sizeof(T)) + 15) / 16 * 16);
      pkb::allow_shared_memory<select_row<T>>(bytes);
      select_row<T><<<unsigned(g.Q), kThreads, bytes, stream>>>(g, int(count), uint32_t(place * g.n + first),
                                                                place * chunks + chunk, is_first && chunk == 0);
      PKB_CUDA_LAUNCHED();
    }
  };
  const auto merge_all = [&] {
    int sorted = 1;
    while (sorted < g.k) sorted *= 2;
    const int bytes = sorted * int(sizeof(uint64_t));
    pkb::allow_shared_memory<merge<T>>(bytes);
    merge<T><<<unsigned(g.Q), kThreads, bytes, stream>>>(g, sorted, comm.device());
    PKB_CUDA_LAUNCHED();
  };
  if (group.size == 1) {
    if (g.Q == 0) return;
    search(0, g.samples, true);
    merge_all();
    return;
  }
  const pkb::FetchBeside fetch(comm, g.group);
  const bool copies_samples = g.Q > kFewQueries;
  T* copies = copies_samples ? reinterpret_cast<T*>(pkb::kept_memory<Sample<T>>(shard * (group.size - 1))) : nullptr;
  for (int k = 1; copies_samples && k < group.size; ++k) {
    fetch.copy(k, copies + (k - 1) * shard, g.samples, shard * sizeof(T));
  }
  if (g.Q > 0) search(group.rank, g.samples, true);
  fetch.await_begun();
  for (int k = 1; g.Q > 0 && k < group.size; ++k) {
    if (copies_samples) fetch.await(k);
    const T* of_peer = comm.peer(g.samples, fetch.rank_after(k));
    search((group.rank + k) % group.size, copies_samples ? copies + (k - 1) * shard : of_peer, false);
  }
  if (g.Q > 0) merge_all();
  fetch.end();
}

}  // namespace

void solution(TensorView test_features_rank, TensorView train_features_rank_T, TensorView train_labels_rank,
              int64_t max_k, int64_t group, TensorView sims, TensorView labels, pkb::Comm comm) {
  const int64_t n = train_labels_rank.size(1);
  if (max_k > n) TVM_FFI_THROW(ValueError) << "max_k=" << max_k << " must be at most the " << n << " training samples";
  if (max_k > kMaxK || n * comm.world_size >= int64_t(kNoSample)) {
    TVM_FFI_THROW(ValueError) << "expected at most " << kMaxK << " results and 2^32 samples, got " << max_k << " and "
                              << n * comm.world_size;
  }
  pkb::with_type<__nv_bfloat16, __half, float>(test_features_rank.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Globals<T> g{};
    g.queries = static_cast<const T*>(test_features_rank.data_ptr());
    g.samples = static_cast<const T*>(train_features_rank_T.data_ptr());
    g.labels = static_cast<const int64_t*>(train_labels_rank.data_ptr());
    g.similarities_out = static_cast<T*>(sims.data_ptr());
    g.labels_out = static_cast<int64_t*>(labels.data_ptr());
    g.Q = test_features_rank.size(0);
    g.F = test_features_rank.size(1);
    g.n = n;
    g.group = group;
    g.k = int(max_k);
    launch(g, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
