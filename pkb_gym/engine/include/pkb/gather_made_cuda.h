// An all-gather of what a function makes of this rank's tensors, such as updated parameters or rotated keys: results go
// from registers to all ranks, and are never written only to be read and sent.
//
//   struct Make {
//     using Made = pkb::Packet<T, 8>;        // 16 bytes, or one element where addresses are no multiples of 16
//     static constexpr int kMade = 1;        // packets of a unit
//     uint32_t units;                        // as many on every rank
//     __device__ void make(uint32_t unit, Made (&made)[kMade]) const;
//     __device__ Made* place(int rank, uint32_t unit, int i) const;  // where packet i of a rank's unit belongs
//   };
//   pkb::gather_made(Make{...}, comm);
//
// Few bytes are pushed as tagged words into scratch (pkb/tagged_cuda.h), which needs no other synchronisation. More are
// stored straight into all outputs, between a word from each receiver that its call has begun and one to it from each
// block that has stored its part. Bound: link, (W - 1) slices into each rank; on one rank, memory.
#pragma once

#include "pkb/exchange_cuda.h"
#include "pkb/transfer_cuda.h"

namespace pkb {

template <class Make>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    gather_tagged(const __grid_constant__ Make make, const __grid_constant__ Boxes boxes,
                  const __grid_constant__ Device comm) {
  using Made = typename Make::Made;
  constexpr int kPairs = int(sizeof(Made)) / 8;
  const uint32_t tag = uint32_t(comm.epoch), step = gridDim.x * kTransferThreads;
  const uint32_t first = blockIdx.x * kTransferThreads + threadIdx.x;
  for (uint32_t unit = first; unit < make.units; unit += step) {
    Made made[Make::kMade];
    make.make(unit, made);
#pragma unroll 1
    for (int k = 1; k < comm.world_size; ++k) {
      TaggedPair* box = boxes.box<TaggedPair>(comm, rank_after(comm, k), comm.rank);
#pragma unroll
      for (int i = 0; i < Make::kMade; ++i) {
        uint2 pairs[kPairs];
        memcpy(pairs, &made[i], sizeof(Made));
#pragma unroll
        for (int half = 0; half < kPairs; ++half) {
          store_tagged(box + (unit * Make::kMade + i) * kPairs + half, pairs[half], tag);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Make::kMade; ++i) *make.place(comm.rank, unit, i) = made[i];
  }
  comm.hold();
  for (int k = 1; k < comm.world_size; ++k) {
    const int r = rank_after(comm, k);
    const TaggedPair* box = boxes.box<TaggedPair>(comm, comm.rank, r);
    for (uint32_t unit = first; unit < make.units; unit += step) {
#pragma unroll
      for (int i = 0; i < Make::kMade; ++i) {
        uint2 pairs[kPairs];
#pragma unroll
        for (int half = 0; half < kPairs; ++half) {
          pairs[half] = wait_tagged(box + (unit * Make::kMade + i) * kPairs + half, tag);
        }
        Made made;
        memcpy(&made, pairs, sizeof(Made));
        *make.place(r, unit, i) = made;
      }
    }
  }
}

template <class Make>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    gather_stored(const __grid_constant__ Make make, const __grid_constant__ Device comm) {
  using Made = typename Make::Made;
  const int thread = int(threadIdx.x);
  const bool has_peer = thread < comm.world_size && thread != comm.rank;
  comm.signal_begun();
  comm.wait_all_begun();
  const uint32_t step = gridDim.x * kTransferThreads;
  for (uint32_t unit = blockIdx.x * kTransferThreads + threadIdx.x; unit < make.units; unit += step) {
    Made made[Make::kMade];
    make.make(unit, made);
#pragma unroll 1
    for (int k = 0; k < comm.world_size; ++k) {
      const int r = rank_after(comm, k);
#pragma unroll
      for (int i = 0; i < Make::kMade; ++i) *comm.peer(make.place(comm.rank, unit, i), r) = made[i];
    }
  }
  __syncthreads();
  if (has_peer) {
    comm.signal_block(0, thread);
    comm.wait_block(0, thread);
  }
}

template <class Make>
void gather_made(const Make& make, const Comm& comm) {
  if (make.units == 0) return;
  constexpr bool kWhole = sizeof(typename Make::Made) == kVectorBytes;
  const uint64_t bytes = uint64_t(make.units) * sizeof(typename Make::Made) * Make::kMade;
  const unsigned blocks = blocks_for(make.units, kTransferThreads);  // as many on every rank
  if constexpr (kWhole) {
    if (is_tagged(bytes, comm)) {
      gather_tagged<<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(make, Boxes::for_tagged(comm), comm.device());
      PKB_CUDA_LAUNCHED();
      return;
    }
  }
  gather_stored<<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(make, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace pkb
