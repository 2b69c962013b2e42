// MoECombine: a rank adds up its rows of a token, weighted, and sends the owner one row for all of them.
//
// What moves: the routing map is read once and gives a number to every pair of expert and token (pkb/routing_cuda.h). From
// these a rank tells the others which of their rows belong to each of its tokens, and with what weight
// (pkb/expert_rows_cuda.h). A warp takes a token of another rank, adds up the rows that are here, and stores the sum to
// the owner's scratch. When all have, the owner adds to these its own rows. So a token with several experts on a rank
// crosses the link once, where the baseline sends a row for each expert, and sorts rows before and adds them up after.
// Sums are float32 (float64 for float64), in the order of ranks and experts.
//
// Bound: link, a row for each token and other rank that hosts one of its experts; on one rank memory, the rows' reads.
//
// Left on the table: sums of a call's tokens begin only when all have come. Partial sums pass through memory once more.
#include "pkb/expert_rows_cuda.h"
#include "pkb/routing_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr int kSumsSent = pkb::kMaxRanks;  // words of the signal pad, one for each sender, behind those of the slots

struct IsRouted {
  const uint8_t* routing_map;
  int64_t tokens;
  __device__ bool operator()(int expert, int64_t token) const { return routing_map[expert * tokens + token] != 0; }
};

template <class T>
struct Combine {
  using Sum = pkb::Accumulator<T>;
  using Slots = pkb::Slots<Sum>;
  using Slot = pkb::Slot<Sum>;

  Slots slots;
  const T* rows;               // of this rank's experts
  const T* weights;            // (tokens, slots)
  const int64_t* selected;     // (tokens, slots)
  const int64_t* counts;
  T* out;
  int64_t width;
  int local;
  uint64_t inbox;              // in scratch: (parts, tokens, width), part i of a token from its i-th other rank

  // A token's rows that are here, as lanes see them, and which part of the token's sum they are.
  struct Here {
    unsigned lanes;
    int64_t row;
    Sum weight;
    int part, parts;
  };
  __device__ __forceinline__ Here look_up(int source, const Slot* of_source, int64_t token, int own,
                                          const pkb::LocalRows& local_rows) const {
    const int lane = pkb::lane_id();
    Slot slot{pkb::kNoSlot, Sum(0)};
    if (lane < slots.of_token) slot = of_source[token * slots.of_token + lane];
    const bool is_here = slot.is_at(own);
    const int member = slot.place == pkb::kNoSlot ? -1 : slot.member();
    // Slots are in the order of members: a token's parts begin where the member changes.
    const int last = __shfl_up_sync(pkb::kAllLanes, member, 1);
    const bool begins = member >= 0 && member != source && (lane == 0 || member != last);
    const unsigned firsts = __ballot_sync(pkb::kAllLanes, begins);
    Here here{__ballot_sync(pkb::kAllLanes, is_here), -1, slot.weight, 0, __popc(firsts)};
    if (is_here) here.row = local_rows(source, slot.row());
    if (here.lanes) here.part = __popc(firsts & ((1u << (__ffs(int(here.lanes)) - 1)) - 1));
    return here;
  }

  // Adds up the rows that are here, and calls use(first element, sums).
  template <int kLanes, class Use>
  __device__ __forceinline__ void add_up(const Here& here, Use use) const {
    for (int64_t first = pkb::lane_id() * kLanes; first < width + pkb::lane_id() * kLanes; first += 32 * kLanes) {
      Sum sums[kLanes] = {};
      for (unsigned left = here.lanes; left; left &= left - 1) {
        const int lane = __ffs(int(left)) - 1;
        const int64_t row = __shfl_sync(pkb::kAllLanes, here.row, lane);
        const Sum weight = __shfl_sync(pkb::kAllLanes, here.weight, lane);
        if (first >= width) continue;
        const auto packet = pkb::load_packet<T, kLanes>(rows + row * width + first);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) sums[i] += weight * static_cast<Sum>(packet.lanes[i]);
      }
      if (first < width) use(first, sums);
    }
  }
};

