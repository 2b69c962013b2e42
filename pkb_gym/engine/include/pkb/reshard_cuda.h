// Moves the cut of a tensor over ranks from one dimension to another, as sequence parallelism does before attention
// (sequence to heads) and after it: each rank pushes the piece for every other rank to where it belongs.
//
//   auto reshard = pkb::Reshard::of(x.shape(), scatter_dim, gather_dim, bytes_of_an_element, comm.world_size);
//   reshard.keep(positions);                 // of the gathered dimension, where the end is cut off
//   reshard.launch(x.data_ptr(), out.data_ptr(), comm);
//
// The scattered dimension is padded with zeros to a multiple of the number of ranks. A piece is a set of contiguous runs
// at regular distances on both sides, moved by the widest accesses that all of them allow. Nothing is packed or
// unpacked. Small pieces go as tagged words by way of scratch, larger ones straight into the outputs of peers whose call
// has begun. Bound: link, W - 1 of W parts of the tensor out of each rank; on one rank memory, a read and a write.
//
// Exchange: S. A. Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509, section 3.1.
#pragma once

#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/transfer_cuda.h"

namespace pkb {

// Everything is counted in bytes on the host, and in units of one access in kernels.
class Reshard {
 public:
  // Of a tensor of this shape on each of so many ranks.
  template <class Shape>
  static Reshard of(const Shape& shape, int64_t scatter_dim, int64_t gather_dim, int64_t element_bytes, int ranks) {
    const int64_t dims = int64_t(shape.size());
    const auto in_range = [dims](int64_t dim) { return dim < 0 ? dim + dims : dim; };
    const int64_t scatter = in_range(scatter_dim), gather = in_range(gather_dim);
    if (std::min(scatter, gather) < 0 || std::max(scatter, gather) >= dims) {
      TVM_FFI_THROW(ValueError) << "a tensor of " << dims << " dimensions has no dimensions " << scatter_dim << " and "
                                << gather_dim;
    }
    const auto product = [&shape](int64_t first, int64_t end) {
      int64_t size = 1;
      for (int64_t dim = first; dim < end; ++dim) size *= shape[size_t(dim)];
      return size;
    };
    Reshard reshard;
    reshard.scatters_first_ = scatter <= gather;
    reshard.same_ = scatter == gather;
    reshard.ranks_ = ranks;
    reshard.outer_ = product(0, std::min(scatter, gather));
    reshard.between_ = product(std::min(scatter, gather) + 1, std::max(scatter, gather));
    reshard.inner_ = product(std::max(scatter, gather) + 1, dims) * element_bytes;
    reshard.cut_ = shape[size_t(scatter)];
    reshard.share_ = (reshard.cut_ + ranks - 1) / ranks;
    reshard.joined_ = reshard.same_ ? 1 : shape[size_t(gather)];
    reshard.kept_ = reshard.joined_ * (reshard.same_ ? 1 : ranks);
    if (reshard.same_ && reshard.cut_ % ranks != 0) {
      TVM_FFI_THROW(ValueError) << "dimension of " << reshard.cut_ << " is no multiple of " << ranks;
    }
    return reshard;
  }

  // Only the first `positions` of the gathered dimension are wanted.
  void keep(int64_t positions) { kept_ = std::min(positions, kept_); }

  int64_t result_bytes() const { return outer_ * share_ * (same_ ? ranks_ : between_ * kept_) * inner_; }

  inline void launch(const void* from, void* to, const Comm& comm) const;

 private:
  bool scatters_first_, same_;
  int64_t ranks_, outer_, cut_, share_, between_, joined_, kept_, inner_;
};

// What a kernel needs of it.
struct ReshardUnits {
  const char* from;
  char* to;
  uint64_t from_step, to_step;    // between the pieces for two ranks, and between those from two ranks
  uint64_t from_block, to_block;  // between the blocks of a piece
  uint64_t from_row, to_row;      // between the runs of a block
  uint32_t blocks, rows, run;     // of a whole piece
  // Positions `place * each` .. of a dimension of `limit` are a rank's; a position is `per` runs or `per` units of a run.
  int64_t limit;
  uint32_t each, per;
  bool of_receiver, along_run;

  struct Piece {
    uint32_t rows, run;
  };
  __device__ __forceinline__ Piece piece(int sender, int receiver) const {
    const int64_t left = limit - int64_t(of_receiver ? receiver : sender) * each;
    const uint32_t count = per * uint32_t(min(max(left, int64_t(0)), int64_t(each)));
    return along_run ? Piece{rows, count} : Piece{count, run};
  }
  __device__ __forceinline__ static uint32_t units(const ReshardUnits& of, const Piece& piece) {
    return of.blocks * piece.rows * piece.run;
  }

