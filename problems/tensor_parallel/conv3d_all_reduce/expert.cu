// Conv3dAllReduce: an implicit product on the tensor cores, whose tiles are summed over ranks while others are computed.
//
// A convolution is a sum over taps of products of (Co, Ci) and (Ci, positions), and a tap's right matrix is the input
// from another element on: boxes of 64 positions along W are loaded from there by a tensor map, so that nothing is
// unfolded. One kernel first copies filters, tap by tap, and the input, with its padding and with rows of whole vectors.
// Each tile of the sum has an owner, which receives the others' partial results while the tensor cores work, adds them
// in registers (pkb/gemm_reduce.h), adds the bias (pkb/gemm_change.h), and stores the total to all ranks. The baseline
// all-reduces 16-bit results when all are there, and adds the bias in another pass.
//
// Bound: arithmetic, 2 outputs Ci taps operations a rank; the link carries 2 (W - 1) / W of the outputs beside them.
//
// Left on the table: Winograd's algorithm, of fewer products; the copy of the input. Strides along W, groups, several
// samples, rows of outputs that are no multiples of 64, and float32 run on CUDA cores, and are summed afterwards.
#include <algorithm>

#include "pkb/gemm_change.h"
#include "pkb/gemm_reduce.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using pkb::gemm::Product;
using pkb::gemm::Tile;
using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256;

struct Triple {
  int t, h, w;
  __host__ __device__ int64_t count() const { return int64_t(t) * h * w; }
};

template <class T>
struct Convolution {
  const T *input, *weight, *bias;  // (samples, channels, size), (filters, channels / groups, kernel), (filters,) or null
  T* out;                          // (samples, filters, out_size)
  int samples, channels, filters, groups;
  Triple size, kernel, stride, padding, dilation, out_size;
};

template <class T>
struct AddBias {
  const T* bias;
  __device__ __forceinline__ float operator()(int64_t filter, int64_t, float sum) const {
    return bias ? sum + pkb::to_float(bias[filter]) : sum;
  }
};

// ---- on tensor cores ----

// Copies that the product reads: filters as (filters, taps, padded channels), and the padded input as (channels, stride).
template <class T>
struct Arranged {
  T *weight, *input;
  int channels;    // padded to whole stages
  Triple size;     // with padding
  int64_t stride;  // of a channel's input, a multiple of a vector
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    arrange(const __grid_constant__ Convolution<T> g, const __grid_constant__ Arranged<T> to) {
  constexpr int kLanes = pkb::kPerVector<T>;
  const int64_t taps = g.kernel.count(), inputs = g.size.count();
  const int64_t filter_vectors = g.filters * taps * to.channels / kLanes;
  const int64_t vectors = filter_vectors + g.channels * to.stride / kLanes;
  const bool is_padded = to.size.count() != inputs;
  for (int64_t i = blockIdx.x * int64_t(kThreads) + threadIdx.x; i < vectors; i += int64_t(gridDim.x) * kThreads) {
    pkb::Packet<T, kLanes> packet;
    if (i < filter_vectors) {
      const int64_t at = i * kLanes, channel = at % to.channels, tap = at / to.channels % taps;
      const int64_t filter = at / to.channels / taps;
#pragma unroll
      for (int e = 0; e < kLanes; ++e) {
        const bool inside = channel + e < g.channels;
        packet.lanes[e] = inside ? g.weight[(filter * g.channels + channel + e) * taps + tap] : T(0.0f);
      }
      pkb::store_packet(to.weight + at, packet);
      continue;
    }
    const int64_t at = (i - filter_vectors) * kLanes, channel = at / to.stride;
    const T* from = g.input + channel * inputs;
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      int64_t place = at % to.stride + e;
      bool inside = place < to.size.count();
      if (is_padded && inside) {
        const int w = int(place % to.size.w) - g.padding.w, h = int(place / to.size.w % to.size.h) - g.padding.h;
        const int t = int(place / to.size.w / to.size.h) - g.padding.t;
        inside = w >= 0 && w < g.size.w && h >= 0 && h < g.size.h && t >= 0 && t < g.size.t;
        place = (int64_t(t) * g.size.h + h) * g.size.w + w;
      }
      packet.lanes[e] = inside ? from[place] : T(0.0f);
    }
    pkb::store_packet(to.input + at, packet);
  }
}

