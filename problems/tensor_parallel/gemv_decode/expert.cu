// GemvDecode: the weight is read once, and logits go to all ranks from where they are formed.
//
// Up to eight tokens: a warp multiplies one or two rows of the weight by all of them, 16 bytes a load, and a block sends
// the logits of its rows. Few logits go as tagged words (pkb/tagged_cuda.h), which is all the synchronisation they need;
// more are stored straight into the outputs of peers whose call has begun. More tokens: the tensor cores multiply the
// weight, as the left matrix, by the tokens as they lie (pkb/gemm_sm90.h); sums are transposed on their way through
// shared memory, so that each token's logits leave as whole lines for all ranks.
//
// Bound: memory, one read of the own part of the weight. The baseline forms logits, adds the bias, gathers, and
// concatenates: five passes over logits, which count at 128 tokens.
//
// Left on the table: with one token at small sizes the crossing of the link, which nothing hides. Tokens come from the L2
// cache once for 128 rows of the weight. Products of float32 read the weight once for eight tokens.
#include "pkb/exchange_cuda.h"
#include "pkb/gemm_peers.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using pkb::gemm::Product;
using pkb::gemm::Tile;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kWarps = kThreads / 32;
constexpr int kFewTokens = 8;

template <class T>
struct Layer {
  const T *x, *weight, *bias;  // (tokens, depth), (rows, depth) and (rows,)
  T* logits;                   // (tokens, ranks * rows)
  int64_t tokens, rows, depth, cols;
};

// ---- few tokens ----

// Sums of a warp: kRows rows of the weight from `row` on, by kTokens tokens from `token` on. Rows and tokens beyond the
// last are read as the last. In all lanes.
template <int kLanes, int kTokens, int kRows, class T>
__device__ __forceinline__ void multiply(const Layer<T>& g, int64_t row, int64_t token, float (&sums)[kTokens][kRows]) {
  const T *of_row[kRows], *of_token[kTokens];
#pragma unroll
  for (int r = 0; r < kRows; ++r) of_row[r] = g.weight + min(row + r, g.rows - 1) * g.depth;
#pragma unroll
  for (int t = 0; t < kTokens; ++t) of_token[t] = g.x + min(token + t, g.tokens - 1) * g.depth;
  constexpr int kAtOnce = kTokens == 1 ? 4 : 2;  // more would not fit into registers
#pragma unroll kAtOnce
  for (int64_t i = pkb::lane_id() * kLanes; i < g.depth; i += 32 * kLanes) {
    pkb::Packet<T, kLanes> weights[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) weights[r] = pkb::load_packet<T, kLanes>(of_row[r] + i);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const auto x = *reinterpret_cast<const pkb::Packet<T, kLanes>*>(of_token[t] + i);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int e = 0; e < kLanes; ++e) {
          sums[t][r] += pkb::to_float(x.lanes[e]) * pkb::to_float(weights[r].lanes[e]);
        }
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[t][r] = pkb::Warp().sum(sums[t][r]);
  }
}

// What is sent: logits of a token and neighbouring rows that fill four bytes, or a single one.
template <class T, int kUnit>
struct Logits {
  alignas(kUnit * sizeof(T)) T values[kUnit];

  __device__ void store(T* to) const { *reinterpret_cast<Logits*>(to) = *this; }
  __device__ float word() const {
    uint32_t bits = 0;
    memcpy(&bits, values, sizeof(values));
    return __uint_as_float(bits);
  }
  __device__ static Logits of_word(float word) {
    Logits logits;
    const uint32_t bits = __float_as_uint(word);
    memcpy(logits.values, &bits, sizeof(logits.values));
    return logits;
  }
};

