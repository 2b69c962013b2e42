// Products that read operands from peers, or store to peers' outputs, under the call contract: hooks for
// pkb/gemm_sm90.h.
//
// Each rank signals the others when its call begins, and goes to work on what is its own. Before the first load from a
// peer, and the first store to one, it waits for their signal, which has come by then. At the end block b of every rank
// meets block b of the others: what they read of each other has been read, what they stored has arrived.
#pragma once

#include "pkb/gemm_sm90.h"

namespace pkb {
namespace gemm {

// Waits until all stores of this block have completed, and then for the same block of all other ranks; by one warp.
__device__ __forceinline__ void meet_at_end(const Device& comm, const Product& product, const Block& block) {
  const int lane = threadIdx.x % 32;
  for (int consumer = 0; consumer < kConsumers; ++consumer) {
    while (load_acquire_shared(block.completed + consumer * 4) < block.tiles(product)) __nanosleep(100);
  }
  if (lane < comm.world_size && lane != comm.rank) {
    comm.signal_block(0, lane);
    comm.wait_block(0, lane);
  }
}

// Operands of segment s are those of the s-th rank after this one.
struct Peers : Plain {
  Device comm;
  explicit Peers(const Comm& comm) : comm(comm.device()) {}

  __device__ __forceinline__ void enter() const { comm.signal_begun(); }

  template <class Shape>
  __device__ __forceinline__ void await(const Tile&, int segment, const Block& block) const {
    if (segment > 0) wait_begun(block);
  }

  template <class T, class Shape>
  __device__ __forceinline__ bool finish(const Tile&, float (&)[Shape::kSums], const Block& block, int, uint32_t) const {
    wait_begun(block);
    return true;
  }

  template <class Shape>
  __device__ __forceinline__ void assist(const Product& product, const Block& block, int warp) const {
    if (warp != 0) return;
    const int lane = threadIdx.x % 32;
    if (lane < comm.world_size && lane != comm.rank) comm.wait_begun(lane);
    __syncwarp();
    if (lane == 0) store_release_shared(block.word, 1);
    meet_at_end(comm, product, block);
  }

 private:
  // One warp waits for peers, the others for that warp.
  __device__ __forceinline__ void wait_begun(const Block& block) const {
    while (load_acquire_shared(block.word) == 0) {
    }
  }
};

}  // namespace gemm
}  // namespace pkb
