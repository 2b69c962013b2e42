// RopeAllGather: one kernel rotates queries and keys, and stores each rotated vector to all ranks from its registers.
//
// What moves: a thread loads the two vectors of a head that are rotated into each other, and their factors, once, and
// stores both results to every rank's output, where they belong in the whole sequence. Small slices go as words that
// carry the number of the call, into scratch; larger ones straight into the outputs of peers whose call has begun
// (pkb/gather_made_cuda.h). The baseline writes eight temporary tensors of the size of a slice and gathers into others.
//
// Bound: link, W - 1 slices of queries and keys into each rank; on one rank memory, a read and a write. Factors are read
// again for every head, from the L2 cache. Products and their sum are float32, rounded once.
//
// Left on the table: stores to peers are 16 bytes a thread; bulk copies from shared memory would take fewer
// instructions. NVLink multicast would send each slice once.
#include "pkb/gather_made_cuda.h"
#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

// One of the two tensors: heads of all tokens of the slice, and where they belong.
template <class T>
struct Heads {
  const T* from;
  T* to;
  uint32_t heads;  // of a token
};

template <class T, int kLanes>
struct Rotated {
  using Made = pkb::Packet<T, kLanes>;
  static constexpr int kMade = 2;
  uint32_t units;        // packets of half a head, of queries and then of keys
  uint32_t query_units;
  Heads<T> queries, keys;
  const T *cosines, *sines;
  uint32_t slice, ranks;  // positions of a rank; the sequence has ranks times as many
  uint32_t half;          // packets of half a head

  struct Place {
    uint64_t row;        // token of the slice and head
    uint32_t token, piece;
  };
  __device__ Place place_of(const Heads<T>& tensor, uint32_t unit) const {
    const uint32_t row = unit / half;
    return Place{row, row / tensor.heads, unit % half};
  }

  __device__ void make(uint32_t unit, Made (&made)[kMade]) const {
    const bool is_query = unit < query_units;
    const Heads<T>& tensor = is_query ? queries : keys;
    const Place at = place_of(tensor, is_query ? unit : unit - query_units);
    const T* x = tensor.from + (at.row * 2 * half + at.piece) * kLanes;
    const uint64_t factor = (uint64_t(at.token) * 2 * half + at.piece) * kLanes, other = uint64_t(half) * kLanes;
    const Made first = pkb::load_packet<T, kLanes>(x), second = pkb::load_packet<T, kLanes>(x + other);
    const auto load = [](const T* from) { return *reinterpret_cast<const Made*>(from); };
    const Made cos1 = load(cosines + factor), cos2 = load(cosines + factor + other);
    const Made sin1 = load(sines + factor), sin2 = load(sines + factor + other);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const float a = pkb::to_float(first.lanes[i]), b = pkb::to_float(second.lanes[i]);
      made[0].lanes[i] = T(a * pkb::to_float(cos1.lanes[i]) - b * pkb::to_float(sin1.lanes[i]));
      made[1].lanes[i] = T(b * pkb::to_float(cos2.lanes[i]) + a * pkb::to_float(sin2.lanes[i]));
    }
  }

  __device__ Made* place(int rank, uint32_t unit, int i) const {
    const bool is_query = unit < query_units;
    const Heads<T>& tensor = is_query ? queries : keys;
    const Place at = place_of(tensor, is_query ? unit : unit - query_units);
    // Tokens of other ranks lie between those of the slice: a slice less for each sample, and `rank` slices at first.
    const uint64_t sample = at.token / slice, skipped = (sample * (ranks - 1) + uint64_t(rank)) * slice;
    const uint64_t row = at.row + skipped * tensor.heads;
    return reinterpret_cast<Made*>(tensor.to) + row * 2 * half + at.piece + (i ? half : 0);
  }
};

template <class T, int kLanes>
void launch(const TensorView& q, const TensorView& k, const TensorView& cosines, const TensorView& sines,
            const TensorView& q_out, const TensorView& k_out, const pkb::Comm& comm) {
  const auto heads = [](const TensorView& from, const TensorView& to) {
    return Heads<T>{static_cast<const T*>(from.data_ptr()), static_cast<T*>(to.data_ptr()), uint32_t(from.size(2))};
  };
  const uint64_t query_units = uint64_t(q.numel()) / (2 * kLanes), units = query_units + k.numel() / (2 * kLanes);
  if (units >> 32) TVM_FFI_THROW(ValueError) << "expected fewer than 2^32 pairs of vectors, got " << units;
  pkb::gather_made(Rotated<T, kLanes>{uint32_t(units), uint32_t(query_units), heads(q, q_out), heads(k, k_out),
                                      static_cast<const T*>(cosines.data_ptr()), static_cast<const T*>(sines.data_ptr()),
                                      uint32_t(q.size(1)), uint32_t(comm.world_size), uint32_t(q.size(3)) / 2 / kLanes},
                   comm);
}

}  // namespace

void solution(TensorView q_local, TensorView k_local, TensorView cos_local, TensorView sin_local, TensorView q_global,
              TensorView k_global, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(q_local.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int kLanes = pkb::kPerVector<T>;
    if (q_local.size(3) / 2 % kLanes == 0) {
      launch<T, kLanes>(q_local, k_local, cos_local, sin_local, q_global, k_global, comm);
    } else {
      launch<T, 1>(q_local, k_local, cos_local, sin_local, q_global, k_global, comm);
    }
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
