// VocabParallelCrossEntropy: a shard of a row is read once for its maximum and sum, and once more, from cache, to shift it.
//
// What moves: a warp, or a block where rows are long, reads the rank's shard of a token and sends its largest logit and
// the sum of exponentials to all ranks, with the target's logit where that is the rank's: three numbers, as words that
// carry the number of the call (pkb/tagged_cuda.h). Then it goes on to its next row, and shifts the row before, whose
// words have had that time to arrive, as long as the L2 cache still holds it. Every rank joins the W parts by itself
// (pkb/online_softmax_cuda.h), so that one crossing of the link does what three all-reduces did. Nobody touches a peer's
// arguments or outputs; words lie in two halves of scratch by turns, and each rank needs words of all others in every
// call, so that none can be two calls ahead.
//
// Bound: memory, one read and one write of the logits; the baseline reads them five times and writes them twice.
//
// Left on the table: a block reads or writes, not both at once, and drains its loads in between; with a ring of bulk
// copies a warp would not. The second read takes L2 bandwidth.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "pkb/launch_cuda.h"
#include "pkb/online_softmax_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using pkb::kInfinity;
using pkb::SoftmaxSum;
using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 512, kBlocks = 2;            // of a block; blocks of a multiprocessor
constexpr int64_t kRowOfWarp = 8 << 10;               // bytes of a shard that a warp reads alone
constexpr int64_t kCached = 36 << 20;                 // bytes of rows that wait in the L2 cache
constexpr int kMaxWaiting = 8;                        // rows of a team

template <class T>
struct Globals {
  T* logits;
  const int64_t* target;
  T* loss;
  pkb::TaggedPair* parts;   // in scratch: largest logit and sum of each token and rank,
  uint64_t* target_logits;  // and the target's logit of each token
  int64_t tokens, group;
  int shard, waiting;       // rows that are read before the first is shifted
};

// What every rank knows of a token in the end.
struct Joined {
  SoftmaxSum all;
  float target_logit;
};

// Calls visit(i, packet) for the packets of a row that are this thread's; `load` reads one.
template <class T, int kLanes, class Team, class Load, class Visit>
__device__ __forceinline__ void visit_row(const Team& team, const T* row, int packets, const Load& load,
                                          const Visit& visit) {
  constexpr int kUnroll = pkb::kLoadsAtOnce;
  for (int first = team.thread(); first < packets; first += kUnroll * team.threads()) {
    pkb::Packet<T, kLanes> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * team.threads();
      if (i < packets) loaded[u] = load(row + int64_t(i) * kLanes);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * team.threads();
      if (i < packets) visit(i, loaded[u]);
    }
  }
}

// The part of this rank's shard of a token.
template <class T, int kLanes, class Team>
__device__ SoftmaxSum part_of(const Globals<T>& g, const Team& team, int64_t token) {
  using Packet = pkb::Packet<T, kLanes>;
  SoftmaxSum part;
  visit_row<T, kLanes>(
      team, g.logits + token * g.shard, g.shard / kLanes,
      [](const T* from) { return *reinterpret_cast<const Packet*>(from); },
      [&](int, const Packet& packet) {
        float x[kLanes];
#pragma unroll
        for (int e = 0; e < kLanes; ++e) x[e] = pkb::to_float(packet.lanes[e]);
        part.add(x);
      });
  return pkb::join_parts(team, part);
}

// The first threads send a part to all ranks, each to one.
template <class T>
__device__ void send(const Globals<T>& g, const pkb::Device& comm, int thread, int64_t token, const SoftmaxSum& part) {
  const int W = comm.group_size(g.group), place = comm.group_rank(g.group);
  if (thread >= W) return;
  const int to = comm.group_member(g.group, thread);
  const uint2 words{__float_as_uint(part.most), __float_as_uint(part.sum)};
  pkb::store_tagged(comm.peer(g.parts + token * W + place, to), words, uint32_t(comm.epoch));
  const int64_t target = g.target[token] - int64_t(place) * g.shard;
  if (target < 0 || target >= g.shard) return;
  const float logit = pkb::to_float(g.logits[token * g.shard + target]);
  pkb::store_tagged(comm.peer(g.target_logits + token, to), logit, uint32_t(comm.epoch));
}

// One warp waits for the parts of a token and joins them.
template <class T>
__device__ Joined receive(const Globals<T>& g, const pkb::Device& comm, int64_t token) {
  const int W = comm.group_size(g.group), lane = pkb::lane_id();
  const uint32_t tag = uint32_t(comm.epoch);
  SoftmaxSum part;
  float target_logit = 0.0f;
  if (lane < W) {
    const uint2 words = pkb::wait_tagged(g.parts + token * W + lane, tag);
    part.most = __uint_as_float(words.x);
    part.sum = __uint_as_float(words.y);
  }
  if (lane == 0) {
    const int64_t target = g.target[token];
    const bool exists = target >= 0 && target < int64_t(g.shard) * W;
    if (exists) target_logit = pkb::wait_tagged(g.target_logits + token, tag);
  }
  return Joined{pkb::join_parts(pkb::Warp(), part), target_logit};
}

template <class T>
__device__ float most_of(const Globals<T>& g, const pkb::Device& comm, const pkb::Warp&, int64_t token, Joined& joined) {
  joined = receive(g, comm, token);
  __syncwarp();  // the target's logit has been read
  return joined.all.most;
}

