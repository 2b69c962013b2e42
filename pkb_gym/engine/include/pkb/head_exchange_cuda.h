// Heads of several tensors, which ranks hold for their own positions, go to the ranks that need them for all positions:
// the exchange before attention, into scratch, in one kernel and without packing.
//
//   struct Mine {                                // where vectors belong, as pkb::ItemPlaces has it
//     __device__ pkb::HeadPlace place(int tensor, uint32_t row, uint32_t head) const;
//   };
//   pkb::HeadExchange exchange;
//   exchange.add(q, rows, heads, head_bytes, offset_in_scratch);
//   pkb::exchange_heads(exchange, mine, phase, comm);
//
// A vector (row, head) is stored to scratch of one rank or of several that follow each other, by 16-byte accesses where
// it is a multiple of 16 bytes. What follows in the stream finds all ranks' vectors there. The phase is one of
// Device::signal_block(). Scratch is used once a call: the caller sees to it that no rank ends a call while others read
// their scratch. Bound: link, the vectors that other ranks need.
#pragma once

#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/transfer_cuda.h"

namespace pkb {

struct HeadPlace {
  int first, ranks;  // that need the vector; none: 0
  uint32_t row;      // of vectors, behind the tensor's offset in scratch
};

// A head of a sample is an item; each rank of a group owns some that follow each other, as nearly as many as the others.
struct HeadItems {
  int samples, positions, heads, ranks;  // positions of one rank; ranks of the group

  __host__ __device__ int count() const { return samples * heads; }
  __host__ __device__ int length() const { return ranks * positions; }
  __host__ __device__ int first_of(int rank) const { return int(int64_t(count()) * rank / ranks); }
  __host__ __device__ int owned_by(int rank) const { return first_of(rank + 1) - first_of(rank); }
  __host__ __device__ int most() const { return (count() + ranks - 1) / ranks; }
  __device__ int owner_of(int item) const {
    int rank = int(int64_t(item) * ranks / count());
    while (rank + 1 < ranks && first_of(rank + 1) <= item) ++rank;
    return rank;
  }
};

// Each item goes to its owner, whose matrices have a row for each of its items and each position of the whole sequence.
struct ItemPlaces {
  HeadItems items;
  int rank;  // this one's place in the group

  __device__ HeadPlace place(int, uint32_t row, uint32_t head) const {
    const uint32_t sample = row / items.positions, position = row - sample * items.positions;
    return place_of(int(sample * items.heads + head), position);
  }
  __device__ HeadPlace place_of(int item, uint32_t position) const {
    const int owner = items.owner_of(item);
    return {owner, 1, uint32_t(item - items.first_of(owner)) * items.length() + rank * items.positions + position};
  }
};

struct HeadExchange {
  static constexpr int kMaxTensors = 8;
  struct Tensor {
    const char* from;           // (rows, heads) vectors
    uint32_t rows, heads, bytes;  // `bytes` of a vector
    uint64_t row_bytes;         // distance of rows
    uint64_t offset;            // in scratch
  };
  Tensor tensors[kMaxTensors];
  int count = 0;

  void add(const void* from, int64_t rows, int64_t heads, int64_t bytes, int64_t row_bytes, uint64_t offset) {
    tensors[count++] = Tensor{static_cast<const char*>(from), uint32_t(rows), uint32_t(heads), uint32_t(bytes),
                              uint64_t(row_bytes), offset};
  }
};

// The part of a block, of one tensor.
template <class Unit, class Places>
__device__ __forceinline__ void push_heads(const HeadExchange::Tensor& tensor, const Places& places, int number,
                                           int64_t group, const Device& comm) {
  constexpr uint64_t kTile = uint64_t(kLoadsAtOnce) * kTransferThreads;
  const uint32_t per_vector = tensor.bytes / sizeof(Unit);
  const uint64_t units = uint64_t(tensor.rows) * tensor.heads * per_vector;
  Unit* const scratch = comm.scratch<Unit>(tensor.offset);
  for (uint64_t begin = blockIdx.x * kTile + threadIdx.x; begin < units; begin += gridDim.x * kTile) {
    Unit values[kLoadsAtOnce];
    HeadPlace at[kLoadsAtOnce];
    uint32_t units_in[kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      const uint64_t unit = begin + k * kTransferThreads;
      at[k].ranks = 0;
      if (unit >= units) continue;
      const uint32_t vector = uint32_t(unit / per_vector), row = vector / tensor.heads;
      const uint32_t head = vector - row * tensor.heads;
      units_in[k] = uint32_t(unit - uint64_t(vector) * per_vector);
      at[k] = places.place(number, row, head);
      if (at[k].ranks == 0) continue;
      const char* from = tensor.from + row * tensor.row_bytes + uint64_t(head) * tensor.bytes;
      values[k] = __ldcs(reinterpret_cast<const Unit*>(from) + units_in[k]);
    }
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
#pragma unroll 1
      for (int r = at[k].first; r < at[k].first + at[k].ranks; ++r) {
        *comm.peer(scratch + uint64_t(at[k].row) * per_vector + units_in[k], comm.group_member(group, r)) = values[k];
      }
    }
  }
}

template <class Places>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    exchange_head_vectors(const __grid_constant__ HeadExchange exchange, const __grid_constant__ Places places,
                          int phase, int64_t group, const __grid_constant__ Device comm) {
#pragma unroll 1
  for (int i = 0; i < exchange.count; ++i) {
    const HeadExchange::Tensor& tensor = exchange.tensors[i];
    const uint64_t misfit = reinterpret_cast<uintptr_t>(tensor.from) | tensor.bytes | tensor.row_bytes | tensor.offset;
    if (misfit % 16 == 0) push_heads<uint4>(tensor, places, i, group, comm);
    else if (misfit % 4 == 0) push_heads<uint32_t>(tensor, places, i, group, comm);
    else push_heads<uint16_t>(tensor, places, i, group, comm);
  }
  comm.barrier_blocks(phase, group);
}

// Enqueues the exchange among the ranks of a group; -1 is the world.
template <class Places>
void exchange_heads(const HeadExchange& exchange, const Places& places, int phase, const Comm& comm,
                    int64_t group = -1) {
  uint64_t bytes = 0;
  for (int i = 0; i < exchange.count; ++i) {
    const HeadExchange::Tensor& tensor = exchange.tensors[i];
    bytes += uint64_t(tensor.rows) * tensor.heads * tensor.bytes;
    if (uint64_t(tensor.rows) * tensor.heads >> 32) TVM_FFI_THROW(ValueError) << "expected fewer than 2^32 vectors";
  }
  const unsigned blocks = blocks_for(bytes, kCopyTile);  // as many on every rank
  exchange_head_vectors<Places>
      <<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(exchange, places, phase, group, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace pkb
