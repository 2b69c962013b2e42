// One kernel for each building block that needs no other rank; tests/engine/emulated/test_building_blocks.py calls them.
#include <cuda_bf16.h>

#include "pkb/adam_cuda.h"
#include "pkb/attention_backward_cuda.h"
#include "pkb/attention_cuda.h"
#include "pkb/fft_lines_cuda.h"
#include "pkb/norm_backward_cuda.h"
#include "pkb/online_softmax_cuda.h"
#include "pkb/partition_cuda.h"
#include "pkb/radix_sort_cuda.h"
#include "pkb/rms_norm_cuda.h"
#include "pkb/routing_cuda.h"
#include "pkb/thin_product_cuda.h"
#include "pkb/token_filter_cuda.h"

using T = __nv_bfloat16;

__global__ void adam(const float* values, float* out, int n, pkb::Adam step) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float moment = values[2 * n + i], square = values[3 * n + i];
  out[i] = step.update(values[i], values[n + i], moment, square);
  out[n + i] = moment;
  out[2 * n + i] = square;
}

template <class Team>
__global__ void rms_norm(const float* x, float* out, int columns, float eps) {
  constexpr int kLanes = 2, kHeld = 2;
  pkb::rms_norm<kLanes, kHeld>(
      Team(), (columns + kLanes - 1) / kLanes, columns, eps,
      [&](int piece, float(&lanes)[kLanes]) {
        for (int i = 0; i < kLanes; ++i) lanes[i] = piece * kLanes + i < columns ? x[piece * kLanes + i] : 0.0f;
      },
      [&](int piece, const float(&lanes)[kLanes], float inverse) {
        for (int i = 0; i < kLanes; ++i) {
          if (piece * kLanes + i < columns) out[piece * kLanes + i] = lanes[i] * inverse;
        }
      });
}

// x: slopes, and behind them the normalised row.
template <class Team, bool kCentred>
__global__ void norm_backward(const float* x, float* out, int columns, float inverse) {
  constexpr int kLanes = 2, kHeld = 2;
  pkb::norm_backward<kCentred, kLanes, kHeld>(
      Team(), (columns + kLanes - 1) / kLanes, columns, inverse,
      [&](int piece, float(&slope)[kLanes], float(&x_hat)[kLanes]) {
        for (int i = 0; i < kLanes; ++i) {
          const int column = piece * kLanes + i;
          slope[i] = column < columns ? x[column] : 0.0f;
          x_hat[i] = column < columns ? x[columns + column] : 0.0f;
        }
      },
      [&](int piece, const float(&dx)[kLanes]) {
        for (int i = 0; i < kLanes; ++i) {
          if (piece * kLanes + i < columns) out[piece * kLanes + i] = dx[i];
        }
      });
}

// Gradients of gain and bias; x: gradients of rows, and behind them the normalised rows.
template <class Sums, int kLanes>
__global__ void sum_columns(const float* x, float* out, Sums sums) {
  const int columns = sums.columns;
  sums.run(
      blockIdx.x, blockIdx.y,
      [&](int64_t row, int column, float(&terms)[2][kLanes]) {
        for (int i = 0; i < kLanes; ++i) {
          const float dy = x[row * columns + column + i];
          terms[0][i] += dy * x[(sums.rows + row) * columns + column + i];
          terms[1][i] += dy;
        }
      },
      [&](int which, int column, float sum) { out[which * columns + column] = sum; });
}

template <int kAcross, int kLanes>
void launch_sums(const float* x, float* out, int rows, int columns, int slabs, cudaStream_t stream) {
  using Sums = pkb::ColumnSums<64, kAcross, kLanes, 2>;
  const int tiles = Sums::tiles(columns);
  float* partials;
  unsigned* arrived;
  PKB_CUDA(cudaMalloc(&partials, 2 * slabs * columns * sizeof(float)));
  PKB_CUDA(cudaMalloc(&arrived, tiles * sizeof(unsigned)));
  PKB_CUDA(cudaMemsetAsync(arrived, 0, tiles * sizeof(unsigned), stream));
  for (int run = 0; run < 2; ++run) {  // counters are 0 again after the first
    const Sums sums{rows, columns, slabs, partials, arrived};
    sum_columns<Sums, kLanes><<<dim3(tiles, slabs), 64, 0, stream>>>(x, out, sums);
  }
}

