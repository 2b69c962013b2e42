// MoELoRAGroupGemmBackward: one kernel sums three small gradients over the group, in place.
//
// What moves: small gradients go to all members of the group as words that carry the number of the call, and each rank
// adds up all of them for itself. Larger ones are cut into tiles that members own by turns: tiles are pushed to their
// owners' scratch in rounds, with a signal from each block after each round, and their sums straight back into all
// members' gradients, since a term of a tile says that its sender is done reading it. Sums are formed in float32 (float64
// for float64), in the order of the members, and rounded once. The baseline has three collectives, one after the other.
//
// Bound: latency of one crossing of the link where gradients are small, else the link, 2 (G - 1) / G of them each way.
//
// Left on the table: between two and three hundred kilobytes neither way is best. The group may change from call to
// call, so that senders look whether all ranks have begun the last call, which groups that stay would make needless.
#include <algorithm>

#include "pkb/exchange_cuda.h"
#include "pkb/symm.h"
#include "pkb/tensor_list_cuda.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads, kTensors = 3;
constexpr uint64_t kMostRounds = 8;  // more of them would pay for more signals than they hide
// Scratch: tagged words of even and of odd calls, which are twice as long as what they carry, then tiles of both.
constexpr uint64_t kTaggedHalf = 2 * pkb::kTaggedBytes + pkb::kMaxRanks * kTensors * sizeof(pkb::TaggedPair);

// What a sender's box is in the scratch of a receiver, by their places in the group.
__device__ __forceinline__ int box_of(int receiver, int sender, int members) {
  return sender - receiver - 1 + (sender < receiver ? members : 0);
}

// Who has begun the last call has read what came in the one before, whatever group it was in.
__device__ __forceinline__ void enter(const pkb::Device& comm) {
  comm.signal_begun();
  comm.wait_all_begun(1);
}

// Eight bytes of the gradients; unit 0 is the first of the first tensor.
struct Units {
  char* data[kTensors];
  uint64_t bytes[kTensors];

  __host__ __device__ uint64_t of(int tensor) const { return (bytes[tensor] + 7) / 8; }
  __host__ __device__ uint64_t all() const { return of(0) + of(1) + of(2); }

  struct Place {
    char* at;
    uint64_t left;
  };
  __device__ __forceinline__ Place place(uint64_t unit) const {
    int tensor = 0;
    while (unit >= of(tensor)) unit -= of(tensor++);
    return {data[tensor] + 8 * unit, bytes[tensor] - 8 * unit};
  }
};

template <class T>
__device__ __forceinline__ void add_eight(pkb::Accumulator<T> (&sums)[8 / sizeof(T)], uint2 eight) {
  pkb::Packet<T, 8 / sizeof(T)> packet;
  memcpy(&packet, &eight, sizeof(packet));
#pragma unroll
  for (int lane = 0; lane < 8 / int(sizeof(T)); ++lane) sums[lane] += static_cast<pkb::Accumulator<T>>(packet.lanes[lane]);
}

template <class T>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    sum_small(const __grid_constant__ Units units, int64_t group, const __grid_constant__ pkb::Device comm) {
  constexpr int kLanes = 8 / int(sizeof(T));
  const uint32_t tag = uint32_t(comm.epoch);
  const int members = comm.group_size(group), own = comm.group_rank(group);
  const uint64_t count = units.all(), first = blockIdx.x * uint64_t(kThreads) + threadIdx.x;
  const uint64_t step = gridDim.x * uint64_t(kThreads);
  const auto box = [&](int receiver, int sender) {
    auto* here = comm.scratch<pkb::TaggedPair>(comm.epoch % 2 * kTaggedHalf);
    return comm.peer(here, comm.group_member(group, receiver)) + box_of(receiver, sender, members) * count;
  };
  enter(comm);
  for (uint64_t i = first; i < count; i += step) {
    const Units::Place place = units.place(i);
    const uint2 eight = pkb::load_eight(place.at, place.left);
    for (int member = 0; member < members; ++member) {
      if (member != own) pkb::store_tagged(box(member, own) + i, eight, tag);
    }
  }
  comm.hold();
  for (uint64_t i = first; i < count; i += step) {
    const Units::Place place = units.place(i);
    pkb::Accumulator<T> sums[kLanes] = {};
    for (int member = 0; member < members; ++member) {
      add_eight<T>(sums, member == own ? pkb::load_eight(place.at, place.left)
                                       : pkb::wait_tagged(box(own, member) + i, tag));
    }
    pkb::Packet<T, kLanes> packet;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) packet.lanes[lane] = static_cast<T>(sums[lane]);
    uint2 eight;
    memcpy(&eight, &packet, sizeof(eight));
    pkb::store_eight(place.at, eight, place.left);
  }
}

