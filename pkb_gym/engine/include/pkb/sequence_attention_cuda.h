// Attention over sequences of which every rank of a group has some positions: ranks trade positions for heads, and each
// computes flash attention of its heads over whole sequences.
//
//   pkb::SequenceAttention<T> work{};
//   work.q = q; work.k = k; work.v = v; work.stride = ...;   // heads of a token side by side, tokens `stride` apart
//   work.samples = ...;                                      // and the other fields
//   work.launch(comm);                                       // two kernels; the second one ends with a barrier
//
// Heads go to scratch of the ranks that own them (pkb/head_exchange_cuda.h), and results from registers to the ranks
// that own the positions: 4 (C - 1) / C of a tensor cross the link of each of C ranks, where a ring moves 2 (C - 1)
// tensors. All ranks have the same work under a causal mask too. Nothing is exchanged in a group of one rank.
//
// Bound: arithmetic at long sequences, as pkb/attention_cuda.h; at short ones two launches and two crossings of the link.
// Exchange: S. A. Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509, section 3.1.
#pragma once

#include <algorithm>

#include "pkb/attention_cuda.h"
#include "pkb/head_exchange_cuda.h"

namespace pkb {

namespace sequence_attention {

template <class T>
struct Hooks : attention::Plain<T> {
  Device comm;
  HeadItems items;
  T* out;
  int64_t group;
  int head, rank, owned, tiles_of_item, phase;
  bool is_causal;

  // The last tiles of a sequence have most keys under a mask, and begin first.
  __device__ attention::Tile tile(int index) const {
    const int item = index % owned, part = tiles_of_item - 1 - index / owned;
    const int length = items.length(), first = part * attention::kTileRows;
    attention::Tile tile;
    tile.kv_row = item * length;
    tile.kv_col = 0;
    if (items.ranks == 1) {  // from where the tokens lie
      tile.kv_row = item / items.heads * length;
      tile.kv_col = item % items.heads * head;
    }
    tile.q_row = tile.kv_row + first;
    tile.q_col = tile.kv_col;
    tile.rows = min(length - first, attention::kTileRows);
    tile.keys = length;
    tile.diagonal = is_causal ? first : attention::kNoMask;
    tile.index = index;
    return tile;
  }

  __device__ T* out_row(const attention::Tile& tile, int i) const {
    const int item = items.first_of(rank) + tile.index % owned, sample = item / items.heads;
    const int position = (tiles_of_item - 1 - tile.index / owned) * attention::kTileRows + i;
    const int owner = position / items.positions;
    const int64_t row = int64_t(sample) * items.positions + position - owner * items.positions;
    return comm.peer(out + (row * items.heads + item % items.heads) * head, comm.group_member(group, owner));
  }

  __device__ void leave() const {
    if (items.ranks > 1) comm.barrier_blocks(phase, group);
  }
};

}  // namespace sequence_attention

template <class T>
struct SequenceAttention {
  const T *q, *k, *v;
  int64_t stride;                      // elements from one token to the next
  T* out;                              // (samples, positions, heads, head), in symmetric memory that ranks may write
  int samples, positions, heads, head; // positions of one rank
  float scale;
  bool is_causal;
  int64_t group = -1;
  uint64_t scratch_offset = 0;         // of 3 * gathered_bytes(ranks)
  int phase = 0;                       // of two, of Device::signal_block()

  // Of one gathered tensor.
  uint64_t gathered_bytes(int ranks) const {
    const HeadItems items{samples, positions, heads, ranks};
    return ranks > 1 ? (uint64_t(items.most()) * items.length() * head * sizeof(T) + 255) / 256 * 256 : 0;
  }

  void launch(const Comm& comm) const {
    const Group of = comm.group(group);
    const HeadItems items{samples, positions, heads, of.size};
    attention::Forward<T> work;
    work.head = head;
    work.scale = scale;
    sequence_attention::Hooks<T> hooks;
    hooks.comm = comm.device();
    hooks.items = items;
    hooks.out = out;
    hooks.group = group;
    hooks.head = head;
    hooks.rank = of.rank;
    hooks.owned = items.owned_by(of.rank);
    hooks.tiles_of_item = (items.length() + attention::kTileRows - 1) / attention::kTileRows;
    hooks.phase = phase + 1;
    hooks.is_causal = is_causal;
    work.tiles = hooks.owned * hooks.tiles_of_item;
    const T* tensors[3] = {q, k, v};
    attention::Matrix<T>* matrices[3] = {&work.q, &work.k, &work.v};
    const int64_t tokens = int64_t(samples) * positions;
    if (of.size > 1) {
      const uint64_t end = scratch_offset + 3 * gathered_bytes(of.size);
      if (end > comm.scratch_bytes) {
        TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold " << end;
      }
      HeadExchange exchange;
      for (int i = 0; i < 3; ++i) {
        const uint64_t offset = scratch_offset + i * gathered_bytes(of.size);
        exchange.add(tensors[i], tokens, heads, head * sizeof(T), stride * sizeof(T), offset);
        *matrices[i] = {comm.scratch<T>(offset), int64_t(hooks.owned) * items.length(), head, head};
      }
      exchange_heads(exchange, ItemPlaces{items, of.rank}, phase, comm, group);
    } else {
      for (int i = 0; i < 3; ++i) *matrices[i] = {tensors[i], tokens, int64_t(heads) * head, stride};
    }
    const int blocks = std::min(multiprocessors(), items.most() * hooks.tiles_of_item);  // as many on every rank
    attention::launch(work, hooks, blocks, comm.cuda_stream());
  }
};

}  // namespace pkb