// Hooks that load the input of a tap where B would be: steps go through the channels of one tap, then of the next.
template <class Hooks>
struct Taps : Hooks {
  Triple kernel, stride, dilation, size, out_size;  // size: of the padded input
  int channels;                                     // padded to whole stages

  explicit Taps(const Hooks& hooks) : Hooks(hooks) {}

  template <int kBoxes>
  struct Boxes {
    const Taps& taps;
    int first[kBoxes];  // element of the input that the first tap of each box begins with
    int channel = 0, w = 0, h = 0, shift = 0;

    __device__ __forceinline__ int col(int box) const { return first[box] + shift; }
    __device__ __forceinline__ int row(int) const { return channel; }
    __device__ __forceinline__ void advance() {
      channel += pkb::gemm::kBlockK;
      if (channel < taps.channels) return;
      channel = 0;
      shift += taps.dilation.w;
      if (++w < taps.kernel.w) return;
      w = 0;
      shift += taps.dilation.h * taps.size.w - taps.kernel.w * taps.dilation.w;
      if (++h < taps.kernel.h) return;
      h = 0;
      shift += (taps.dilation.t * taps.size.h - taps.kernel.h * taps.dilation.h) * taps.size.w;
    }
  };

  template <class Shape, int kBoxes>
  __device__ __forceinline__ Boxes<kBoxes> boxes_of_b(int col) const {
    Boxes<kBoxes> boxes{*this};
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      const int at = col + i * pkb::gemm::kBoxCols, row = at / out_size.w;
      const int t = row / out_size.h, h = row % out_size.h;
      boxes.first[i] = (t * stride.t * size.h + h * stride.h) * size.w + at % out_size.w;
    }
    return boxes;
  }
};

template <class T, class Shape, class Hooks>
void launch_product(const Convolution<T>& g, const Arranged<T>& from, const Product& product, const Hooks& hooks,
                    cudaStream_t stream) {
  Taps<Hooks> taps(hooks);
  taps.kernel = g.kernel;
  taps.stride = g.stride;
  taps.dilation = g.dilation;
  taps.size = from.size;
  taps.out_size = g.out_size;
  taps.channels = from.channels;
  const pkb::gemm::Changed<Taps<Hooks>, AddBias<T>> changed(taps, AddBias<T>{g.bias}, g.filters, g.out_size.count());
  pkb::gemm::launch<T, Shape>(product, changed, stream);
}

// Returns whether the sum could be exchanged as the tensor cores form it.
template <class T, class Shape>
bool on_tensor_cores(const Convolution<T>& g, const pkb::Comm& comm) {
  using Reduce = pkb::gemm::Reduce<Shape>;
  const int64_t positions = g.out_size.count(), taps = g.kernel.count();
  Arranged<T> to{};
  to.channels = pkb::gemm::divide_up(g.channels, pkb::gemm::kBlockK) * pkb::gemm::kBlockK;
  to.size = {g.size.t + 2 * g.padding.t, g.size.h + 2 * g.padding.h, g.size.w + 2 * g.padding.w};
  to.stride = (to.size.count() + 7) / 8 * 8;
  Product product = pkb::gemm::tiles<Shape>(g.filters, positions, taps * to.channels);
  const int W = comm.world_size;
  if (W > 1 && !Reduce::suits(comm, product.tiles)) return false;

  const int64_t filters = g.filters * taps * to.channels, inputs = g.channels * to.stride;
  to.weight = pkb::kept_memory<T>(filters + inputs);
  to.input = to.weight + filters;
  arrange<<<pkb::blocks_for(filters + inputs, kThreads * 8, 1), kThreads, 0, comm.cuda_stream()>>>(g, to);
  PKB_CUDA_LAUNCHED();

  product.a[0] = pkb::gemm::operand_map<T>(to.weight, g.filters, taps * to.channels, taps * to.channels,
                                           pkb::gemm::kBlockM);
  product.b[0] = pkb::gemm::operand_map<T>(to.input, g.channels, to.size.count(), to.stride, pkb::gemm::kBlockK);
  product.destinations = W;
  for (int k = 0; k < W; ++k) {
    product.out[k] = pkb::gemm::operand_map<T>(comm.peer(g.out, (comm.rank + k + 1) % W), g.filters, positions,
                                               positions, pkb::gemm::kStoreRows);
  }
  if (W > 1) launch_product<T, Shape>(g, to, product, Reduce(comm, product, 0), comm.cuda_stream());
  else launch_product<T, Shape>(g, to, product, pkb::gemm::Plain(), comm.cuda_stream());
  return true;
}

