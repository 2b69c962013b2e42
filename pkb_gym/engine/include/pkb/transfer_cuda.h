// Pieces of GPU kernels that copy tensors between ranks or add them up: 16 bytes an access, several accesses of a
// thread in flight, any address and any length. Addresses and lengths that are multiples of 16 bytes are fast.
//
//   __global__ void __launch_bounds__(pkb::kTransferThreads)
//   fetch(char* to, const char* from, uint64_t bytes) {
//     pkb::copy(to, from, bytes, blockIdx.x, gridDim.x);
//   }
//   fetch<<<pkb::blocks_for(bytes, pkb::kCopyTile), pkb::kTransferThreads, 0, comm.cuda_stream()>>>(to, from, bytes);
//
// The device functions are called by all threads of a one-dimensional block of kTransferThreads; `part` of `parts` is
// which of the blocks that share the work it is. They order nothing: what they read must have been written before the
// kernel began, or before a wait or barrier in it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifndef PKB_LIGHT_FFI
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#endif

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"

// These depend on the machine; each can be set for tuning.
#ifndef PKB_BLOCKS_PER_SM
#define PKB_BLOCKS_PER_SM 2
#endif
#ifndef PKB_CROSSING_BYTES
#define PKB_CROSSING_BYTES (400 << 10)
#endif
#ifndef PKB_COPY_ENGINE_BYTES
#define PKB_COPY_ENGINE_BYTES (16 << 20)
#endif