  struct Places {
    uint64_t from, to;
  };
  // Of unit i of a piece, without the steps of ranks.
  __device__ __forceinline__ Places places(const Piece& piece, uint32_t i) const {
    const uint32_t line = i / piece.run, column = i - line * piece.run;
    const uint32_t block = line / piece.rows, row = line - block * piece.rows;
    return {block * from_block + row * from_row + column, block * to_block + row * to_row + column};
  }
};

namespace reshard {

// Units of at most 8 bytes travel in one pair of tagged words each, larger ones in two.
template <class Unit>
constexpr int kPairs = sizeof(Unit) > 8 ? 2 : 1;

template <class Unit>
__device__ __forceinline__ void send(TaggedPair* box, uint32_t i, const Unit& unit, uint32_t tag) {
  uint2 pairs[kPairs<Unit>] = {};
  memcpy(pairs, &unit, sizeof(Unit));
#pragma unroll
  for (int half = 0; half < kPairs<Unit>; ++half) store_tagged(box + i * kPairs<Unit> + half, pairs[half], tag);
}

template <class Unit>
__device__ __forceinline__ Unit receive(const TaggedPair* box, uint32_t i, uint32_t tag) {
  uint2 pairs[kPairs<Unit>];
#pragma unroll
  for (int half = 0; half < kPairs<Unit>; ++half) pairs[half] = wait_tagged(box + i * kPairs<Unit> + half, tag);
  Unit unit;
  memcpy(&unit, pairs, sizeof(Unit));
  return unit;
}

// Zeros in the place of the positions that padding adds to this rank's share.
template <class Unit>
__device__ __forceinline__ void pad(const ReshardUnits& g, int rank, int ranks) {
  if (!g.of_receiver) return;
  const ReshardUnits::Piece whole{g.rows, g.run}, real = g.piece(rank, rank);
  if (real.rows == whole.rows && real.run == whole.run) return;
  const ReshardUnits::Piece padding{whole.rows - (g.along_run ? 0 : real.rows), whole.run - (g.along_run ? real.run : 0)};
  const uint64_t skipped = g.along_run ? real.run : real.rows * g.to_row;
  Unit* to = reinterpret_cast<Unit*>(g.to) + skipped;
  const uint32_t units = ReshardUnits::units(g, padding), step = gridDim.x * kTransferThreads;
  for (int sender = 0; sender < ranks; ++sender) {
    for (uint32_t i = blockIdx.x * kTransferThreads + threadIdx.x; i < units; i += step) {
      to[sender * g.to_step + g.places(padding, i).to] = Unit{};
    }
  }
}

// Copies a piece, several loads of a thread in flight.
template <class Unit>
__device__ __forceinline__ void copy_piece(const ReshardUnits& g, const ReshardUnits::Piece& piece, const Unit* from,
                                           Unit* to) {
  const uint32_t units = ReshardUnits::units(g, piece);
  for (uint64_t first = blockIdx.x * uint64_t(kLoadsAtOnce * kTransferThreads) + threadIdx.x; first < units;
       first += gridDim.x * uint64_t(kLoadsAtOnce * kTransferThreads)) {
    Unit values[kLoadsAtOnce];
    uint64_t places[kLoadsAtOnce];
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      const uint64_t i = first + k * kTransferThreads;
      if (i >= units) break;
      const ReshardUnits::Places at = g.places(piece, uint32_t(i));
      values[k] = __ldcs(from + at.from);
      places[k] = at.to;
    }
#pragma unroll
    for (int k = 0; k < kLoadsAtOnce; ++k) {
      if (first + k * kTransferThreads < units) to[places[k]] = values[k];
    }
  }
}

template <class Unit>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    push_tagged(const __grid_constant__ ReshardUnits g, const __grid_constant__ Boxes boxes,
                const __grid_constant__ Device comm) {
  const uint32_t tag = uint32_t(comm.epoch), step = gridDim.x * kTransferThreads;
  const uint32_t first = blockIdx.x * kTransferThreads + threadIdx.x;
  const Unit* from = reinterpret_cast<const Unit*>(g.from);
  Unit* to = reinterpret_cast<Unit*>(g.to);
  // Some pieces may be empty, so that no message holds a sender back: who has begun the last call has read what came in
  // the one before, in the same half of scratch.
  comm.signal_begun();
  comm.wait_all_begun(1);
  for (int k = 1; k < comm.world_size; ++k) {
    const int r = rank_after(comm, k);
    const ReshardUnits::Piece piece = g.piece(comm.rank, r);
    const uint32_t units = ReshardUnits::units(g, piece);
    TaggedPair* box = boxes.box<TaggedPair>(comm, r, comm.rank);
    for (uint32_t i = first; i < units; i += step) {
      send(box, i, from[r * g.from_step + g.places(piece, i).from], tag);
    }
  }
  copy_piece(g, g.piece(comm.rank, comm.rank), from + comm.rank * g.from_step, to + comm.rank * g.to_step);
  pad<Unit>(g, comm.rank, comm.world_size);
  comm.hold();
  for (int k = 1; k < comm.world_size; ++k) {
    const int r = rank_after(comm, k);
    const ReshardUnits::Piece piece = g.piece(r, comm.rank);
    const uint32_t units = ReshardUnits::units(g, piece);
    const TaggedPair* box = boxes.box<TaggedPair>(comm, comm.rank, r);
    for (uint32_t i = first; i < units; i += step) {
      to[r * g.to_step + g.places(piece, i).to] = receive<Unit>(box, i, tag);
    }
  }
}

template <class Unit>
__global__ void __launch_bounds__(kTransferThreads, kBlocksPerSm)
    push(const __grid_constant__ ReshardUnits g, const __grid_constant__ Device comm) {
  const int thread = int(threadIdx.x);
  const bool has_peer = thread < comm.world_size && thread != comm.rank;
  const Unit* from = reinterpret_cast<const Unit*>(g.from);
  Unit* to = reinterpret_cast<Unit*>(g.to);
  comm.signal_begun();
  if (has_peer) comm.wait_begun(thread);
  __syncthreads();
  for (int k = 1; k < comm.world_size; ++k) {
    const int r = rank_after(comm, k);
    copy_piece(g, g.piece(comm.rank, r), from + r * g.from_step, comm.peer(to + comm.rank * g.to_step, r));
  }
  copy_piece(g, g.piece(comm.rank, comm.rank), from + comm.rank * g.from_step, to + comm.rank * g.to_step);
  pad<Unit>(g, comm.rank, comm.world_size);
  __syncthreads();
  if (has_peer) {
    comm.signal_block(0, thread);
    comm.wait_block(0, thread);
  }
}

template <class Unit>
void launch(const ReshardUnits& g, const Comm& comm) {
  const uint64_t units = uint64_t(g.blocks) * g.rows * g.run;  // of a whole piece: as many on every rank
  if (units >> 32) TVM_FFI_THROW(ValueError) << "expected pieces of fewer than 2^32 accesses, got " << units;
  if (is_tagged(units * 8 * kPairs<Unit>, comm)) {
    const unsigned blocks = blocks_for(units, kTransferThreads);
    push_tagged<Unit><<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(g, Boxes::for_tagged(comm), comm.device());
  } else {
    const unsigned blocks = blocks_for(units, kLoadsAtOnce * kTransferThreads);
    push<Unit><<<blocks, kTransferThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  }
  PKB_CUDA_LAUNCHED();
}

}  // namespace reshard

