// Products that are summed over ranks: hooks for pkb/gemm_sm90.h by which every tile of the sum has one owner.
//
// A rank computes all tiles, its own last. The sums of others' tiles are rounded and pushed, by bulk copies from shared
// memory, to scratch of their owner, where they lie as the registers did: whoever holds the tile's own sums adds them
// word by word, and stores the total. A flag for each half tile, set to the epoch, says that it has arrived. It says too
// that its sender's call has begun, so that sums may go straight into the outputs of all ranks. Where they do, block b
// of every rank meets block b of the others at the end.
//
// Scratch is used in turns of two by the parity of the epoch: a rank ends call e + 1 only after all others have begun
// it, and so have ended call e, which read what call e + 2 overwrites. That takes at least one tile for every owner.
#pragma once

#include "pkb/gemm_peers.h"

namespace pkb {
namespace gemm {

template <class Shape>
struct Reduce : Plain {
  static constexpr bool kCountsTiles = true;
  static constexpr int kWords = Shape::kSums / 8;                    // of 16 bytes, in a thread's part of a tile
  static constexpr int64_t kPartBytes = int64_t(kWords) * 16 * 128;  // a consumer's part of a tile
  static constexpr uint64_t kFlagBytes = 1 << 20;  // scratch: flags, then parts of even and of odd calls
  static constexpr int kRounds = kPartBytes / Shape::kBufferBytes;   // in which a part is staged

  Device comm;
  int total;       // tiles of all owners; owner o has those from total * o / world_size on
  int owner_rows;  // rows of A of an owner, who stores only them, from row 0; 0: tiles of the whole sum, stored by row
                   // on all ranks
  uint64_t parts_offset;  // in scratch

  // Whether so many tiles can be exchanged: each rank owns one, and scratch holds what it receives.
  static bool suits(const Comm& comm, int64_t total) {
    const uint64_t received = (comm.world_size - 1) * parts(comm.world_size, total);
    return comm.world_size > 1 && total >= comm.world_size && received * sizeof(uint64_t) <= kFlagBytes &&
           received * kPartBytes <= half_of_scratch(comm);
  }

  Reduce(const Comm& comm, const Product& product, int owner_rows)
      : comm(comm.device()), total(product.tiles), owner_rows(owner_rows),
        parts_offset(kFlagBytes + comm.epoch % 2 * half_of_scratch(comm)) {}

  __device__ __forceinline__ int first_tile(int owner) const { return int(int64_t(total) * owner / comm.world_size); }

  template <class>
  __device__ __forceinline__ Tile tile(const Product& product, int index) const {
    int owner = comm.rank, first, count;
    do {  // the owners after this rank, one by one, then this rank
      owner = owner + 1 == comm.world_size ? 0 : owner + 1;
      first = first_tile(owner);
      count = first_tile(owner + 1) - first;
      index -= count;
    } while (index >= 0);
    index += count;
    const int row_tiles = owner_rows ? product.row_tiles / comm.world_size : product.row_tiles;
    Tile tile = tile_at<Shape>(owner_rows ? index : first + index, row_tiles, product.col_tiles, product.group);
    tile.row += owner * owner_rows;
    tile.owner = owner;
    tile.index = index;
    return tile;
  }

  template <class T, class>
  __device__ __forceinline__ bool finish(const Tile& tile, float (&sums)[Shape::kSums], const Block& block,
                                         int consumer, uint32_t staging) const {
    const int thread = threadIdx.x % 128, part = part_of(tile, block, consumer);
    if (tile.owner != comm.rank) {
      const int sender = (comm.rank - tile.owner + comm.world_size) % comm.world_size - 1;
      char* to = comm.peer(part_at(sender, part), tile.owner);
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        const uint32_t buffer = staging + round % Shape::kBuffers * Shape::kBufferBytes;
        claim_staging<Shape::kBuffers>(consumer);
#pragma unroll
        for (int word = 0; word < kWords / kRounds; ++word) {
          const float* eight = sums + (round * (kWords / kRounds) + word) * 8;
          store_shared(buffer + (word * 128 + thread) * 16,
                       make_uint4(pack<T>(eight[0], eight[1]), pack<T>(eight[2], eight[3]),
                                  pack<T>(eight[4], eight[5]), pack<T>(eight[6], eight[7])));
        }
        publish_staging(consumer);
        if (thread == 0) {
          store_bulk(to + round * Shape::kBufferBytes, buffer, Shape::kBufferBytes);
          bulk_commit();
        }
      }
      return false;
    }
    if (thread % 32 < comm.world_size - 1) {
      const uint64_t* flag = flag_at(thread % 32, part);
      while (load_acquire(flag) < comm.epoch) {
      }
    }
    if (tile.index < block.stride) comm.hold();
    __syncwarp();
    for (int sender = 0; sender < comm.world_size - 1; ++sender) {
      const uint4* from = reinterpret_cast<const uint4*>(part_at(sender, part)) + thread;
      uint4 words[kWords];
#pragma unroll
      for (int word = 0; word < kWords; ++word) words[word] = __ldcg(from + word * 128);
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        const uint32_t pairs[4] = {words[word].x, words[word].y, words[word].z, words[word].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<T>(pairs[i]);
          sums[word * 8 + 2 * i] += pair.x;
          sums[word * 8 + 2 * i + 1] += pair.y;
        }
      }
    }
    return true;
  }

  // One warp for each consumer signals arrivals to their owners, so that no consumer waits for the fence.
  template <class>
  __device__ __forceinline__ void assist(const Product& product, const Block& block, int warp) const {
    if (warp == kConsumers && owner_rows == 0) meet_at_end(comm, product, block);
    if (warp >= kConsumers || threadIdx.x % 32 != 0) return;
    const int sender_base = comm.rank + comm.world_size - 1;
    uint32_t count = 0;
    for (int index = block.first; index < product.tiles; index += block.stride) {
      const Tile at = tile<Shape>(product, index);
      ++count;
      if (at.owner == comm.rank) continue;
      while (load_acquire_shared(block.completed + warp * 4) < count) __nanosleep(100);
      const int sender = (sender_base - at.owner) % comm.world_size;
      store_release(comm.peer(flag_at(sender, part_of(at, block, warp)), at.owner), comm.epoch);
    }
  }

 private:
  // Parts that one owner receives from one sender, at most.
  static uint64_t parts(int world_size, int64_t total) {
    return uint64_t(divide_up(total, world_size)) * Shape::kCluster * kConsumers;
  }
  static uint64_t half_of_scratch(const Comm& comm) { return (comm.scratch_bytes - kFlagBytes) / 512 * 256; }
  __device__ __forceinline__ int part_of(const Tile& tile, const Block& block, int consumer) const {
    return (tile.index * Shape::kCluster + block.in_cluster) * kConsumers + consumer;
  }
  // Of the sender that comes `sender` + 1 places after the owner.
  __device__ __forceinline__ uint64_t* flag_at(int sender, int part) const {
    return comm.scratch<uint64_t>() + part * (comm.world_size - 1) + sender;
  }
  __device__ __forceinline__ char* part_at(int sender, int part) const {
    const int64_t capacity = int64_t((total + comm.world_size - 1) / comm.world_size) * Shape::kCluster * kConsumers;
    return comm.scratch<char>(parts_offset) + (sender * capacity + part) * kPartBytes;
  }
};

}  // namespace gemm
}  // namespace pkb