template <class T, int kLanes, int kTokens, int kRows, bool kTagged>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    multiply_few(const __grid_constant__ Layer<T> g, const __grid_constant__ pkb::Boxes boxes,
                 const __grid_constant__ pkb::Device comm) {
  constexpr int kUnit = kTagged ? 4 / sizeof(T) : 1, kBlockRows = kWarps * kRows, kUnits = kBlockRows / kUnit;
  __shared__ float results[kTokens][kBlockRows];
  const int thread = int(threadIdx.x), W = comm.world_size;
  const bool has_peer = thread < W && thread != comm.rank;
  const uint32_t tag = uint32_t(comm.epoch);
  const int64_t groups = (g.rows + kBlockRows - 1) / kBlockRows, parts = (g.tokens + kTokens - 1) / kTokens;
  bool waits = !kTagged;
  if (!kTagged) comm.signal_begun();
  for (int64_t part = blockIdx.x; part < groups * parts; part += gridDim.x) {
    const int64_t row = part / parts * kBlockRows, token = part % parts * kTokens;
    const int own = pkb::warp_id() * kRows;
    float sums[kTokens][kRows] = {};
    if (row + own < g.rows) multiply<kLanes>(g, row + own, token, sums);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (pkb::lane_id() == 0) results[t][own + r] = sums[t][r];
      }
    }
    if (waits) comm.wait_all_begun();
    waits = false;
    __syncthreads();
    for (int i = thread; i < kTokens * kUnits; i += kThreads) {
      const int64_t t = token + i / kUnits, first = row + i % kUnits * kUnit;
      if (t >= g.tokens || first >= g.rows) continue;
      Logits<T, kUnit> logits;
#pragma unroll
      for (int e = 0; e < kUnit; ++e) {
        logits.values[e] = T(results[i / kUnits][i % kUnits * kUnit + e] + pkb::to_float(g.bias[first + e]));
      }
      T* place = g.logits + t * g.cols + comm.rank * g.rows + first;
      logits.store(place);
#pragma unroll 1
      for (int k = 1; k < W; ++k) {
        const int r = pkb::rank_after(comm, k);
        if constexpr (kTagged) {
          pkb::store_tagged(boxes.box<uint64_t>(comm, r, comm.rank) + (t * g.rows + first) / kUnit, logits.word(), tag);
        } else {
          logits.store(comm.peer(place, r));
        }
      }
    }
    __syncthreads();  // all is stored, and the results have been read
  }
  if constexpr (!kTagged) {
    if (has_peer) {
      comm.signal_block(0, thread);
      comm.wait_block(0, thread);
    }
  } else {
    comm.hold();
    const int64_t of_token = g.rows / kUnit;
    for (int k = 1; k < W; ++k) {
      const int r = pkb::rank_after(comm, k);
      const uint64_t* box = boxes.box<uint64_t>(comm, comm.rank, r);
      for (int64_t i = blockIdx.x * kThreads + thread; i < g.tokens * of_token; i += gridDim.x * kThreads) {
        const auto logits = Logits<T, kUnit>::of_word(pkb::wait_tagged(box + i, tag));
        logits.store(g.logits + i / of_token * g.cols + r * g.rows + i % of_token * kUnit);
      }
    }
  }
}

template <class T, int kLanes, int kTokens, int kRows>
void launch_few(const Layer<T>& g, const pkb::Comm& comm) {
  const int64_t groups = (g.rows + kWarps * kRows - 1) / (kWarps * kRows);
  const unsigned blocks = pkb::blocks_for(groups * ((g.tokens + kTokens - 1) / kTokens), 1);  // as many on every rank
  const bool is_tagged = g.rows * sizeof(T) % 4 == 0 && pkb::is_tagged(g.tokens * g.rows * sizeof(T), comm);
  const auto kernel = is_tagged ? multiply_few<T, kLanes, kTokens, kRows, true>
                                : multiply_few<T, kLanes, kTokens, kRows, false>;
  kernel<<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, pkb::Boxes::for_tagged(comm), comm.device());
  PKB_CUDA_LAUNCHED();
}

template <class T>
void on_cuda_cores(const Layer<T>& g, const pkb::Comm& comm) {
  constexpr int kLanes = pkb::kPerVector<T>;
  if (g.depth % kLanes != 0) return launch_few<T, 1, kFewTokens, 2>(g, comm);
  if (g.tokens == 1) return launch_few<T, kLanes, 1, 1>(g, comm);
  launch_few<T, kLanes, kFewTokens, 2>(g, comm);
}

// ---- many tokens ----

// Sums, a row of the weight each row, go to all ranks with a token each row.
template <class T>
struct ToLogits : pkb::gemm::Peers {
  Layer<T> g;
  ToLogits(const pkb::Comm& comm, const Layer<T>& g) : Peers(comm), g(g) {}

