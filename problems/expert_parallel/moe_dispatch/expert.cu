// MoEDispatch: tokens are pulled once by each rank that hosts some of their experts, straight into all rows that they get.
//
// What moves: the mask is read once, and gives the routing map and a number to every pair of expert and token
// (pkb/routing_cuda.h). From these a rank tells the others which rows of theirs each token of its has
// (pkb/expert_rows_cuda.h); splits that stay on the host are all that the host contributes. A warp then takes a token of
// one rank: it looks up which rows it has here, loads the token once, over the link or not, and stores it to all of
// them. So a token that goes to several experts of a rank crosses the link once, where the baseline sends it for each
// expert, after a gather and before a sort.
//
// Bound: link, a row for each token and other rank that hosts one of its experts; on one rank memory, the rows' writes.
//
// Left on the table: the mask is read before anything moves. Of tokens with no expert here a warp reads the slots. Loads
// over the link wait longer than stores would, which would need a rank to know others' places before it begins.
#include "pkb/expert_rows_cuda.h"
#include "pkb/routing_cuda.h"
#include "pkb/symm.h"
#include "pkb/transfer_cuda.h"

using tvm::ffi::Array;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = pkb::kTransferThreads;
constexpr int kAtOnce = 8;  // loads of a lane

struct Nothing {};
using Slots = pkb::Slots<Nothing>;
using Slot = pkb::Slot<Nothing>;

// Sums the mask over slots, into the routing map.
struct SumOfSlots {
  const float* mask;  // (experts, slots, tokens)
  float* routing_map;
  int64_t tokens;
  int slots;

  __device__ bool operator()(int expert, int64_t token) const {
    float sum = 0.0f;
#pragma unroll 4
    for (int k = 0; k < slots; ++k) sum += mask[(int64_t(expert) * slots + k) * tokens + token];
    routing_map[expert * tokens + token] = sum;
    return sum != 0.0f;
  }
};

__global__ void __launch_bounds__(kThreads)
    share_places(const __grid_constant__ pkb::Pairs pairs, const __grid_constant__ Slots slots, int64_t* permutation,
                 const __grid_constant__ pkb::Device comm) {
  extern __shared__ int starts[];
  pkb::count_before(pairs, starts);
  const int64_t token = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  if (token >= slots.tokens) return;
  int k = 0;
  pairs.visit(token, [&](int expert, int64_t number) {
    const int64_t pair = starts[expert] + number;
    permutation[pair] = token;
    slots.share(token, k++, Slot{slots.place_of(pair), {}}, comm);
  });
  for (; k < slots.of_token; ++k) slots.share(token, k, Slot{pkb::kNoSlot, {}}, comm);
}

struct Rows {
  const char* tokens;  // this rank's; other ranks' are its counterparts
  char* dispatched;
  uint64_t bytes;      // of a row
  const int64_t* counts;
  int local;
  int64_t* flat_shape;
  int64_t width;
};

