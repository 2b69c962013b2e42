// Convolutions of up to three dimensions as products on Hopper's tensor cores, without unfolding, and on CUDA cores.
//
// A convolution is a sum over taps of products of (filters, channels) and (channels, positions), and a tap's right matrix
// is the input from another row on: boxes of 64 positions along W are loaded from there by a tensor map (implicit
// product: Chetlur et al., "cuDNN: efficient primitives for deep learning", 2014). Boxes that begin elsewhere than at
// multiples of 16 bytes can be illegal instructions (seen on an H200), so taps along W have a copy of the input each.
//
//   pkb::convolution::Convolution<T> g{...};             // one sample, or several after each other
//   const pkb::convolution::Arranged<T> to(g);           // copies that the product reads, in kept memory
//   arrange_filters(g, to, first, step); arrange_input(g, to, locate, first, step);  // in a kernel
//   launch_product<T, Shape>(g, to, sample, product, hooks, stream);
//
// On CUDA cores a block of kThreads makes a tile of 64 filters by 64 positions: convolve_tile(). Where a row of the input
// lies is asked of `locate(plane, t, h)`, which returns null for zeros; a plane is a channel of a sample.
//
// Bound: arithmetic, 2 outputs channels taps operations; the copies take a read and a write of filters, and of the input
// as many as there are taps along W.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/gemm_change.h"
#include "pkb/launch_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {
namespace convolution {

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

// Rows of the input, and zeros around them.
template <class T>
struct ZeroPadded {
  const T* input;
  Triple size;

  __device__ __forceinline__ const T* operator()(int64_t plane, int t, int h) const {
    const bool inside = h >= 0 && h < size.h && t >= 0 && t < size.t;
    return inside ? input + plane * size.count() + (int64_t(t) * size.h + h) * size.w : nullptr;
  }
};

template <class T>
struct AddBias {
  const T* bias;
  __device__ __forceinline__ float operator()(int64_t filter, int64_t, float sum) const {
    return bias ? sum + to_float(bias[filter]) : sum;
  }
};

// ---- on tensor cores ----

// Channels, padded to whole stages of a product.
inline int whole_stages(int channels) { return int(gemm::divide_up(channels, gemm::kBlockK) * gemm::kBlockK); }

// Copies that the product reads: filters as (filters, taps, padded channels), and the padded input as (samples, taps along
// W, padded channels, size), where a tap's copy begins with the element that the tap has of the first position.
template <class T>
struct Arranged {
  T *weight, *input;
  int channels;      // padded to whole stages
  Triple size;       // with padding along T and H, and rows of outputs
  int64_t elements;  // in all

  explicit Arranged(const Convolution<T>& g)
      : channels(whole_stages(g.channels)),
        size{g.size.t + 2 * g.padding.t, g.size.h + 2 * g.padding.h, g.out_size.w} {
    const int64_t filters = g.filters * g.kernel.count() * channels;
    elements = filters + g.samples * of_sample(g);
    weight = kept_memory<T>(elements);
    input = weight + filters;
  }

  __host__ __device__ int64_t of_sample(const Convolution<T>& g) const {
    return int64_t(g.kernel.w) * channels * size.count();
  }
};

// Vectors `first`, `first` + `step`, ... of the filters.
template <class T>
__device__ __forceinline__ void arrange_filters(const Convolution<T>& g, const Arranged<T>& to, int64_t first,
                                                int64_t step) {
  constexpr int kLanes = kPerVector<T>;
  const int64_t taps = g.kernel.count(), vectors = g.filters * taps * to.channels / kLanes;
  for (int64_t i = first; i < vectors; i += step) {
    Packet<T, kLanes> packet;
    const int64_t at = i * kLanes, channel = at % to.channels, tap = at / to.channels % taps;
    const int64_t filter = at / to.channels / taps;
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      const bool inside = channel + e < g.channels;
      packet.lanes[e] = inside ? g.weight[(filter * g.channels + channel + e) * taps + tap] : T(0.0f);
    }
    store_packet(to.weight + at, packet);
  }
}

// The same of the input.
template <class T, class Locate>
__device__ __forceinline__ void arrange_input(const Convolution<T>& g, const Arranged<T>& to, const Locate& locate,
                                              int64_t first, int64_t step) {
  constexpr int kLanes = kPerVector<T>;
  const int64_t vectors = g.samples * to.of_sample(g) / kLanes;
  const unsigned of_row = to.size.w / kLanes;
  for (int64_t i = first; i < vectors; i += step) {
    unsigned rest = unsigned(i / of_row);  // divisions of 32 bits: there are fewer rows than that
    const int from = int(i % of_row) * kLanes - g.padding.w;
    const int h = int(rest % to.size.h) - g.padding.h;
    const int t = int((rest /= to.size.h) % to.size.t) - g.padding.t;
    const int channel = int((rest /= to.size.t) % to.channels);
    const int tap = int((rest /= to.channels) % g.kernel.w), sample = int(rest / g.kernel.w);
    const T* row = channel < g.channels ? locate(int64_t(sample) * g.channels + channel, t, h) : nullptr;
    Packet<T, kLanes> packet;
#pragma unroll
    for (int e = 0; e < kLanes; ++e) {
      const int w = from + tap * g.dilation.w + e;
      packet.lanes[e] = row && w >= 0 && w < g.size.w ? row[w] : T(0.0f);
    }
    store_packet(to.input + i * kLanes, packet);
  }
}

