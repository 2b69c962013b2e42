// Lists of tensors of any shapes, such as the gradients of a model, that one kernel handles: tiles of all tensors are
// numbered through, and blocks take them in turn, so that many small tensors keep a GPU as busy as one large tensor.
//
//   const auto list = pkb::TensorList<T, 128>::of(tensors);      // on the host; the list is a kernel's argument
//   pkb::visit_tiles(list, pkb::Order::kForward, [&](uint32_t tile, T* begin, uint32_t elements) { ... });
//
// Tensors begin at multiples of 16 bytes. Bound: memory; a visit of all tiles costs one read of them. A list is passed
// by value, 20 bytes a tensor.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {

// Elements of a tile: what a block of kTransferThreads loads at a time.
template <class T>
constexpr uint32_t kListTile = uint32_t(kCopyTile / sizeof(T));

enum class Order { kForward, kBackward };

template <class T, int kCapacity>
struct TensorList {
  T* data[kCapacity];
  uint64_t elements[kCapacity];
  uint32_t tiles_up_to[kCapacity];  // of this tensor and those before it
  int size = 0;

  __host__ __device__ uint32_t tiles() const { return size ? tiles_up_to[size - 1] : 0; }

  // Adds a tensor; empty ones are left out. Throws if the list is full.
  void add(void* first, uint64_t count) {
    if (count == 0) return;
    if (size == kCapacity) TVM_FFI_THROW(ValueError) << "expected at most " << kCapacity << " tensors";
    const uint32_t before = tiles();
    data[size] = static_cast<T*>(first);
    elements[size] = count;
    tiles_up_to[size++] = before + uint32_t((count + kListTile<T> - 1) / kListTile<T>);
  }
};

// Calls f(tile, begin, elements) for each tile of this block: tile blockIdx.x and every gridDim.x-th after it. Backward,
// the last is the first: what a forward visit read last is still in the L2 cache.
template <class T, int kCapacity, class F>
__device__ __forceinline__ void visit_tiles(const TensorList<T, kCapacity>& list, Order order, const F& f) {
  const uint32_t tiles = list.tiles();
  if (blockIdx.x >= tiles) return;
  const uint32_t own = (tiles - 1 - blockIdx.x) / gridDim.x + 1;
  int tensor = order == Order::kForward ? 0 : list.size - 1;
  for (uint32_t i = 0; i < own; ++i) {
    const uint32_t tile = blockIdx.x + (order == Order::kForward ? i : own - 1 - i) * gridDim.x;
    while (tile >= list.tiles_up_to[tensor]) ++tensor;
    while (tensor > 0 && tile < list.tiles_up_to[tensor - 1]) --tensor;
    const uint64_t first = uint64_t(tile - (tensor > 0 ? list.tiles_up_to[tensor - 1] : 0)) * kListTile<T>;
    const uint64_t left = list.elements[tensor] - first;
    f(tile, list.data[tensor] + first, uint32_t(left < kListTile<T> ? left : kListTile<T>));
  }
}

// Vectors of a tile that a thread of kTransferThreads loads together; what lies beyond the tile's end is left zero.
template <class T>
struct TileVectors {
  uint4 vectors[kLoadsAtOnce];

  __device__ static uint32_t first(int load) {
    return (uint32_t(load) * kTransferThreads + threadIdx.x) * uint32_t(kPerVector<T>);
  }

  __device__ __forceinline__ void load(const T* tile, uint32_t elements) {
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      const uint32_t at = first(k);
      vectors[k] = uint4{0, 0, 0, 0};
      if (at + kPerVector<T> <= elements) vectors[k] = load_vector(tile + at);
      else if (at < elements) vectors[k] = last_vector(tile + at, elements - at);
    }
  }

  __device__ __forceinline__ void store(T* tile, uint32_t elements) const {
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      const uint32_t at = first(k);
      if (at + kPerVector<T> <= elements) {
        store_vector(tile + at, vectors[k]);
      } else if (at < elements) {
        const Pack<T> pack = as_pack<T>(vectors[k]);
#pragma unroll
        for (int i = 0; i < kPerVector<T>; ++i) {
          if (at + i < elements) tile[at + i] = pack.values[i];
        }
      }
    }
  }

 private:
  __device__ static uint4 last_vector(const T* from, uint32_t elements) {
    Pack<T> pack{};
#pragma unroll
    for (int i = 0; i < kPerVector<T>; ++i) {
      if (i < elements) pack.values[i] = from[i];
    }
    return reinterpret_cast<const uint4&>(pack);
  }
};

}  // namespace pkb