namespace pkb {

constexpr int kTransferThreads = 256;
constexpr int kBlocksPerSm = PKB_BLOCKS_PER_SM;  // keep some megabytes in flight, several times what latency asks for
constexpr uint64_t kCrossingBytes = PKB_CROSSING_BYTES;       // the link moves them in the time of one crossing
constexpr uint64_t kCopyEngineBytes = PKB_COPY_ENGINE_BYTES;  // smallest copy that a copy engine makes faster
constexpr int kVectorBytes = 16;
constexpr int kLineBytes = 128;  // parts that begin at lines make whole packets on the link
constexpr int kLoadsAtOnce = 4;  // independent loads of a thread
// What a block takes in one round.
constexpr uint64_t kCopyTile = uint64_t(kTransferThreads) * kLoadsAtOnce * kVectorBytes;
constexpr uint64_t kSumTile = uint64_t(kTransferThreads) * kVectorBytes;

// ---- on the host ----------------------------------------------------------------------------------------------------

// Bytes of a tensor; throws unless it is contiguous and made of whole bytes.
inline uint64_t contiguous_bytes(const tvm::ffi::TensorView& x) {
  const uint64_t bits = uint64_t(x.dtype().bits) * x.dtype().lanes;
  if (bits % 8 != 0) TVM_FFI_THROW(TypeError) << "expected elements of whole bytes, got " << x.dtype();
  if (!x.IsContiguous()) TVM_FFI_THROW(ValueError) << "expected a contiguous tensor, got strides " << x.strides();
  return uint64_t(x.numel()) * bits / 8;
}

// Calls f with a zero of the element type: f(__nv_bfloat16{}), or __half, float, double.
template <class F>
void with_float_type(DLDataType dtype, F f) {
  with_type<__nv_bfloat16, __half, float, double>(dtype, f);
}

// kBlocksPerSm for each multiprocessor of this GPU.
inline uint64_t max_blocks() { return uint64_t(multiprocessors()) * kBlocksPerSm; }

// Blocks for `bytes` in tiles of `tile`, at least one and at most 1 / `shares` of max_blocks().
inline unsigned blocks_for(uint64_t bytes, uint64_t tile, uint64_t shares = 1) {
  const uint64_t most = std::max<uint64_t>(max_blocks() / shares, 1);
  return unsigned(std::clamp<uint64_t>((bytes + tile - 1) / tile, 1, most));
}

struct Move {
  void* to;
  const void* from;
};

// Enqueues `count` (1 .. kMaxRanks) copies of `bytes` each, side by side on copy engines; what is enqueued on `stream`
// afterwards waits for all of them.
inline void copy_side_by_side(const Move* moves, int count, uint64_t bytes, cudaStream_t stream) {
  struct Side {
    cudaStream_t stream;
    cudaEvent_t done;
  };
  static cudaEvent_t begun;
  static const std::array<Side, kMaxRanks - 1> sides = [] {
    std::array<Side, kMaxRanks - 1> made;
    PKB_CUDA(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
    for (Side& side : made) {
      PKB_CUDA(cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking));
      PKB_CUDA(cudaEventCreateWithFlags(&side.done, cudaEventDisableTiming));
    }
    return made;
  }();
  const int aside = count - 1;  // the last one needs no stream of its own
  if (aside > 0) PKB_CUDA(cudaEventRecord(begun, stream));
  for (int i = 0; i < aside; ++i) {
    PKB_CUDA(cudaStreamWaitEvent(sides[i].stream, begun));
    PKB_CUDA(cudaMemcpyAsync(moves[i].to, moves[i].from, bytes, cudaMemcpyDeviceToDevice, sides[i].stream));
    PKB_CUDA(cudaEventRecord(sides[i].done, sides[i].stream));
  }
  PKB_CUDA(cudaMemcpyAsync(moves[aside].to, moves[aside].from, bytes, cudaMemcpyDeviceToDevice, stream));
  for (int i = 0; i < aside; ++i) PKB_CUDA(cudaStreamWaitEvent(stream, sides[i].done));
}

// ---- copies in a kernel ---------------------------------------------------------------------------------------------

// copy_to_all() in units of one size, which all addresses are multiples of.
template <class Unit, class To>
__device__ __forceinline__ void copy_units(int copies, const To& to, const char* from, uint64_t bytes, uint64_t part,
                                           uint64_t parts) {
  constexpr uint64_t kTile = uint64_t(kTransferThreads) * kLoadsAtOnce;
  const Unit* source = reinterpret_cast<const Unit*>(from);
  const uint64_t units = bytes / sizeof(Unit);
  for (uint64_t first = part * kTile + threadIdx.x; first < units; first += parts * kTile) {
    Unit values[kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      const uint64_t i = first + k * kTransferThreads;
      if (i < units) values[k] = __ldcs(source + i);
    }
#pragma unroll 1
    for (int copy = 0; copy < copies; ++copy) {
      Unit* target = reinterpret_cast<Unit*>(to(copy));
#pragma unroll
      for (int k = 0; k < kLoadsAtOnce; ++k) {
        const uint64_t i = first + k * kTransferThreads;
        if (i < units) target[i] = values[k];
      }
    }
  }
  const uint64_t rest = units * sizeof(Unit) + threadIdx.x;
  if (part == 0 && rest < bytes) {
#pragma unroll 1
    for (int copy = 0; copy < copies; ++copy) to(copy)[rest] = from[rest];
  }
}

// Copies `bytes` from `from` to each of to(0) .. to(copies - 1), which return char*; reads them once.
template <class To>
__device__ __forceinline__ void copy_to_all(int copies, const To& to, const char* from, uint64_t bytes, uint64_t part,
                                            uint64_t parts) {
  uint64_t misfit = reinterpret_cast<uintptr_t>(from);
#pragma unroll 1
  for (int copy = 0; copy < copies; ++copy) misfit |= reinterpret_cast<uintptr_t>(to(copy));
  if (misfit % sizeof(uint4) == 0) {
    copy_units<uint4>(copies, to, from, bytes, part, parts);
  } else if (misfit % sizeof(uint2) == 0) {
    copy_units<uint2>(copies, to, from, bytes, part, parts);
  } else if (misfit % sizeof(uint32_t) == 0) {
    copy_units<uint32_t>(copies, to, from, bytes, part, parts);
  } else if (misfit % sizeof(uint16_t) == 0) {
    copy_units<uint16_t>(copies, to, from, bytes, part, parts);
  } else {
    copy_units<uint8_t>(copies, to, from, bytes, part, parts);
  }
}

// Copies `bytes` from `from` to `to`.
__device__ __forceinline__ void copy(char* to, const char* from, uint64_t bytes, uint64_t part, uint64_t parts) {
  copy_to_all(1, [=](int) { return to; }, from, bytes, part, parts);
}

// The same by one block, all of it. Out of line: the code for all alignments stands in a kernel once.
template <int kThreads = kTransferThreads>
__device__ __noinline__ void copy_slice(void* to, const void* from, uint64_t bytes) {
  copy(static_cast<char*>(to), static_cast<const char*>(from), bytes, 0, 1);
}

// ---- sums in a kernel -----------------------------------------------------------------------------------------------

// Neighbouring elements that one access moves.
template <class T, int kLanes>
struct alignas(sizeof(T) * kLanes) Packet {
  T lanes[kLanes];
};

// The whole number as wide as a packet, for loads and stores.
template <int kBytes>
struct UnitOf;
template <>
struct UnitOf<16> { using type = uint4; };
template <>
struct UnitOf<8> { using type = uint2; };
template <>
struct UnitOf<4> { using type = uint32_t; };
template <>
struct UnitOf<2> { using type = uint16_t; };
template <>
struct UnitOf<1> { using type = uint8_t; };

// Loads a packet that is used once.
template <class T, int kLanes>
__device__ __forceinline__ Packet<T, kLanes> load_packet(const T* from) {
  using Unit = typename UnitOf<int(sizeof(T)) * kLanes>::type;
  const Unit unit = __ldcs(reinterpret_cast<const Unit*>(from));
  Packet<T, kLanes> packet;
  memcpy(&packet, &unit, sizeof(Unit));
  return packet;
}

template <class T, int kLanes>
__device__ __forceinline__ void store_packet(T* to, const Packet<T, kLanes>& packet) {
  using Unit = typename UnitOf<int(sizeof(T)) * kLanes>::type;
  Unit unit;
  memcpy(&unit, &packet, sizeof(Unit));
  *reinterpret_cast<Unit*>(to) = unit;
}

// Sums are float32 (float64 for float64), rounded once.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The sum of term(0)[i ..] .. term(terms - 1)[i ..], in this order, for kLanes elements.
template <class T, int kLanes, class Term>
__device__ __forceinline__ Packet<T, kLanes> add_packets(int terms, const Term& term, uint64_t i) {
  Accumulator<T> sums[kLanes] = {};
#pragma unroll 1
  for (int first = 0; first < terms; first += kLoadsAtOnce) {
    Packet<T, kLanes> packets[kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      if (first + k < terms) packets[k] = load_packet<T, kLanes>(term(first + k) + i);
    }
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      if (first + k >= terms) break;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<Accumulator<T>>(packets[k].lanes[lane]);
    }
  }
  Packet<T, kLanes> sum;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) sum.lanes[lane] = static_cast<T>(sums[lane]);
  return sum;
}

