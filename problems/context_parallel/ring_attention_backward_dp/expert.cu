// RingAttentionBackwardDP: ranks of a replica trade positions for heads, and each computes the gradients of its heads
// over the whole sequence; replicas are averaged where gradients are stored.
//
// What moves: queries, keys, values, gradients of the output and two numbers a query go to the rank that owns the
// head, and three gradients come back from registers: 7 (C - 1) / C of a tensor cross the link of a replica, where a
// ring moves keys, values and their float32 gradients C times. Under a causal mask all ranks have the same work.
// Replicas leave gradients in scratch, and each rank adds up its own and the others' in one pass. Neither scores nor
// sums of gradients are ever in memory (pkb/attention_backward_cuda.h).
//
// Bound: arithmetic at long sequences, 14 d operations for each pair of a query and a key it sees, and head; at short
// ones four or five launches. Other heads than of 64 or 128 elements and float32 run on CUDA cores.
//
// Left on the table: scores are computed twice, once for dQ and once for dK and dV; five products would do with sums
// of dQ in memory. Averaging could begin before all gradients are there.
#include <cmath>

#include "pkb/attention_backward_cuda.h"
#include "pkb/head_exchange_cuda.h"
#include "pkb/symm.h"

using tvm::ffi::TensorView;

namespace {

using pkb::attention::BackwardTile;
using pkb::attention::kTileRows;

enum Tensors { kQuery, kKey, kValue, kSlope, kLse, kDelta, kTensors };
enum Gradients { kOfQuery, kOfKey, kOfValue };

// Statistics lie (sample, head, position): a row is a sample.
struct Places : pkb::ItemPlaces {
  __device__ pkb::HeadPlace place(int tensor, uint32_t row, uint32_t head) const {
    if (tensor < kLse) return pkb::ItemPlaces::place(tensor, row, head);
    return place_of(int(row * items.heads + head / items.positions), head % items.positions);
  }
};

template <class T>
struct Heads {
  pkb::Device comm;
  pkb::HeadItems items;
  T* results[3];
  int64_t cp_group;
  int own, owned, head, tiles_of_item;  // place in the cp_group; items of this rank
  bool is_gathered, is_causal;
};

template <class T, bool kKeysStay>
struct Hooks {
  Heads<T> heads;

  // Under a mask the last queries have most keys, and the first keys most queries.
  __device__ int part_of(int index) const {
    return kKeysStay ? index / heads.owned : heads.tiles_of_item - 1 - index / heads.owned;
  }
  __device__ BackwardTile tile(int index) const {
    const int item = index % heads.owned, first = part_of(index) * kTileRows, length = heads.items.length();
    const bool keys_stay = kKeysStay;
    BackwardTile tile;
    tile.other_row = item * length;
    tile.col = tile.other_col = 0;
    if (!heads.is_gathered) {  // the arguments as they are
      tile.other_row = item / heads.items.heads * length;
      tile.col = tile.other_col = item % heads.items.heads * heads.head;
    }
    tile.row = tile.other_row + first;
    tile.rows = min(length - first, kTileRows);
    tile.others = length;
    tile.diagonal = !heads.is_causal ? pkb::attention::kNoMask : keys_stay ? -first : first;
    tile.stats = int64_t(item) * length + (keys_stay ? 0 : first);
    tile.index = index;
    return tile;
  }

  __device__ T* out_row(const BackwardTile& tile, int which, int i) const {
    const pkb::HeadItems& items = heads.items;
    const int item = items.first_of(heads.own) + tile.index % heads.owned;
    const int position = part_of(tile.index) * kTileRows + i, place = position / items.positions;
    const int64_t row = int64_t(item / items.heads) * items.positions + position - place * items.positions;
    T* result = heads.results[kKeysStay ? kOfKey + which : kOfQuery];
    return heads.comm.peer(result + (row * items.heads + item % items.heads) * heads.head,
                           heads.comm.group_member(heads.cp_group, place));
  }