// Tile t of the list is of member t % members; the tiles of one number t / members are a row.
template <class T>
struct Tiles {
  pkb::TensorList<T, kTensors> list;
  uint64_t half;     // bytes of scratch that hold the tiles of one call
  uint32_t rounds;   // in which a block goes through its rows

  struct Tile {
    T* begin;
    uint64_t elements;  // 0 behind the last one
  };
  __device__ __forceinline__ Tile tile(uint32_t index) const {
    if (index >= list.tiles()) return {nullptr, 0};
    int tensor = 0;
    while (index >= list.tiles_up_to[tensor]) ++tensor;
    const uint64_t first = uint64_t(index - (tensor > 0 ? list.tiles_up_to[tensor - 1] : 0)) * pkb::kListTile<T>;
    return {list.data[tensor] + first, min(uint64_t(pkb::kListTile<T>), list.elements[tensor] - first)};
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    sum_large(const __grid_constant__ Tiles<T> tiles, int64_t group, const __grid_constant__ pkb::Device comm) {
  const int members = comm.group_size(group), own = comm.group_rank(group), thread = int(threadIdx.x);
  const uint32_t rows = (tiles.list.tiles() + members - 1) / members, rounds = tiles.rounds;
  const auto box = [&](int receiver, int sender, uint32_t row) {
    T* here = comm.scratch<T>(2 * kTaggedHalf + comm.epoch % 2 * tiles.half);
    return comm.peer(here, comm.group_member(group, receiver)) +
           (uint64_t(box_of(receiver, sender, members)) * rows + row) * pkb::kListTile<T>;
  };
  const bool has_peer = thread < members && thread != own;
  enter(comm);
  for (uint32_t round = 0; round <= rounds; ++round) {
    // Row b + i * blocks of block b comes in round i % rounds.
    for (uint32_t row = blockIdx.x + round * gridDim.x; round < rounds && row < rows; row += rounds * gridDim.x) {
      for (int k = 1; k < members; ++k) {
        const int member = (own + k) % members;
        const auto tile = tiles.tile(row * members + member);
        pkb::copy_slice(box(member, own, row), tile.begin, tile.elements * sizeof(T));
      }
    }
    __syncthreads();
    if (round < rounds && has_peer) comm.signal_block(int(round), comm.group_member(group, thread));
    if (round == 0) continue;
    if (has_peer) comm.wait_block(int(round) - 1, comm.group_member(group, thread));
    __syncthreads();
    for (uint32_t row = blockIdx.x + (round - 1) * gridDim.x; row < rows; row += rounds * gridDim.x) {
      const auto tile = tiles.tile(row * members + own);
      const auto term = [&](int member) { return member == own ? tile.begin : box(own, member, row); };
      const auto result = [&](int member) { return comm.peer(tile.begin, comm.group_member(group, member)); };
      if (tile.elements > 0) pkb::add_up<T>(tile.elements, members, term, members, result, 0, 1);
    }
  }
  __syncthreads();
  if (has_peer) {
    comm.signal_block(int(rounds), comm.group_member(group, thread));
    comm.wait_block(int(rounds), comm.group_member(group, thread));
  }
}

}  // namespace

void solution(TensorView grad_fc1_1_lora_A, TensorView grad_fc1_2_lora_A, TensorView grad_fc2_lora_B, int64_t group,
              pkb::Comm comm) {
  if (comm.world_size == 1) return;
  Units units{};
  int tensor = 0;
  for (const TensorView* grad : {&grad_fc1_1_lora_A, &grad_fc1_2_lora_A, &grad_fc2_lora_B}) {
    units.data[tensor] = static_cast<char*>(grad->data_ptr());
    units.bytes[tensor++] = pkb::contiguous_bytes(*grad);
  }
  pkb::with_float_type(grad_fc1_1_lora_A.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (pkb::is_tagged(units.all() * 8, comm)) {
      const unsigned blocks = pkb::blocks_for(units.all() * 8, 8 * kThreads);
      sum_small<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(units, group, comm.device());
    } else {
      Tiles<T> tiles;
      for (int i = 0; i < kTensors; ++i) tiles.list.add(units.data[i], units.bytes[i] / sizeof(T));
      tiles.half = (comm.scratch_bytes - 2 * kTaggedHalf) / 512 * 256;
      const uint64_t members = comm.group(group).size, rows = (tiles.list.tiles() + members - 1) / members;
      if ((members - 1) * rows * pkb::kCopyTile > tiles.half) {
        TVM_FFI_THROW(ValueError) << "half of scratch holds " << tiles.half << " bytes, not those of " << units.all() * 8;
      }
      const unsigned blocks = unsigned(std::min<uint64_t>(rows, pkb::max_blocks()));
      tiles.rounds = uint32_t(std::clamp<uint64_t>(rows / blocks / 2, 1, kMostRounds));
      sum_large<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(tiles, group, comm.device());
    }
    PKB_CUDA_LAUNCHED();
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