__global__ void transform_lines(const float2* z, float2* out, int lines, const __grid_constant__ pkb::fft_lines::Plan plan) {
  extern __shared__ float2 numbers[];
  const int all = lines * plan.length;
  for (int i = threadIdx.x; i < all; i += blockDim.x) numbers[plan.place(i / plan.length, i % plan.length)] = z[i];
  pkb::fft_lines::transform(numbers, lines, plan);
  for (int i = threadIdx.x; i < all; i += blockDim.x) out[i] = numbers[plan.place(i / plan.length, i % plan.length)];
}

template <class Team>
__global__ void log_sum_exp(const float* x, float* out, int n) {
  pkb::SoftmaxSum part;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float two[2] = {x[i], -pkb::kInfinity};
    part.add(two);
  }
  part = pkb::join_parts(Team(), part);
  if (threadIdx.x == blockDim.x - 1) *out = part.log();
}

template <class Team>
__global__ void filter(const float* x, float* out, int n, pkb::TokenFilter filter) {
  const pkb::FilterCut cut = pkb::cut_of<T>(Team(), pkb::List{x, n}, filter);
  if (threadIdx.x == 0) {
    out[0] = pkb::value_of<T>(cut.border);
    out[1] = cut.log_normaliser();
    out[2] = cut.stay;
    out[3] = pkb::log_prob<T>(cut, x[0]);
  }
}

// ---- lists of items by class, and sorted keys, of numbers that are whole ----

constexpr int kListThreads = 64;

__global__ void list_by_class(const float* classes, float* out, int items, int count, char* grid, uint32_t* table) {
  __shared__ pkb::ClassBegins begins;
  pkb::partition<kListThreads>(
      pkb::Grid(grid), table, items, count, [&](uint64_t i) { return int(classes[i]); },
      [&](uint64_t i, int, uint64_t place) { out[place] = float(i); }, begins);
  if (blockIdx.x == 1 && threadIdx.x <= count) out[items + threadIdx.x] = float(begins.at[threadIdx.x]);
}

__global__ void sum_before_blocks(const float* of_blocks, float* out, char* memory) {
  const pkb::Grid grid(memory);
  for (int turn = 0; turn < 3; ++turn) {
    const pkb::Before sums = grid.sums_before<kListThreads>(uint64_t(of_blocks[blockIdx.x]) + turn, turn);
    if (threadIdx.x == 0) {
      out[turn * 2 * gridDim.x + blockIdx.x] = float(sums.before);
      out[(turn * 2 + 1) * gridDim.x + blockIdx.x] = float(sums.all);
    }
  }
}

template <class Key>
struct NumberAsKey {
  const float* numbers;
  __device__ Key operator()(uint64_t i) const { return Key(numbers[i]); }
};
template <class Key>
struct KeyAsNumber {
  float* numbers;
  __device__ void operator()(uint64_t i, Key key) const { numbers[i] = float(key); }
};

template <class Key>
void sort_numbers(const float* numbers, float* out, int n, cudaStream_t stream) {
  Key* keys;
  char* state;
  PKB_CUDA(cudaMalloc(&keys, 2 * n * sizeof(Key)));
  PKB_CUDA(cudaMalloc(&state, pkb::RadixSort<Key>::state_bytes(n)));
  const pkb::RadixSort<Key> sort{keys + n, state};
  sort.launch(n, NumberAsKey<Key>{numbers}, keys, KeyAsNumber<Key>{out}, stream);
}

// ---- attention of one head, on numbers that a formula gives ----

__device__ float number_at(unsigned matrix, unsigned i) {
  return float((i * 2654435761u + matrix * 40503u) >> 16 & 255) / 128 - 1;
}

template <class Number>
__global__ void fill(Number* matrix, int count, unsigned which) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) matrix[i] = Number(number_at(which, i));
}

template <class Out_, bool kResumes_>
struct OneHead : pkb::attention::Plain<Out_> {
  static constexpr bool kResumes = kResumes_;
  Out_* out;
  float* sums;
  const float *before, *before_sums;
  int rows, first, keys, diagonal, head;

  __device__ pkb::attention::Tile tile(int index) const {
    const int skipped = index * pkb::attention::kTileRows;
    const int see = diagonal == pkb::attention::kNoMask ? diagonal : diagonal + skipped - first;
    return {skipped, 0, min(rows - skipped, pkb::attention::kTileRows), first, 0, keys, see, index};
  }
  __device__ Out_* out_row(const pkb::attention::Tile& tile, int i) const { return out + (tile.q_row + i) * head; }
  __device__ float* lse(const pkb::attention::Tile& tile, int i) const { return sums + tile.q_row + i; }
  __device__ const float* resume_row(const pkb::attention::Tile& tile, int i) const {
    return before + (tile.q_row + i) * head;
  }
  __device__ float resume_lse(const pkb::attention::Tile& tile, int i) const { return before_sums[tile.q_row + i]; }
};