// Hooks that load the input of a tap where B would be: steps go through the channels of one tap, then of the next.
template <class Hooks>
struct Taps : Hooks {
  Triple kernel, stride, dilation, size, out_size;  // size: of the arranged input
  int channels;                                     // padded to whole stages

  explicit Taps(const Hooks& hooks) : Hooks(hooks) {}

  template <int kBoxes>
  struct Boxes {
    const Taps& taps;
    int first[kBoxes];  // element of the arranged input that the first tap of each box begins with
    int channel = 0, w = 0, h = 0, shift = 0;

    __device__ __forceinline__ int col(int box) const { return first[box] + shift; }
    __device__ __forceinline__ int row(int) const { return w * taps.channels + channel; }
    __device__ __forceinline__ void advance() {
      channel += gemm::kBlockK;
      if (channel < taps.channels) return;
      channel = 0;
      if (++w < taps.kernel.w) return;
      w = 0;
      shift += taps.dilation.h * taps.size.w;
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
      const int at = col + i * gemm::kBoxCols, row = at / out_size.w;
      const int t = row / out_size.h, h = row % out_size.h;
      boxes.first[i] = (t * stride.t * size.h + h * stride.h) * size.w + at % out_size.w;
    }
    return boxes;
  }
};

// The product of one sample, of which product.destinations and product.out say where it belongs.
template <class T, class Shape, class Hooks>
void launch_product(const Convolution<T>& g, const Arranged<T>& from, int sample, gemm::Product product,
                    const Hooks& hooks, cudaStream_t stream) {
  const int64_t depth = g.kernel.count() * from.channels;
  product.a[0] = gemm::operand_map<T>(from.weight, g.filters, depth, depth, gemm::kBlockM);
  product.b[0] = gemm::operand_map<T>(from.input + sample * from.of_sample(g), g.kernel.w * from.channels,
                                      from.size.count(), from.size.count(), gemm::kBlockK);
  Taps<Hooks> taps(hooks);
  taps.kernel = g.kernel;
  taps.stride = g.stride;
  taps.dilation = g.dilation;
  taps.size = from.size;
  taps.out_size = g.out_size;
  taps.channels = from.channels;
  const gemm::Changed<Taps<Hooks>, AddBias<T>> changed(taps, AddBias<T>{g.bias}, g.filters, g.out_size.count());
  gemm::launch<T, Shape>(product, changed, stream);
}

// Whether products suit: positions of one box lie in one row.
template <class T>
bool suits_tensor_cores(const Convolution<T>& g) {
  return sizeof(T) == 2 && g.groups == 1 && g.stride.w == 1 && g.out_size.w % gemm::kBoxCols == 0;
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

// Makes one tile; store(place, row, col, sum) takes the sums, row and col being those of the tile.
template <class T, class Locate, class Store>
__device__ __forceinline__ void convolve_tile(const Convolution<T>& g, const Tiles::Place& place, const Locate& locate,
                                              const Store& store) {
  __shared__ float filters[kDepth][kTile + 1], inputs[kDepth][kTile];
  const int thread = int(threadIdx.x), first_row = thread / 16 * kEach, first_col = thread % 16;
  const int of_group = g.filters / g.groups, channels = g.channels / g.groups;
  const int64_t positions = g.out_size.count(), taps = g.kernel.count(), elements = g.size.count();
  const int64_t plane = place.sample * g.channels + place.group * channels;
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
    const T* row = at < positions && w >= 0 && w < g.size.w ? locate(plane, t, h) : nullptr;
    const T* of_position = row ? row + w : nullptr;
    for (int channel = 0; channel < channels; channel += kDepth) {
      for (int i = thread; i < kTile * kDepth; i += kThreads) {
        const int64_t row = place.row + i / kDepth, k = channel + i % kDepth;
        filters[i % kDepth][i / kDepth] =
            row < of_group && k < channels ? to_float(weight[(row * channels + k) * taps + tap]) : 0.0f;
      }
      for (int i = thread; i < kTile * kDepth; i += kThreads) {
        const int k = channel + i / kTile;
        inputs[i / kTile][i % kTile] = of_position && k < channels ? to_float(of_position[k * elements]) : 0.0f;
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
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) store(place, first_row + i, first_col + 16 * j, sums[i][j]);
  }
}

}  // namespace convolution
}  // namespace pkb
