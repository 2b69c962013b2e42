// Sorts keys of 16, 32 or 64 bits in memory of this rank by a radix sort, without the host and in the same way each time.
//
//   pkb::RadixSort<uint32_t> sort{spare, state};       // spare: room for the keys; state: RadixSort::state_bytes(n)
//   sort.launch(n, load, out, store, stream);          // load(i) is key i; out has room for n keys
//
// Each pass moves keys by 8 bits, from the lowest. Blocks take tiles in the order in which they begin; a tile's keys get
// their places from the counts of all tiles before it, found by decoupled look-back, so that a pass reads and writes keys
// once: "Onesweep" (Adinets and Merrill 2022), "Single-pass parallel prefix scan with decoupled look-back" (Merrill and
// Garland 2016). All digits are counted in one read before. Keys of one tile are sorted by one block in shared memory.
//
// Bound: memory, a read for the counts, and a read and a write a pass; below some thousand keys the latency of passes.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "pkb/launch_cuda.h"
#include "pkb/teams_cuda.h"

namespace pkb {
namespace radix {

constexpr int kThreads = 256, kWarps = kThreads / 32, kDigits = 256;
static_assert(kThreads == kDigits, "a thread looks after a digit");
constexpr int kItems = 16;  // keys of a thread
constexpr int kTile = kThreads * kItems;
template <class Key>
constexpr int kPasses = int(sizeof(Key));

// What a sort that spans tiles counts; zero at first. Counts of tiles are words of their own: a tag in the highest bits tells
// whether the tile's count alone is there, or that of all tiles up to it.
constexpr uint64_t kOwn = uint64_t(1) << 62, kUpTo = uint64_t(2) << 62, kCountMask = kOwn - 1;

template <class Key>
struct Counts {
  unsigned long long digits[kPasses<Key>][kDigits];  // of all keys
  unsigned next_tile[kPasses<Key>];
  unsigned pad[16 - kPasses<Key>];
  // Then, for each pass and tile, a word a digit.
  __host__ __device__ uint64_t* tiles() { return reinterpret_cast<uint64_t*>(this + 1); }
};

__device__ __forceinline__ uint64_t load_word(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ void store_word(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

template <class Key>
__device__ __forceinline__ int digit_of(Key key, int pass) {
  return int(key >> 8 * pass) & (kDigits - 1);
}

// What a tile's keys share.
template <class Key>
struct Shared {
  uint32_t of_warps[kWarps][kDigits];  // counts, then where a warp's keys of a digit begin in the tile
  uint32_t begins[kDigits + 1];        // where a digit's keys begin in the tile
  Key keys[kTile];
};

// Places in the tile, by one digit, of the keys that a thread holds: warp w has a run of 32 * kItems keys, of which a lane
// has every 32nd. `size` keys exist. Threads of the block meet at the end.
template <class Key>
__device__ __forceinline__ void rank_keys(Shared<Key>& shared, const Key (&keys)[kItems], int size, int pass,
                                          uint32_t (&places)[kItems]) {
  const int thread = int(threadIdx.x), warp = warp_id(), lane = lane_id();
  for (int w = 0; w < kWarps; ++w) shared.of_warps[w][thread] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool exists = (warp * kItems + i) * 32 + lane < size;
    const int digit = exists ? digit_of(keys[i], pass) : kDigits;
    const unsigned alike = __match_any_sync(kAllLanes, digit);
    uint32_t before = 0;
    if (exists) before = shared.of_warps[warp][digit];
    __syncwarp();
    places[i] = before + lanes_before(alike);
    if (exists && lanes_before(alike) == 0) shared.of_warps[warp][digit] = before + __popc(alike);
    __syncwarp();
  }
  __syncthreads();
  uint32_t all = 0;  // of the thread's digit
  for (int w = 0; w < kWarps; ++w) {
    const uint32_t count = shared.of_warps[w][thread];
    shared.of_warps[w][thread] = all;
    all += count;
  }
  uint32_t up_to = all;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, up_to, apart);
    if (lane >= apart) up_to += other;
  }
  __shared__ uint32_t sums[kWarps];
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  for (int w = 0; w < warp; ++w) up_to += sums[w];
  shared.begins[thread + 1] = up_to;
  if (thread == 0) shared.begins[0] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((warp * kItems + i) * 32 + lane >= size) continue;
    const int digit = digit_of(keys[i], pass);
    places[i] += shared.begins[digit] + shared.of_warps[warp][digit];
  }
}