// ---- on CUDA cores ----

constexpr int kTile = 64, kDepth = 16, kEach = 4, kTileSums = kTile * kTile;

// Tiles of 64 filters of a group by 64 positions of a sample, in that order from the outermost: samples, groups with
// their filters, positions.
struct Tiles {
  int64_t columns;        // of tiles, along positions
  int rows, rows_of_group;  // of tiles, along the filters of all groups, and of one

  struct Place {
    int64_t sample, group, row, col;  // row, col: first filter of the group, first position
  };

  template <class T>
  __host__ __device__ explicit Tiles(const Convolution<T>& g)
      : columns((g.out_size.count() + kTile - 1) / kTile),
        rows((g.filters / g.groups + kTile - 1) / kTile * g.groups),
        rows_of_group(rows / g.groups) {}

  __device__ Place place(int64_t tile) const {
    const int64_t row = tile / columns % rows;
    return {tile / columns / rows, row / rows_of_group, row % rows_of_group * kTile, tile % columns * kTile};
  }
};

// A block makes one tile, of those from `first` on: partial sums of this rank's channels.
template <class T>
__global__ void __launch_bounds__(kThreads)
    convolve(const __grid_constant__ Convolution<T> g, int64_t first, float* partial) {
  __shared__ float filters[kDepth][kTile + 1], inputs[kDepth][kTile];
  const int thread = int(threadIdx.x), first_row = thread / 16 * kEach, first_col = thread % 16;
  const int of_group = g.filters / g.groups, channels = g.channels / g.groups;
  const int64_t positions = g.out_size.count(), taps = g.kernel.count(), elements = g.size.count();
  const Tiles::Place place = Tiles(g).place(first + blockIdx.x);
  const T* input = g.input + (place.sample * g.channels + place.group * channels) * elements;
  const T* weight = g.weight + place.group * of_group * channels * taps;
  // A thread loads inputs of one position alone.
  const int64_t at = place.col + thread % kTile;
  const int w0 = int(at % g.out_size.w) * g.stride.w - g.padding.w;
  const int h0 = int(at / g.out_size.w % g.out_size.h) * g.stride.h - g.padding.h;
  const int t0 = int(at / g.out_size.w / g.out_size.h) * g.stride.t - g.padding.t;
  float sums[kEach][kEach] = {};
  for (int tap = 0; tap < taps; ++tap) {
    const int w = w0 + tap % g.kernel.w * g.dilation.w, h = h0 + tap / g.kernel.w % g.kernel.h * g.dilation.h;
    const int t = t0 + tap / g.kernel.w / g.kernel.h * g.dilation.t;
    const bool inside = at < positions && w >= 0 && w < g.size.w && h >= 0 && h < g.size.h && t >= 0 && t < g.size.t;
    const T* of_position = input + (int64_t(t) * g.size.h + h) * g.size.w + w;
    for (int channel = 0; channel < channels; channel += kDepth) {
      for (int i = thread; i < kTile * kDepth; i += kThreads) {
        const int64_t row = place.row + i / kDepth, k = channel + i % kDepth;
        filters[i % kDepth][i / kDepth] =
            row < of_group && k < channels ? pkb::to_float(weight[(row * channels + k) * taps + tap]) : 0.0f;
      }
      for (int i = thread; i < kTile * kDepth; i += kThreads) {
        const int k = channel + i / kTile;
        inputs[i / kTile][i % kTile] = inside && k < channels ? pkb::to_float(of_position[k * elements]) : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
          for (int j = 0; j < kEach; ++j) sums[i][j] += filters[k][first_row + i] * inputs[k][first_col + 16 * j];
        }
      }
      __syncthreads();
    }
  }
  float* tile = partial + blockIdx.x * int64_t(kTileSums);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) tile[(first_row + i) * kTile + first_col + 16 * j] = sums[i][j];
  }
}

