// Exchanges whose sizes only devices know: ranks tell each other numbers, such as how many rows they send and where
// these lie or belong, and rows of any width move between them, without the host.
//
//   if (blockIdx.x == 0 && r is another rank) pkb::post_number(comm, r, 0, place);       // at the kernel's beginning
//   const uint32_t place = pkb::await_number(comm, r, 0);                                 // r's call has begun
//   pkb::copy_rows<uint4>(rows, units, [&](uint64_t i) {...}, [&](uint64_t i) {...}, blockIdx.x, gridDim.x);
//
// Numbers lie in scratch in two halves by the parity of the epoch. A kernel in which every rank awaits a number of every
// other one in each call can never overtake a reader. Scratch from kRaggedData on is the kernel's own.
//
// Bound: link, one crossing for the numbers, and then the rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifndef PKB_LIGHT_FFI
#include <tvm/ffi/error.h>
#endif

#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

namespace pkb {

constexpr int kMaxNumbers = 64;                   // of a rank for each other one, in a call
constexpr uint64_t kRaggedWords = 2 * kMaxRanks * kMaxNumbers * sizeof(uint64_t);  // then room for a grid
constexpr uint64_t kRaggedData = 1 << 20;

// Where number `which` of a sender lies in the scratch of rank `receiver`.
__device__ __forceinline__ uint64_t* number_place(const Device& comm, int receiver, int sender, int which) {
  const uint64_t place = (comm.epoch % 2 * kMaxRanks + sender) * kMaxNumbers + which;
  return comm.peer(comm.scratch<uint64_t>() + place, receiver);
}

// Sends rank r a number, by one thread. As Device::signal(), it makes what this thread wrote before visible, and what it
// knows of; and it says that this call has begun here: peers that have it may access this rank's arguments and outputs.
__device__ __forceinline__ void post_number(const Device& comm, int r, int which, uint32_t number) {
  store_release(number_place(comm, r, comm.rank, which), comm.epoch << 32 | number);
}

// Waits for number `which` of rank r, by one thread; a barrier then releases the others.
__device__ __forceinline__ uint32_t await_number(const Device& comm, int r, int which) {
  const uint64_t* place = number_place(comm, comm.rank, r, which);
  uint64_t word;
  do {
    word = load_acquire(place);
  } while (uint32_t(word >> 32) != uint32_t(comm.epoch));
  comm.hold();
  return uint32_t(word);
}

// Copies rows of `units` units each from source(i) to target(i), which return pointers; by all threads of blocks of
// kTransferThreads, of which this is number `part` of `parts`. Sources and targets may lie on any rank, in any order.
template <class Unit, class Source, class Target>
__device__ __forceinline__ void copy_rows(uint64_t rows, uint32_t units, const Source& source, const Target& target,
                                          uint64_t part, uint64_t parts) {
  constexpr uint32_t kTile = kTransferThreads * kLoadsAtOnce;
  const uint64_t all = rows * units;
  for (uint64_t first = part * kTile + threadIdx.x; first < all; first += parts * kTile) {
    uint64_t row = first / units;
    uint32_t unit = uint32_t(first - row * units);
    Unit values[kLoadsAtOnce];
    Unit* to[kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      to[k] = nullptr;
      if (row < rows) {
        values[k] = source(row)[unit];
        to[k] = target(row) + unit;
      }
      unit += kTransferThreads;
      if (unit >= units) {
        row += unit / units;
        unit %= units;
      }
    }
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      if (to[k]) *to[k] = values[k];
    }
  }
}

// Calls f with a zero of the widest unit that rows of so many bytes are made of: uint4, uint2, uint32_t or uint16_t.
template <class F>
void with_unit(uint64_t row_bytes, F f) {
  if (row_bytes % 16 == 0) f(uint4{});
  else if (row_bytes % 8 == 0) f(uint2{});
  else if (row_bytes % 4 == 0) f(uint32_t{});
  else if (row_bytes % 2 == 0) f(uint16_t{});
  else TVM_FFI_THROW(ValueError) << "expected rows of an even number of bytes, got " << row_bytes;
}

}  // namespace pkb