template <class Key>
__device__ __forceinline__ void store_by_place(Shared<Key>& shared, const Key (&keys)[kItems], int size,
                                               const uint32_t (&places)[kItems]) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((warp_id() * kItems + i) * 32 + lane_id() < size) shared.keys[places[i]] = keys[i];
  }
  __syncthreads();
}

// At most a tile of keys, by one block.
template <class Key, class Load, class Store>
__global__ void __launch_bounds__(kThreads) sort_tile(int size, const Load load, const Store store) {
  extern __shared__ __align__(16) char dynamic[];
  auto& shared = *reinterpret_cast<Shared<Key>*>(dynamic);
  Key keys[kItems];
  uint32_t places[kItems];
  const int first = warp_id() * kItems * 32 + lane_id();
#pragma unroll
  for (int i = 0; i < kItems; ++i) keys[i] = first + i * 32 < size ? load(first + i * 32) : Key(0);
  for (int pass = 0; pass < kPasses<Key>; ++pass) {
    rank_keys(shared, keys, size, pass, places);
    store_by_place(shared, keys, size, places);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (first + i * 32 < size) keys[i] = shared.keys[first + i * 32];
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i * 32 < size) store(first + i * 32, keys[i]);
  }
}

template <class Key, class Load>
__global__ void __launch_bounds__(kThreads) count_digits(uint64_t size, const Load load, Counts<Key>* state) {
  __shared__ uint32_t counts[kPasses<Key>][kDigits];
  for (int pass = 0; pass < kPasses<Key>; ++pass) counts[pass][threadIdx.x] = 0;
  __syncthreads();
#pragma unroll 4
  for (uint64_t i = blockIdx.x * uint64_t(kThreads) + threadIdx.x; i < size; i += gridDim.x * uint64_t(kThreads)) {
    const Key key = load(i);
#pragma unroll
    for (int pass = 0; pass < kPasses<Key>; ++pass) atomicAdd(&counts[pass][digit_of(key, pass)], 1u);
  }
  __syncthreads();
  for (int pass = 0; pass < kPasses<Key>; ++pass) {
    if (counts[pass][threadIdx.x]) atomicAdd(&state->digits[pass][threadIdx.x], uint64_t(counts[pass][threadIdx.x]));
  }
}

// One pass, a tile a block.
template <class Key, class Load, class Store>
__global__ void __launch_bounds__(kThreads)
    sweep(uint64_t size, int pass, const Load load, const Store store, Counts<Key>* state, unsigned tiles) {
  extern __shared__ __align__(16) char dynamic[];
  auto& shared = *reinterpret_cast<Shared<Key>*>(dynamic);
  __shared__ uint64_t targets[kDigits];  // where the tile's keys of a digit belong, less their place in the tile
  __shared__ uint64_t sums[kWarps];
  __shared__ unsigned tile;
  const int thread = int(threadIdx.x), warp = warp_id(), lane = lane_id();
  if (thread == 0) tile = atomicAdd(&state->next_tile[pass], 1u);
  __syncthreads();
  const uint64_t begin = uint64_t(tile) * kTile;
  const int count = int(size - begin < kTile ? size - begin : kTile);
  Key keys[kItems];
  uint32_t places[kItems];
  const int first = warp * kItems * 32 + lane;
#pragma unroll
  for (int i = 0; i < kItems; ++i) keys[i] = first + i * 32 < count ? load(begin + first + i * 32) : Key(0);
  rank_keys(shared, keys, count, pass, places);

  // The thread's digit: its keys in the tile are told to later tiles, and those of earlier ones added up.
  uint64_t* words = state->tiles() + (uint64_t(pass) * tiles) * kDigits + thread;
  const uint64_t own = shared.begins[thread + 1] - shared.begins[thread];
  uint64_t before = 0;
  if (tile > 0) {
    store_word(words + uint64_t(tile) * kDigits, kOwn | own);
    for (unsigned earlier = tile; earlier > 0;) {
      const uint64_t word = load_word(words + uint64_t(earlier - 1) * kDigits);
      if (word == 0) continue;
      before += word & kCountMask;
      if (word & kUpTo) break;
      --earlier;
    }
  }
  store_word(words + uint64_t(tile) * kDigits, kUpTo | (before + own));

  // Keys of smaller digits.
  const uint64_t of_digit = state->digits[pass][thread];
  uint64_t up_to = of_digit;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, up_to, apart);
    if (lane >= apart) up_to += other;
  }
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  for (int w = 0; w < warp; ++w) up_to += sums[w];
  targets[thread] = up_to - of_digit + before - shared.begins[thread];
  store_by_place(shared, keys, count, places);