  template <class, class Shape>
  __device__ __forceinline__ bool finish(const Tile& tile, float (&sums)[Shape::kSums], const pkb::gemm::Block& block,
                                         int consumer, uint32_t staging) const {
    constexpr int kRowBytes = pkb::gemm::kStoreRows * sizeof(T);  // of a token in shared memory: this consumer's rows
    static_assert(Shape::kBlockN * kRowBytes <= Shape::kStagedBytes, "all sums of a consumer are staged at once");
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int64_t row0 = tile.row + block.in_cluster * pkb::gemm::kBlockM + consumer * pkb::gemm::kStoreRows;
    const int64_t row = row0 + warp * 16 + lane / 4;
    const float above = row < g.rows ? pkb::to_float(g.bias[row]) : 0.0f;
    const float below = row + 8 < g.rows ? pkb::to_float(g.bias[row + 8]) : 0.0f;
#pragma unroll
    for (int group = 0; group < Shape::kBlockN / 8; group += 2) {  // of eight tokens
      const float* eight = sums + group * 4;
      const int token = (group + lane / 16) * 8 + lane % 8;
      const int unit = warp * 2 + lane / 8 % 2;  // of eight rows; swizzled so that neighbouring tokens meet no conflict
      pkb::gemm::store_matrices_transposed(
          staging + token * kRowBytes + (unit ^ (token % 8)) * 16,
          pkb::gemm::pack<T>(eight[0] + above, eight[1] + above), pkb::gemm::pack<T>(eight[2] + below, eight[3] + below),
          pkb::gemm::pack<T>(eight[4] + above, eight[5] + above), pkb::gemm::pack<T>(eight[6] + below, eight[7] + below));
    }
    Peers::finish<T, Shape>(tile, sums, block, consumer, staging);  // all ranks have begun
    pkb::gemm::named_barrier(1 + consumer, 128);
    const bool is_whole = g.rows % 8 == 0;
#pragma unroll 1
    for (int i = thread; i < Shape::kBlockN * 8; i += 128) {
      const int token = i / 8, unit = i % 8;
      const int64_t t = tile.col + token, first = row0 + unit * 8;
      if (t >= g.tokens || first >= g.rows) continue;
      uint4 eight;
      const uint32_t from = staging + token * kRowBytes + (unit ^ (token % 8)) * 16;
      asm volatile("ld.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                   : "r"(from)
                   : "memory");
      T* place = g.logits + t * g.cols + comm.rank * g.rows + first;
#pragma unroll 1
      for (int k = 0; k < comm.world_size; ++k) {
        T* to = comm.peer(place, pkb::rank_after(comm, k));
        if (is_whole) {
          pkb::store_vector(to, eight);
        } else {
          const auto pack = pkb::as_pack<T>(eight);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            if (first + e < g.rows) to[e] = pack.values[e];
          }
        }
      }
    }
    pkb::gemm::named_barrier(1 + consumer, 128);  // all is stored, and the staging memory has been read
    return false;
  }
};

template <class T>
void on_tensor_cores(const Layer<T>& g, const pkb::Comm& comm) {
  using Shape = pkb::gemm::TransposedB<pkb::gemm::Small>;
  Product product = pkb::gemm::tiles<Shape>(g.rows, g.tokens, g.depth);
  product.a[0] = pkb::gemm::operand_map<T>(g.weight, g.rows, g.depth, g.depth, pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(g.x, g.tokens, g.depth, g.depth, pkb::gemm::kBlockK);
  product.destinations = 0;  // sums are stored by the hook
  pkb::gemm::launch<T, Shape>(product, ToLogits<T>(comm, g), comm.cuda_stream());
}

template <class T>
void launch(const Layer<T>& g, const pkb::Comm& comm) {
  if (g.tokens == 0 || g.rows == 0) return;
  if constexpr (sizeof(T) == 2) {
    if (g.tokens > kFewTokens && g.depth > 0 && g.depth % 8 == 0) return on_tensor_cores(g, comm);
  }
  on_cuda_cores(g, comm);
}

}  // namespace

void solution(TensorView hidden_states, TensorView weight_shard, TensorView bias_shard, TensorView logits,
              pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(hidden_states.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& x) { return static_cast<T*>(x.data_ptr()); };
    launch(Layer<T>{of(hidden_states), of(weight_shard), of(bias_shard), of(logits), hidden_states.size(0),
                    weight_shard.size(0), weight_shard.size(1), logits.size(1)},
           comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