inline void Reshard::launch(const void* from, void* to, const Comm& comm) const {
  const bool is_cut = !same_ && kept_ < joined_ * ranks_, is_whole = !is_cut && cut_ % ranks_ == 0;
  if (ranks_ == 1 && is_whole) return comm.put(to, from, uint64_t(result_bytes()), comm.rank);  // the same tensor

  ReshardUnits g{};
  g.from = static_cast<const char*>(from);
  g.to = static_cast<char*>(to);
  g.blocks = uint32_t(outer_);
  g.rows = uint32_t(same_ ? 1 : scatters_first_ ? share_ * between_ : joined_ * between_);
  const int64_t run = (scatters_first_ && !same_ ? joined_ : share_) * inner_, line = kept_ * inner_;
  if (same_) {
    g.from_step = g.to_step = run;
    g.from_block = g.to_block = cut_ * inner_;
  } else if (scatters_first_) {
    g.from_step = share_ * between_ * run, g.to_step = run;
    g.from_block = cut_ * between_ * run, g.to_block = share_ * between_ * line;
    g.from_row = run, g.to_row = line;
  } else {
    g.from_step = run, g.to_step = joined_ * between_ * run;
    g.from_block = joined_ * between_ * cut_ * inner_, g.to_block = kept_ * between_ * run;
    g.from_row = cut_ * inner_, g.to_row = run;
  }
  // Padding shortens what a receiver gets along the scattered dimension, a cut what a sender has along the gathered one.
  g.of_receiver = !is_cut;
  g.along_run = is_whole || is_cut == scatters_first_;
  g.limit = is_whole ? ranks_ : is_cut ? kept_ : cut_;
  g.each = uint32_t(is_whole ? 1 : is_cut ? joined_ : share_);
  const int64_t position = !g.along_run ? between_ : is_whole ? run : inner_;

  uint64_t unit = sizeof(uint4);
  const auto fit = [&unit](uint64_t bytes) {
    while (bytes % unit != 0) unit /= 2;
  };
  uint64_t* const strides[] = {&g.from_step, &g.to_step, &g.from_block, &g.to_block, &g.from_row, &g.to_row};
  fit(uint64_t(run));
  if (g.along_run) fit(uint64_t(position));
  for (const uint64_t* stride : strides) fit(*stride);
  for (uint64_t* stride : strides) *stride /= unit;
  g.run = uint32_t(uint64_t(run) / unit);
  g.per = uint32_t(uint64_t(position) / (g.along_run ? unit : 1));
  switch (unit) {
    case 16: return reshard::launch<uint4>(g, comm);
    case 8: return reshard::launch<uint2>(g, comm);
    case 4: return reshard::launch<uint32_t>(g, comm);
    case 2: return reshard::launch<uint16_t>(g, comm);
    default: return reshard::launch<uint8_t>(g, comm);
  }
}

}  // namespace pkb