#pragma unroll 4
  for (int i = thread; i < count; i += kThreads) {
    const Key key = shared.keys[i];
    store(targets[digit_of(key, pass)] + i, key);
  }
}

}  // namespace radix

template <class Key>
struct LoadKey {
  const Key* keys;
  __device__ Key operator()(uint64_t i) const { return keys[i]; }
};
template <class Key>
struct StoreKey {
  Key* keys;
  __device__ void operator()(uint64_t i, Key key) const { keys[i] = key; }
};

// What a sort needs besides the keys; used by one sort at a time.
template <class Key>
struct RadixSort {
  Key* spare;   // room for the keys
  void* state;  // state_bytes(n), aligned to 16 bytes

  static uint64_t state_bytes(uint64_t n) {
    return sizeof(radix::Counts<Key>) + radix::kPasses<Key> * tiles(n) * radix::kDigits * sizeof(uint64_t);
  }

  // Enqueues the sort of keys load(0) .. load(n - 1). All but the last pass write `out` and the spare keys in turn, and
  // the last one calls store(place, key), which may be a StoreKey of `out`.
  template <class Load, class Store>
  void launch(uint64_t n, const Load& load, Key* out, const Store& store, cudaStream_t stream) const {
    using namespace radix;
    constexpr int kShared = int(sizeof(Shared<Key>));
    if (n == 0) return;
    if (n <= uint64_t(kTile)) {
      allow_shared_memory<sort_tile<Key, Load, Store>>(kShared);
      sort_tile<Key, Load, Store><<<1, kThreads, kShared, stream>>>(int(n), load, store);
      PKB_CUDA_LAUNCHED();
      return;
    }
    auto* const counts = static_cast<Counts<Key>*>(state);
    const auto blocks = unsigned(tiles(n));
    PKB_CUDA(cudaMemsetAsync(state, 0, state_bytes(n), stream));
    count_digits<Key><<<std::min(blocks, 4 * unsigned(multiprocessors())), kThreads, 0, stream>>>(n, load, counts);
    const StoreKey<Key> to_spare{spare}, to_out{out};
    for (int pass = 0; pass < kPasses<Key>; ++pass) {
      const LoadKey<Key> from{pass % 2 ? spare : out};
      if (pass == 0) start<Load, StoreKey<Key>>(blocks, n, pass, load, to_spare, counts, stream);
      else if (pass == kPasses<Key> - 1) start<LoadKey<Key>, Store>(blocks, n, pass, from, store, counts, stream);
      else start<LoadKey<Key>, StoreKey<Key>>(blocks, n, pass, from, pass % 2 ? to_out : to_spare, counts, stream);
    }
    PKB_CUDA_LAUNCHED();
  }

 private:
  static uint64_t tiles(uint64_t n) { return (n + radix::kTile - 1) / radix::kTile; }

  template <class Load, class Store>
  static void start(unsigned blocks, uint64_t n, int pass, const Load& load, const Store& store,
                    radix::Counts<Key>* counts, cudaStream_t stream) {
    constexpr int kShared = int(sizeof(radix::Shared<Key>));
    allow_shared_memory<radix::sweep<Key, Load, Store>>(kShared);
    radix::sweep<Key, Load, Store><<<blocks, radix::kThreads, kShared, stream>>>(n, pass, load, store, counts, blocks);
  }
};

}  // namespace pkb