template <class T>
__device__ float most_of(const Globals<T>& g, const pkb::Device& comm, const pkb::Block&, int64_t token,
                         Joined& joined) {
  __shared__ float most;
  if (pkb::warp_id() == 0) {
    joined = receive(g, comm, token);
    if (pkb::lane_id() == 0) most = joined.all.most;
  }
  __syncthreads();
  const float result = most;
  __syncthreads();  // before the next token's
  return result;
}

template <class T, int kLanes, class Team>
__device__ void shift(const Globals<T>& g, const pkb::Device& comm, const Team& team, int64_t token) {
  using Packet = pkb::Packet<T, kLanes>;
  Joined joined;
  const float most = most_of(g, comm, team, token, joined);
  if (team.thread() == 0) g.loss[token] = T(logf(joined.all.sum) - (joined.target_logit - most));
  T* row = g.logits + token * g.shard;
  visit_row<T, kLanes>(
      team, row, g.shard / kLanes, [](const T* from) { return pkb::load_packet<T, kLanes>(from); },
      [&](int i, Packet packet) {
#pragma unroll
        for (T& x : packet.lanes) x = T(pkb::to_float(x) - most);
        using Unit = typename pkb::UnitOf<int(sizeof(T)) * kLanes>::type;
        Unit unit;
        memcpy(&unit, &packet, sizeof(unit));
        __stcs(reinterpret_cast<Unit*>(row + int64_t(i) * kLanes), unit);  // rows that wait stay cached
      });
}

// All teams wait for others: blocks are resident together.
template <class T, int kLanes, class Team>
__global__ void __launch_bounds__(kThreads, kBlocks)
    cross_entropy(const __grid_constant__ Globals<T> g, const __grid_constant__ pkb::Device comm) {
  constexpr bool kIsWarp = std::is_same_v<Team, pkb::Warp>;
  constexpr int kTeams = kIsWarp ? kThreads / 32 : 1;  // of a block
  const Team team;
  const int64_t first = kIsWarp ? int64_t(pkb::warp_id()) * gridDim.x + blockIdx.x : blockIdx.x;
  const int64_t step = int64_t(gridDim.x) * kTeams, ahead = g.waiting * step;
  for (int64_t token = first; token < g.tokens + ahead; token += step) {
    if (token < g.tokens) send(g, comm, team.thread(), token, part_of<T, kLanes>(g, team, token));
    if (token < ahead) continue;
    if (token - ahead < step) comm.hold();
    shift<T, kLanes>(g, comm, team, token - ahead);
  }
}

template <class T, int kLanes, class Team>
void launch(Globals<T> g, int W, const pkb::Comm& comm) {
  constexpr int kTeams = std::is_same_v<Team, pkb::Warp> ? kThreads / 32 : 1;
  const int64_t row_bytes = std::max<int64_t>(g.shard * int64_t(sizeof(T)), 1);
  int64_t blocks = int64_t(kBlocks) * pkb::multiprocessors();
  if (blocks * kTeams * row_bytes * (W > 1 ? 2 : 1) > kCached) blocks = pkb::multiprocessors();
  blocks = std::min(blocks, (g.tokens + kTeams - 1) / kTeams);
  if (W > 1) g.waiting = int(std::clamp<int64_t>(kCached / (blocks * kTeams * row_bytes) - 1, 1, kMaxWaiting));
  cross_entropy<T, kLanes, Team><<<unsigned(blocks), kThreads, 0, comm.cuda_stream()>>>(g, comm.device());
  PKB_CUDA_LAUNCHED();
}

template <class T>
void launch_of(const TensorView& logits, const TensorView& target, int64_t group, const TensorView& loss,
               const pkb::Comm& comm) {
  const int W = comm.group(group).size;
  Globals<T> g{};
  g.logits = static_cast<T*>(logits.data_ptr());
  g.target = static_cast<const int64_t*>(target.data_ptr());
  g.loss = static_cast<T*>(loss.data_ptr());
  g.tokens = target.numel();
  g.group = group;
  g.shard = int(logits.size(2));
  if (g.tokens == 0) return;
  const uint64_t half = comm.scratch_bytes / 512 * 256;
  const uint64_t needed = g.tokens * (W * sizeof(pkb::TaggedPair) + sizeof(uint64_t));
  if (needed > half) {
    TVM_FFI_THROW(ValueError) << "sums of " << g.tokens << " tokens take " << needed << " bytes, half of scratch has "
                              << half;
  }
  g.parts = comm.scratch<pkb::TaggedPair>(comm.epoch % 2 * half);
  g.target_logits = reinterpret_cast<uint64_t*>(g.parts + g.tokens * W);
  constexpr int kLanes = pkb::kPerVector<T>;
  const bool is_short = g.shard * int64_t(sizeof(T)) <= kRowOfWarp;
  if (g.shard % kLanes) launch<T, 1, pkb::Warp>(g, W, comm);
  else if (is_short) launch<T, kLanes, pkb::Warp>(g, W, comm);
  else launch<T, kLanes, pkb::Block>(g, W, comm);
}

}  // namespace

void solution(TensorView vocab_parallel_logits, TensorView target, int64_t group, TensorView loss, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, __half, float>(vocab_parallel_logits.dtype(), [&](auto zero) {
    launch_of<decltype(zero)>(vocab_parallel_logits, target, group, loss, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