// One token, into the rows of those lanes that have one.
template <class Unit>
__device__ __forceinline__ void copy_row(const Rows& rows, const char* token, unsigned lanes, int64_t row) {
  const int units = int(rows.bytes / sizeof(Unit));
  const Unit* from = reinterpret_cast<const Unit*>(token);
  for (int first = pkb::lane_id(); first < units + pkb::lane_id(); first += kAtOnce * 32) {
    Unit values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + 32 * i < units) values[i] = __ldcs(from + first + 32 * i);
    }
    for (unsigned left = lanes; left; left &= left - 1) {
      const int64_t target = __shfl_sync(pkb::kAllLanes, row, __ffs(int(left)) - 1);
      Unit* to = reinterpret_cast<Unit*>(rows.dispatched + target * rows.bytes);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + 32 * i < units) to[first + 32 * i] = values[i];
      }
    }
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads, pkb::kBlocksPerSm)
    pull(const __grid_constant__ Rows rows, const __grid_constant__ Slots slots,
         const __grid_constant__ pkb::Device comm) {
  extern __shared__ int64_t shared[];
  __shared__ int64_t tokens_of[pkb::kMaxRanks];
  const int members = comm.group_size(slots.group), own = comm.group_rank(slots.group), lane = pkb::lane_id();
  const pkb::LocalRows local_rows(rows.counts, members, rows.local, shared);
  slots.await(tokens_of, comm);
  for (int k = 1; k <= members; ++k) {
    const int source = (own + k) % members, rank = comm.group_member(slots.group, source);
    const Slot* of_source = slots.at(comm.rank, rank, comm);
    const char* tokens = comm.peer(rows.tokens, rank);
    const int64_t warps = int64_t(gridDim.x) * (kThreads / 32);
    for (int64_t token = blockIdx.x * int64_t(kThreads / 32) + pkb::warp_id(); token < tokens_of[source]; token += warps) {
      int64_t row = -1;
      if (lane < slots.of_token) {
        const Slot slot = of_source[token * slots.of_token + lane];
        if (slot.is_at(own)) row = local_rows(source, slot.row());
      }
      const unsigned lanes = __ballot_sync(pkb::kAllLanes, row >= 0);
      if (lanes) copy_row<Unit>(rows, tokens + token * rows.bytes, lanes, row);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    rows.flat_shape[0] = slots.tokens;
    rows.flat_shape[1] = rows.width;
  }
  comm.barrier_blocks(0, slots.group);  // others have read this rank's tokens
}

}  // namespace

void solution(TensorView hidden_states, TensorView expert_mask, int64_t num_experts, Array<int64_t> input_splits,
              Array<int64_t> output_splits, TensorView num_global_tokens_per_local_expert, int64_t group,
              TensorView dispatched, TensorView routing_map, TensorView permutation, TensorView flat_shape,
              pkb::Comm comm) {
  const int64_t tokens = hidden_states.size(0), slots_each = expert_mask.size(1);
  const int members = comm.group(group).size;
  const Slots slots = Slots::of(tokens, slots_each, input_splits, group, comm);
  const cudaStream_t stream = comm.cuda_stream();
  if (tokens > 0) {
    const pkb::Pairs pairs = pkb::Pairs::of(num_experts, tokens,
                                            pkb::kept_memory<char>(pkb::Pairs::bytes(num_experts, tokens)));
    pkb::number_pairs(pairs,
                      SumOfSlots{static_cast<const float*>(expert_mask.data_ptr()),
                                 static_cast<float*>(routing_map.data_ptr()), tokens, int(slots_each)},
                      stream);
    share_places<<<unsigned((tokens + kThreads - 1) / kThreads), kThreads, num_experts * sizeof(int), stream>>>(
        pairs, slots, static_cast<int64_t*>(permutation.data_ptr()), comm.device());
    PKB_CUDA_LAUNCHED();
  }
  Rows rows{};
  rows.tokens = static_cast<const char*>(hidden_states.data_ptr());
  rows.dispatched = static_cast<char*>(dispatched.data_ptr());
  rows.width = hidden_states.size(1);
  rows.bytes = rows.width * hidden_states.dtype().bits / 8;
  rows.counts = static_cast<const int64_t*>(num_global_tokens_per_local_expert.data_ptr());
  rows.local = int(num_experts / members);
  rows.flat_shape = static_cast<int64_t*>(flat_shape.data_ptr());
  const size_t shared = pkb::LocalRows::shared_bytes(members, rows.local);
  const unsigned blocks = unsigned(pkb::max_blocks());  // tokens differ by rank, and blocks must not
  const auto launch = [&](auto unit) {
    pull<decltype(unit)><<<blocks, kThreads, shared, stream>>>(rows, slots, comm.device());
    PKB_CUDA_LAUNCHED();
  };
  if (rows.bytes % 16 == 0) launch(uint4{});
  else if (rows.bytes % 4 == 0) launch(uint32_t{});
  else launch(uint16_t{});
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