// Adds up this rank's part of the partial sums that its group has of so many tiles, and stores totals to all of it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_partial(const __grid_constant__ Convolution<T> g, int64_t first, int64_t tiles, const float* partial,
                int64_t group, const __grid_constant__ pkb::Device comm) {
  const int ranks = comm.group_size(group), own = comm.group_rank(group), of_group = g.filters / g.groups;
  const int64_t positions = g.out_size.count(), total = tiles * kTileSums;
  const int64_t begin = total * own / ranks, end = total * (own + 1) / ranks;
  const Tiles all(g);
  for (int64_t i = begin + blockIdx.x * int64_t(kThreads) + threadIdx.x; i < end; i += int64_t(gridDim.x) * kThreads) {
    const Tiles::Place place = all.place(first + i / kTileSums);
    const int64_t row = place.row + i % kTileSums / kTile, col = place.col + i % kTile;
    if (row >= of_group || col >= positions) continue;
    float sum = 0.0f;
    for (int r = 0; r < ranks; ++r) sum += __ldcg(comm.peer(partial, comm.group_member(group, r)) + i);
    const int64_t filter = place.group * of_group + row;
    const T result(AddBias<T>{g.bias}(filter, 0, sum));
    const int64_t to = (place.sample * g.filters + filter) * positions + col;
    for (int r = 0; r < ranks; ++r) comm.peer(g.out, comm.group_member(group, r))[to] = result;
  }
}

// As many tiles at once as scratch holds, which may be fewer than there are: sums are wider than what they are made of.
template <class T>
void on_cuda_cores(const Convolution<T>& g, int64_t group, const pkb::Comm& comm) {
  constexpr uint64_t kOffset = pkb::gemm::Reduce<pkb::gemm::Small>::kFlagBytes;  // no other data lies in flags
  const Tiles all(g);
  const int64_t total = all.columns * all.rows * g.samples;
  const int64_t room = (int64_t(comm.scratch_bytes) - int64_t(kOffset)) / int64_t(kTileSums * sizeof(float));
  if (room < 1) TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold a tile";
  float* partial = comm.scratch<float>(kOffset);
  const bool has_peers = comm.world_size > 1;
  for (int64_t first = 0; first < total; first += room) {
    const int64_t tiles = std::min(room, total - first);
    convolve<T><<<unsigned(tiles), kThreads, 0, comm.cuda_stream()>>>(g, first, partial);
    PKB_CUDA_LAUNCHED();
    if (has_peers) comm.barrier(group);
    add_partial<T><<<pkb::blocks_for(tiles * kTileSums, kThreads), kThreads, 0, comm.cuda_stream()>>>(
        g, first, tiles, partial, group, comm.device());
    PKB_CUDA_LAUNCHED();
    if (has_peers) comm.barrier(group);
  }
}

template <class T>
void launch(const Convolution<T>& g, int64_t group, const pkb::Comm& comm) {
  if (int64_t(g.samples) * g.filters * g.out_size.count() == 0) return;
  if constexpr (sizeof(T) == 2) {
    const bool suits = g.samples == 1 && g.groups == 1 && g.stride.w == 1 && g.out_size.w % pkb::gemm::kBoxCols == 0 &&
                       comm.group(group).size == comm.world_size && comm.world_size <= pkb::gemm::kMaxParts;
    const bool is_large = pkb::gemm::is_large(g.filters, g.out_size.count());
    if (suits && is_large && on_tensor_cores<T, pkb::gemm::Deep>(g, comm)) return;
    if (suits && on_tensor_cores<T, pkb::gemm::Small>(g, comm)) return;
  }
  on_cuda_cores(g, group, comm);
}

}  // namespace

void solution(TensorView input, TensorView weight, Optional<TensorView> bias, Array<int64_t> stride,
              Array<int64_t> padding, Array<int64_t> dilation, int64_t groups, int64_t group, TensorView out,
              pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(input.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto of = [](const TensorView& x) { return static_cast<T*>(x.data_ptr()); };
    const auto spatial = [](const TensorView& x) { return Triple{int(x.size(2)), int(x.size(3)), int(x.size(4))}; };
    const auto triple = [](const Array<int64_t>& x) { return Triple{int(x[0]), int(x[1]), int(x[2])}; };
    Convolution<T> g{of(input), of(weight), bias.has_value() ? of(*bias) : nullptr, of(out)};
    g.samples = int(input.size(0));
    g.channels = int(input.size(1));
    g.filters = int(weight.size(0));
    g.groups = int(groups);
    g.size = spatial(input);
    g.kernel = spatial(weight);
    g.stride = triple(stride);
    g.padding = triple(padding);
    g.dilation = triple(dilation);
    g.out_size = spatial(out);
    launch(g, group, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