  __device__ void leave() const {
    if (heads.comm.world_size > 1) heads.comm.barrier_blocks(kKeysStay ? 1 : 2);
  }
};

// The mean over the replicas of each gradient.
template <class T>
struct Mean {
  const T* parts[3];
  T* results[3];
  uint64_t count;  // elements of one
};

template <class T, int kLanes>
__global__ void __launch_bounds__(pkb::kTransferThreads)
    average(const __grid_constant__ Mean<T> g, int64_t dp_group, const __grid_constant__ pkb::Device comm) {
  const int replicas = comm.group_size(dp_group);
  const uint64_t step = uint64_t(gridDim.x) * pkb::kTransferThreads * kLanes;
  const uint64_t begin = (uint64_t(blockIdx.x) * pkb::kTransferThreads + threadIdx.x) * kLanes;
  for (int which = 0; which < 3; ++which) {
    const T* parts = g.parts[which];
    for (uint64_t i = begin; i < g.count; i += step) {
      const auto part = [&](int place) { return comm.peer(parts, comm.group_member(dp_group, place)); };
      auto sum = pkb::add_packets<T, kLanes>(replicas, part, i);
#pragma unroll
      for (T& element : sum.lanes) element = T(pkb::to_float(element) / float(replicas));
      pkb::store_packet(g.results[which] + i, sum);
    }
  }
  comm.barrier_blocks(3);  // nobody writes parts of the next call before they have been read
}

struct Arguments {
  const TensorView *tensors[kDelta], *out, *results[3];  // tensors in their order
  double scale;
  bool is_causal;
  int64_t cp_group, dp_group;
};

template <class T, bool kKeysStay>
void launch(const pkb::attention::Backward<T>& work, const Heads<T>& heads, const pkb::Comm& comm) {
  const int blocks = std::min(pkb::multiprocessors(), heads.items.most() * heads.tiles_of_item);  // as many on every rank
  pkb::attention::launch_backward<kKeysStay>(work, Hooks<T, kKeysStay>{heads}, blocks, comm.cuda_stream());
}

template <class T>
void differentiate(const Arguments& a, const pkb::Comm& comm) {
  const TensorView& q = *a.tensors[kQuery];
  const int ranks = a.cp_group < 0 ? comm.world_size : comm.group(a.cp_group).size;
  const pkb::HeadItems items{int(q.size(0)), int(q.size(1)), int(q.size(2)), ranks};
  const int64_t head = q.size(3), rows = int64_t(items.samples) * items.positions, width = items.heads * head;
  const int64_t vectors = rows * items.heads;
  const bool averages = a.dp_group >= 0 && comm.group(a.dp_group).size > 1, is_gathered = ranks > 1;
  Heads<T> heads;
  heads.comm = comm.device();
  heads.items = items;
  heads.cp_group = a.cp_group;
  heads.own = a.cp_group < 0 ? comm.rank : comm.group(a.cp_group).rank;
  heads.owned = items.owned_by(heads.own);
  heads.head = int(head);
  heads.tiles_of_item = (items.length() + kTileRows - 1) / kTileRows;
  heads.is_gathered = is_gathered;
  heads.is_causal = a.is_causal;

  uint64_t offset = 0;
  const auto take = [&](uint64_t bytes) {
    const uint64_t begin = offset;
    offset += (bytes + 255) / 256 * 256;
    return begin;
  };
  Mean<T> mean;
  mean.count = uint64_t(rows * width);
  for (int i = 0; i < 3; ++i) {
    mean.results[i] = static_cast<T*>(a.results[i]->data_ptr());
    heads.results[i] = averages ? comm.scratch<T>(take(mean.count * sizeof(T))) : mean.results[i];
    mean.parts[i] = heads.results[i];
  }
  float* delta = comm.scratch<float>(take(uint64_t(vectors) * sizeof(float)));
  pkb::attention::Backward<T> work;
  work.head = int(head);
  work.scale = float(a.scale);
  work.tiles = heads.owned * heads.tiles_of_item;
  pkb::attention::Matrix<T>* const matrices[] = {&work.q, &work.k, &work.v, &work.dout};
  pkb::HeadExchange exchange;
  for (int i = 0; i < kLse; ++i) {
    *matrices[i] = {static_cast<const T*>(a.tensors[i]->data_ptr()), rows, width, width};
    if (!is_gathered) continue;
    const int64_t owned_rows = int64_t(heads.owned) * items.length();
    const uint64_t begin = take(uint64_t(items.most()) * items.length() * head * sizeof(T));
    exchange.add(matrices[i]->data, rows, items.heads, head * sizeof(T), width * sizeof(T), begin);
    *matrices[i] = {comm.scratch<T>(begin), owned_rows, head, head};
  }
  work.lse = static_cast<const float*>(a.tensors[kLse]->data_ptr());
  work.delta = delta;
  for (const float** stats : {&work.lse, &work.delta}) {
    if (!is_gathered) continue;
    const uint64_t begin = take(uint64_t(items.most()) * items.length() * sizeof(float));
    const int64_t of_sample = int64_t(items.heads) * items.positions;
    exchange.add(*stats, items.samples, of_sample, sizeof(float), of_sample * sizeof(float), begin);
    *stats = comm.scratch<float>(begin);
  }
  if (offset > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes holds no " << offset;
  }

  constexpr int kWarps = pkb::attention::kSimtThreads / 32;
  pkb::attention::sum_products<T>
      <<<unsigned((vectors + kWarps - 1) / kWarps), pkb::attention::kSimtThreads, 0, comm.cuda_stream()>>>(
          static_cast<const T*>(a.out->data_ptr()), static_cast<const T*>(a.tensors[kSlope]->data_ptr()), delta, vectors,
          int(head), items.heads, items.positions);
  PKB_CUDA_LAUNCHED();
  if (is_gathered) pkb::exchange_heads(exchange, Places{{items, heads.own}}, 0, comm, a.cp_group);
  launch<T, true>(work, heads, comm);
  launch<T, false>(work, heads, comm);
  if (averages) {
    const unsigned blocks = pkb::blocks_for(mean.count * sizeof(T), pkb::kSumTile);
    const auto kernel = mean.count % pkb::kPerVector<T> == 0 ? average<T, pkb::kPerVector<T>> : average<T, 1>;
    kernel<<<blocks, pkb::kTransferThreads, 0, comm.cuda_stream()>>>(mean, a.dp_group, comm.device());
    PKB_CUDA_LAUNCHED();
  }
}

}  // namespace

void solution(TensorView dout, TensorView q, TensorView k, TensorView v, TensorView out, TensorView softmax_lse,
              tvm::ffi::Optional<double> softmax_scale, bool causal, int64_t cp_group, int64_t dp_group, TensorView dq,
              TensorView dk, TensorView dv, pkb::Comm comm) {
  const double scale = softmax_scale.value_or(1.0 / std::sqrt(double(q.size(3))));
  const Arguments arguments{{&q, &k, &v, &dout, &softmax_lse}, &out, {&dq, &dk, &dv}, scale, causal, cp_group, dp_group};
  pkb::with_type<__nv_bfloat16, __half, float>(q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    differentiate<T>(arguments, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