__global__ void widen(const T* from, float* to, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = __bfloat162float(from[i]);
}
__global__ void widen(const float* from, float* to, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

// Keys from `split` on are added to the results over those before, if there are some.
template <class Number>
void attend_one_head(float* out, int rows, int keys, int split, int diagonal, int head, float scale,
                     cudaStream_t stream) {
  Number* memory;
  float* parts;
  PKB_CUDA(cudaMalloc(&memory, (2 * rows + 2 * keys) * head * sizeof(Number)));
  PKB_CUDA(cudaMalloc(&parts, (rows * head + rows) * sizeof(float)));
  Number *q = memory, *k = q + rows * head, *v = k + keys * head, *results = v + keys * head;
  fill<<<1, 64, 0, stream>>>(q, rows * head, 0);
  fill<<<1, 64, 0, stream>>>(k, keys * head, 1);
  fill<<<1, 64, 0, stream>>>(v, keys * head, 2);
  pkb::attention::Forward<Number> work{{q, rows, head, head}, {k, keys, head, head}, {v, keys, head, head}};
  work.head = head;
  work.scale = scale;
  work.tiles = (rows + pkb::attention::kTileRows - 1) / pkb::attention::kTileRows;
  float* const sums = out + rows * head;
  if (split > 0) {
    const OneHead<float, false> first{{}, parts, parts + rows * head, nullptr, nullptr, rows, 0, split, diagonal, head};
    pkb::attention::launch(work, first, 1, stream);
    const OneHead<Number, true> rest{{}, results, sums, parts, parts + rows * head, rows, split, keys - split, diagonal,
                                     head};
    pkb::attention::launch(work, rest, 1, stream);
  } else {
    const OneHead<Number, false> all{{}, results, sums, nullptr, nullptr, rows, 0, keys, diagonal, head};
    pkb::attention::launch(work, all, 1, stream);
  }
  widen<<<1, 64, 0, stream>>>(results, out, rows * head);
}

template <class Number, bool kKeysStay>
struct OneHeadBackward {
  Number *first, *second;  // gradients of keys and values, or of queries
  int rows, keys, diagonal, head;

  __device__ pkb::attention::BackwardTile tile(int index) const {
    const int skipped = index * pkb::attention::kTileRows, own = kKeysStay ? keys : rows;
    const int see = diagonal == pkb::attention::kNoMask ? diagonal : diagonal + (kKeysStay ? -skipped : skipped);
    return {skipped, 0,   min(own - skipped, pkb::attention::kTileRows), 0, 0, kKeysStay ? rows : keys,
            see,     kKeysStay ? 0 : skipped,                            index};
  }
  __device__ Number* out_row(const pkb::attention::BackwardTile& tile, int which, int i) const {
    return (which ? second : first) + (tile.row + i) * head;
  }
  __device__ void leave() const {}
};

// Gradients of queries, keys and values.
template <class Number>
void differentiate_one_head(float* out, int rows, int keys, int diagonal, int head, float scale, cudaStream_t stream) {
  Number* memory;
  float* stats;
  PKB_CUDA(cudaMalloc(&memory, (4 * rows + 4 * keys) * head * sizeof(Number)));
  PKB_CUDA(cudaMalloc(&stats, 2 * rows * sizeof(float)));
  Number *q = memory, *dout = q + rows * head, *results = dout + rows * head, *dq = results + rows * head;
  Number *k = dq + rows * head, *v = k + keys * head, *dk = v + keys * head, *dv = dk + keys * head;
  float *lse = stats, *delta = stats + rows;
  fill<<<1, 64, 0, stream>>>(q, rows * head, 0);
  fill<<<1, 64, 0, stream>>>(k, keys * head, 1);
  fill<<<1, 64, 0, stream>>>(v, keys * head, 2);
  fill<<<1, 64, 0, stream>>>(dout, rows * head, 3);
  pkb::attention::Forward<Number> forward{{q, rows, head, head}, {k, keys, head, head}, {v, keys, head, head}};
  forward.head = head;
  forward.scale = scale;
  forward.tiles = (rows + pkb::attention::kTileRows - 1) / pkb::attention::kTileRows;
  const OneHead<Number, false> all{{}, results, lse, nullptr, nullptr, rows, 0, keys, diagonal, head};
  pkb::attention::launch(forward, all, 1, stream);
  pkb::attention::sum_products<<<(rows + 7) / 8, pkb::attention::kSimtThreads, 0, stream>>>(results, dout, delta, rows,
                                                                                          head, 1, rows);
  pkb::attention::Backward<Number> work{forward.q, forward.k, forward.v, {dout, rows, head, head}, lse, delta};
  work.head = head;
  work.scale = scale;
  work.tiles = forward.tiles;
  const OneHeadBackward<Number, false> of_queries{dq, nullptr, rows, keys, diagonal, head};
  pkb::attention::launch_backward<false>(work, of_queries, 1, stream);
  work.tiles = (keys + pkb::attention::kTileRows - 1) / pkb::attention::kTileRows;
  const OneHeadBackward<Number, true> of_keys{dk, dv, rows, keys, diagonal, head};
  pkb::attention::launch_backward<true>(work, of_keys, 1, stream);
  widen<<<1, 64, 0, stream>>>(dq, out, rows * head);
  widen<<<1, 64, 0, stream>>>(dk, out + rows * head, 2 * keys * head);
}

// x: whether each of `pairs.tokens` tokens chose each expert.
struct IsOne {
  const float* x;
  int64_t tokens;
  __device__ bool operator()(int expert, int64_t token) const { return x[expert * tokens + token] != 0.0f; }
};

// The token of each pair.
__global__ void list_pairs(const pkb::Pairs pairs, float* out) {
  extern __shared__ int starts[];
  pkb::count_before(pairs, starts);
  const int64_t token = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (token >= pairs.tokens) return;
  pairs.visit(token, [&](int expert, int64_t number) { out[starts[expert] + number] = float(token); });
}

// x: kLanes * kEach numbers for each of the warp's 32 / kLanes lists; marks the k largest of each.
template <int kLanes, int kEach>
__global__ void mark_largest(const float* x, float* out, int k) {
  const int first = pkb::lane_id() / kLanes * kLanes * kEach + pkb::lane_id() % kLanes;
  uint32_t keys[kEach];
  for (int each = 0; each < kEach; ++each) keys[each] = pkb::key_of<float>(x[first + each * kLanes]);
  const uint32_t chosen = pkb::choose_largest<kLanes>(keys, k);
  for (int each = 0; each < kEach; ++each) out[first + each * kLanes] = float(chosen >> each & 1);
}

__global__ void __launch_bounds__(pkb::kThinThreads) multiply_thin(const T* a, const T* b, float* out, int rows, int cols,
                                                                   int depth) {
  __shared__ pkb::ThinParts parts;
  extern __shared__ float sums[];
  const int first = int(blockIdx.x) * pkb::kThinRows;
  const auto row_of = [&](int i) -> const T* { return first + i < rows ? a + (first + i) * depth : nullptr; };
  pkb::multiply_thin(row_of, b, depth, cols, depth, sums, parts);
  for (int i = int(threadIdx.x); i < pkb::kThinRows * cols; i += pkb::kThinThreads) {
    if (first + i / cols < rows) out[first * cols + i] = sums[i];
  }
}

extern "C" {

void run_list_by_class(const float* classes, float* out, int items, int count, int blocks, cudaStream_t stream) {
  char* memory;
  PKB_CUDA(cudaMalloc(&memory, pkb::kGridScratch + pkb::kPartitionBytes));
  PKB_CUDA(cudaMemsetAsync(memory, 0, pkb::kGridScratch, stream));
  auto* const table = reinterpret_cast<uint32_t*>(memory + pkb::kGridScratch);
  list_by_class<<<blocks, kListThreads, 0, stream>>>(classes, out, items, count, memory, table);
}

void run_sum_before_blocks(const float* of_blocks, float* out, int blocks, cudaStream_t stream) {
  char* memory;
  PKB_CUDA(cudaMalloc(&memory, pkb::kGridScratch));
  PKB_CUDA(cudaMemsetAsync(memory, 0, pkb::kGridScratch, stream));
  sum_before_blocks<<<blocks, kListThreads, 0, stream>>>(of_blocks, out, memory);
}

void run_sort(const float* numbers, float* out, int n, int bits, cudaStream_t stream) {
  if (bits == 16) sort_numbers<uint16_t>(numbers, out, n, stream);
  else if (bits == 32) sort_numbers<uint32_t>(numbers, out, n, stream);
  else sort_numbers<uint64_t>(numbers, out, n, stream);
}

void run_list_pairs(const float* x, float* out, int experts, int tokens, cudaStream_t stream) {
  const auto pairs = pkb::Pairs::of(experts, tokens, pkb::kept_memory<char>(pkb::Pairs::bytes(experts, tokens)));
  pkb::number_pairs(pairs, IsOne{x, tokens}, stream);
  list_pairs<<<(tokens + 63) / 64, 64, experts * sizeof(int), stream>>>(pairs, out);
}

void run_mark_largest(const float* x, float* out, int lanes, int k, cudaStream_t stream) {
  if (lanes == 8) mark_largest<8, 1><<<1, 32, 0, stream>>>(x, out, k);
  else mark_largest<32, 4><<<1, 32, 0, stream>>>(x, out, k);
}

void run_multiply_thin(const float*, float* out, int rows, int cols, int depth, cudaStream_t stream) {
  T *a, *b;
  PKB_CUDA(cudaMalloc(&a, rows * depth * sizeof(T)));
  PKB_CUDA(cudaMalloc(&b, cols * depth * sizeof(T)));
  fill<<<1, 64, 0, stream>>>(a, rows * depth, 0);
  fill<<<1, 64, 0, stream>>>(b, cols * depth, 1);
  multiply_thin<<<(rows + 15) / 16, pkb::kThinThreads, 16 * cols * sizeof(float), stream>>>(a, b, out, rows, cols, depth);
}

void run_attention_backward(const float*, float* out, int rows, int keys, int diagonal, int head, float scale,
                            int is_half, cudaStream_t stream) {
  if (is_half) differentiate_one_head<T>(out, rows, keys, diagonal, head, scale, stream);
  else differentiate_one_head<float>(out, rows, keys, diagonal, head, scale, stream);
}

void run_attention(const float*, float* out, int rows, int keys, int split, int diagonal, int head, float scale,
                   int is_half, cudaStream_t stream) {
  if (is_half) attend_one_head<T>(out, rows, keys, split, diagonal, head, scale, stream);
  else attend_one_head<float>(out, rows, keys, split, diagonal, head, scale, stream);
}

void run_adam(const float* values, float* out, int n, const double* c, long step, cudaStream_t stream) {
  adam<<<(n + 63) / 64, 64, 0, stream>>>(values, out, n, pkb::Adam::of(c[0], c[1], c[2], c[3], step, c[4]));
}

void run_rms_norm(const float* x, float* out, int columns, float eps, int threads, cudaStream_t stream) {
  if (threads == 32) rms_norm<pkb::Warp><<<1, threads, 0, stream>>>(x, out, columns, eps);
  else rms_norm<pkb::Block><<<1, threads, 0, stream>>>(x, out, columns, eps);
}

void run_norm_backward(const float* x, float* out, int columns, float inverse, int centred, int threads,
                       cudaStream_t stream) {
  const auto kernel = threads == 32 ? (centred ? norm_backward<pkb::Warp, true> : norm_backward<pkb::Warp, false>)
                                    : (centred ? norm_backward<pkb::Block, true> : norm_backward<pkb::Block, false>);
  kernel<<<1, threads, 0, stream>>>(x, out, columns, inverse);
}

void run_sum_columns(const float* x, float* out, int rows, int columns, int slabs, int across, cudaStream_t stream) {
  if (across == 8) launch_sums<8, 4>(x, out, rows, columns, slabs, stream);
  else launch_sums<32, 1>(x, out, rows, columns, slabs, stream);
}

void run_transform_lines(const float* z, float* out, int lines, int length, cudaStream_t stream) {
  pkb::allow_shared_memory<transform_lines>(pkb::fft_lines::kSharedBytes);
  transform_lines<<<1, pkb::fft_lines::kThreads, pkb::fft_lines::kSharedBytes, stream>>>(
      reinterpret_cast<const float2*>(z), reinterpret_cast<float2*>(out), lines, pkb::fft_lines::Plan(length));
}

void run_log_sum_exp(const float* x, float* out, int n, int threads, cudaStream_t stream) {
  if (threads == 32) log_sum_exp<pkb::Warp><<<1, threads, 0, stream>>>(x, out, n);
  else log_sum_exp<pkb::Block><<<1, threads, 0, stream>>>(x, out, n);
}

void run_filter(const float* x, float* out, int n, int k, float tail, int has_p, int threads, cudaStream_t stream) {
  const pkb::TokenFilter what{k, tail, has_p != 0};
  if (threads == 32) filter<pkb::Warp><<<1, threads, 0, stream>>>(x, out, n, what);
  else filter<pkb::Block><<<1, threads, 0, stream>>>(x, out, n, what);
}
}