template <class T, int kLanes>
__device__ __forceinline__ void store_sums(T* to, const pkb::Accumulator<T> (&sums)[kLanes]) {
  pkb::Packet<T, kLanes> packet;
#pragma unroll
  for (int i = 0; i < kLanes; ++i) packet.lanes[i] = static_cast<T>(sums[i]);
  pkb::store_packet(to, packet);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    share_places(const __grid_constant__ pkb::Pairs pairs, const __grid_constant__ Combine<T> g,
                 const __grid_constant__ pkb::Device comm) {
  extern __shared__ int starts[];
  using Slot = typename Combine<T>::Slot;
  using Sum = typename Combine<T>::Sum;
  pkb::count_before(pairs, starts);
  const int64_t token = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (token >= g.slots.tokens) return;
  int k = 0;
  pairs.visit(token, [&](int expert, int64_t number) {
    Sum weight = 0;
    for (int i = 0; i < g.slots.of_token; ++i) {
      const int64_t at = token * g.slots.of_token + i;
      if (g.selected[at] == expert) weight += static_cast<Sum>(g.weights[at]);
    }
    g.slots.share(token, k++, Slot{g.slots.place_of(starts[expert] + number), weight}, comm);
  });
  for (; k < g.slots.of_token; ++k) g.slots.share(token, k, Slot{pkb::kNoSlot, Sum(0)}, comm);
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    send_sums(const __grid_constant__ Combine<T> g, const __grid_constant__ pkb::Device comm) {
  extern __shared__ int64_t shared[];
  __shared__ int64_t tokens_of[pkb::kMaxRanks];
  const int members = comm.group_size(g.slots.group), own = comm.group_rank(g.slots.group);
  const pkb::LocalRows local_rows(g.counts, members, g.local, shared);
  g.slots.await(tokens_of, comm);
  const int64_t warps = int64_t(gridDim.x) * (kThreads / 32);
  for (int k = 1; k < members; ++k) {
    const int source = (own + k) % members, rank = comm.group_member(g.slots.group, source);
    const auto* of_source = g.slots.at(comm.rank, rank, comm);
    T* inbox = comm.peer(comm.scratch<T>(g.inbox), rank);
    for (int64_t token = blockIdx.x * int64_t(kThreads / 32) + pkb::warp_id(); token < tokens_of[source]; token += warps) {
      const auto here = g.look_up(source, of_source, token, own, local_rows);
      if (here.lanes == 0) continue;
      T* to = inbox + (here.part * tokens_of[source] + token) * g.width;
      g.template add_up<kLanes>(here, [&](int64_t first, const auto& sums) { store_sums<T, kLanes>(to + first, sums); });
    }
  }
}

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    finish(const __grid_constant__ Combine<T> g, const __grid_constant__ pkb::Device comm) {
  extern __shared__ int64_t shared[];
  const int members = comm.group_size(g.slots.group), own = comm.group_rank(g.slots.group);
  const int thread = int(threadIdx.x);
  const pkb::LocalRows local_rows(g.counts, members, g.local, shared);
  if (thread < members && thread != own) {
    const int peer = comm.group_member(g.slots.group, thread);
    if (blockIdx.x == 0) comm.signal(kSumsSent + comm.rank, peer);
    comm.wait(kSumsSent + peer);
  }
  __syncthreads();
  const auto* of_own = g.slots.at(comm.rank, comm.rank, comm);
  const T* inbox = comm.scratch<T>(g.inbox);
  const int64_t warps = int64_t(gridDim.x) * (kThreads / 32);
  for (int64_t token = blockIdx.x * int64_t(kThreads / 32) + pkb::warp_id(); token < g.slots.tokens; token += warps) {
    const auto here = g.look_up(own, of_own, token, own, local_rows);
    g.template add_up<kLanes>(here, [&](int64_t first, auto& sums) {
      for (int part = 0; part < here.parts; ++part) {
        const auto packet = pkb::load_packet<T, kLanes>(inbox + (part * g.slots.tokens + token) * g.width + first);
#pragma unroll
        for (int i = 0; i < kLanes; ++i) sums[i] += static_cast<pkb::Accumulator<T>>(packet.lanes[i]);
      }
      store_sums<T, kLanes>(g.out + token * g.width + first, sums);
    });
  }
}

template <class T, int kLanes>
void launch(const Combine<T>& g, size_t shared, const pkb::Comm& comm) {
  const unsigned blocks = unsigned(pkb::max_blocks());
  if (comm.world_size > 1) {
    send_sums<T, kLanes><<<blocks, kThreads, shared, comm.cuda_stream()>>>(g, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  finish<T, kLanes><<<blocks, kThreads, shared, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

}  // namespace

void solution(TensorView expert_outputs, TensorView routing_weights, TensorView selected_experts, int64_t num_experts,
              Array<int64_t> input_splits, Array<int64_t> output_splits, TensorView num_global_tokens_per_local_expert,
              TensorView routing_map, TensorView local_input_permutation_mapping, Array<int64_t> org_hidden_states_shape,
              int64_t group, TensorView out, pkb::Comm comm) {
  const int64_t tokens = out.size(0), slots_each = selected_experts.size(1);
  const int members = comm.group(group).size;
  pkb::with_float_type(expert_outputs.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Combine<T> g{};
    g.slots = Combine<T>::Slots::of(tokens, slots_each, input_splits, group, comm);
    g.rows = static_cast<const T*>(expert_outputs.data_ptr());
    g.weights = static_cast<const T*>(routing_weights.data_ptr());
    g.selected = static_cast<const int64_t*>(selected_experts.data_ptr());
    g.counts = static_cast<const int64_t*>(num_global_tokens_per_local_expert.data_ptr());
    g.out = static_cast<T*>(out.data_ptr());
    g.width = out.size(1);
    g.local = int(num_experts / members);
    g.inbox = Combine<T>::Slots::end(comm);
    const uint64_t parts = std::min<int64_t>(slots_each, members - 1);
    if (g.inbox + parts * tokens * g.width * sizeof(T) > comm.scratch_bytes) {
      TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes holds no " << parts << " rows for each of "
                                << tokens << " tokens";
    }
    if (tokens > 0) {
      const pkb::Pairs pairs = pkb::Pairs::of(num_experts, tokens,
                                              pkb::kept_memory<char>(pkb::Pairs::bytes(num_experts, tokens)));
      pkb::number_pairs(pairs, IsRouted{static_cast<const uint8_t*>(routing_map.data_ptr()), tokens},
                        comm.cuda_stream());
      share_places<T><<<unsigned((tokens + kThreads - 1) / kThreads), kThreads, num_experts * sizeof(int),
                        comm.cuda_stream()>>>(pairs, g, comm.device());
      PKB_CUDA_LAUNCHED();
    }
    const size_t shared = pkb::LocalRows::shared_bytes(members, g.local);
    constexpr int kVector = pkb::kVectorBytes / int(sizeof(T));
    if (g.width % kVector == 0) launch<T, kVector>(g, shared, comm);
    else launch<T, 1>(g, shared, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