// add_up() by packets of kLanes elements, which all addresses are multiples of.
template <class T, int kLanes, class Term, class Result>
__device__ __forceinline__ void add_up_packets(uint64_t count, int terms, const Term& term, int results,
                                               const Result& result, uint64_t part, uint64_t parts) {
  const uint64_t whole = count - count % kLanes;
  constexpr uint64_t kTile = uint64_t(kTransferThreads) * kLanes;
  for (uint64_t i = part * kTile + threadIdx.x * kLanes; i < whole; i += parts * kTile) {
    const Packet<T, kLanes> sum = add_packets<T, kLanes>(terms, term, i);
#pragma unroll 1
    for (int k = 0; k < results; ++k) store_packet(result(k) + i, sum);
  }
  const uint64_t rest = whole + threadIdx.x;
  if (part == 0 && rest < count) {
    const Packet<T, 1> sum = add_packets<T, 1>(terms, term, rest);
#pragma unroll 1
    for (int k = 0; k < results; ++k) store_packet(result(k) + rest, sum);
  }
}

// Adds up `count` elements of each of term(0) .. term(terms - 1), in this order, and stores the sums to each of
// result(0) .. result(results - 1); term() returns const T* and result() T*. Terms are counterparts of one another on
// different ranks, and so are results: all are aligned as the first of each.
template <class T, class Term, class Result>
__device__ __forceinline__ void add_up(uint64_t count, int terms, const Term& term, int results, const Result& result,
                                       uint64_t part, uint64_t parts) {
  const uint64_t misfit = reinterpret_cast<uintptr_t>(term(0)) | reinterpret_cast<uintptr_t>(result(0));
  if (misfit % kVectorBytes == 0) {
    add_up_packets<T, kVectorBytes / int(sizeof(T))>(count, terms, term, results, result, part, parts);
  } else {
    add_up_packets<T, 1>(count, terms, term, results, result, part, parts);
  }
}

}  // namespace pkb
