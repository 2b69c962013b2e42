// SinkhornKnopp: two scaling vectors instead of a matrix that is written, and one read of the scores a round.
//
// What moves: assignments are e^(score / temperature) times a factor of the prototype and one of the sample. A pass
// over the scores forms the factor of each sample from those of the prototypes and, in the same registers, adds the
// sample to the sums that give the next factors of the prototypes; the last pass writes the assignments instead. A team
// of blocks holds a row, 4096 scores a block, and shares its sum by words of this rank's scratch, one row behind, so
// that nobody waits. Between passes a small kernel adds up the teams' sums, exchanges them with the ranks of the group
// as words that carry the call and the round (pkb/tagged_cuda.h), and forms the factors. Words lie in four places by
// turns. Ranks of other groups may be calls behind: who has begun the last call has read the words of the one before.
//
// Bound: memory, rounds + 1 reads of the scores and a write. The baseline makes about fifteen reads and nine writes a
// call of three rounds.
//
// Left on the table: the on-chip memory of all multiprocessors holds 60 MB, so that smaller scores could be read once.
// A prototype's sums cross the link twice as long as they are.
#include <algorithm>

#include "pkb/launch_cuda.h"
#include "pkb/symm.h"
#include "pkb/tagged_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/transfer_cuda.h"
#include "pkb/vectors_cuda.h"

using tvm::ffi::TensorView;

namespace {

constexpr int kThreads = 256, kBlocksPerSm = 3;
constexpr int kEach = 16;                  // scores of a row that a thread holds
constexpr int kSlab = kThreads * kEach;    // and a block
constexpr int kMaxRounds = 63;             // a tag holds the round in six bits

enum class Pass {
  kFirst,   // all factors are 1
  kMiddle,
  kLast,    // writes the assignments
  kOnly,    // of no round: they are only divided by their mean
};

template <class T>
struct Globals {
  const T* scores;
  float* assignments;
  const int64_t* own_count;
  float* factors;       // of prototypes; behind them the number of samples of all ranks
  float* own_sums;      // as long
  float* team_sums;     // (teams, prototypes)
  uint64_t* words;      // in scratch, of all ranks: four times (rank, prototypes + 1)
  uint64_t* row_words;  // in scratch, of this rank's blocks: (samples, members)
  int64_t rows, K, group;
  float scale;          // of scores, in powers of 2
  int members, teams;   // blocks of a team

  __device__ uint64_t* words_of(const pkb::Device& comm, int round, int sender) const {
    const int64_t place = int64_t(comm.epoch % 2 * 2 + round % 2) * comm.world_size + sender;
    return words + place * (K + 1);
  }
};

__device__ __forceinline__ uint32_t tag_of(const pkb::Device& comm, int round) {
  return uint32_t(comm.epoch * (kMaxRounds + 1) + round);
}

template <class T, int kLanes>
__device__ __forceinline__ int64_t column_of(int64_t first, int packet) {
  return first + (int64_t(packet) * kThreads + threadIdx.x) * kLanes;
}

// The sum of a row that the team's blocks have each a part of, in every thread.
template <class T>
__device__ float await_row(const Globals<T>& g, int64_t row, uint32_t tag) {
  __shared__ float sum;
  if (pkb::warp_id() == 0) {
    float parts = 0.0f;
    for (int member = pkb::lane_id(); member < g.members; member += 32) {
      parts += pkb::wait_tagged(g.row_words + row * g.members + member, tag);
    }
    parts = pkb::Warp().sum(parts);
    if (pkb::lane_id() == 0) sum = parts;
  }
  __syncthreads();
  const float all = sum;
  __syncthreads();  // before the next row's
  return all;
}

// Blocks of a team wait for each other: all are resident together.
template <class T, int kLanes, Pass kPass>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    balance(const __grid_constant__ Globals<T> g, int round, const __grid_constant__ pkb::Device comm) {
  using Packet = pkb::Packet<T, kLanes>;
  constexpr int kPackets = kEach / kLanes;
  constexpr bool kAdds = kPass == Pass::kFirst || kPass == Pass::kMiddle;
  constexpr bool kNormalises = kPass == Pass::kMiddle || kPass == Pass::kLast;
  __shared__ float factors[kNormalises ? kSlab : 1];
  const int team = int(blockIdx.x) / g.members, member = int(blockIdx.x) % g.members;
  const int64_t first = int64_t(member) * kSlab;
  const uint32_t tag = tag_of(comm, round);

  float of_samples = 1.0f;  // factor of every sample, where they are not normalised
  if constexpr (kPass == Pass::kOnly) {
    float all = 0.0f;
    for (int64_t k = threadIdx.x; k < g.K; k += kThreads) all += g.factors[k];
    of_samples = g.factors[g.K] / pkb::reduce_block<kThreads>(all, [](float a, float b) { return a + b; });
  }
  if constexpr (kNormalises) {
    for (int i = threadIdx.x; i < kSlab; i += kThreads) factors[i] = first + i < g.K ? g.factors[first + i] : 0.0f;
    __syncthreads();
  }
  const auto load = [&](int64_t row, Packet(&loaded)[kPackets]) {
#pragma unroll
    for (int p = 0; p < kPackets; ++p) {
      const int64_t column = column_of<T, kLanes>(first, p);
      if (row < g.rows && column < g.K) loaded[p] = pkb::load_packet<T, kLanes>(g.scores + row * g.K + column);
    }
  };

  float sums[kEach] = {}, previous[kEach];
  const auto finish = [&](int64_t row, const float(&values)[kEach], float factor) {
#pragma unroll
    for (int p = 0; p < kPackets; ++p) {
      if constexpr (kAdds) {
#pragma unroll
        for (int e = 0; e < kLanes; ++e) sums[p * kLanes + e] += values[p * kLanes + e] * factor;
        continue;
      }
      const int64_t column = column_of<T, kLanes>(first, p);
      if (column >= g.K) continue;
      float* to = g.assignments + row * g.K + column;
      constexpr int kStored = kLanes > 1 ? 4 : 1;
#pragma unroll
      for (int e = 0; e < kLanes; e += kStored) {
        pkb::Packet<float, kStored> packet;
#pragma unroll
        for (int i = 0; i < kStored; ++i) packet.lanes[i] = values[p * kLanes + e + i] * factor;
        pkb::store_packet(to + e, packet);
      }
    }
  };

  Packet loaded[kPackets];
  load(team, loaded);
  int64_t before = -1;  // the row that waits for the team's sum
  for (int64_t row = team; row < g.rows; row += g.teams) {
    float values[kEach], part = 0.0f;
#pragma unroll
    for (int p = 0; p < kPackets; ++p) {
      const bool exists = column_of<T, kLanes>(first, p) < g.K;
#pragma unroll
      for (int e = 0; e < kLanes; ++e) {
        float value = exists ? exp2f(g.scale * pkb::to_float(loaded[p].lanes[e])) : 0.0f;
        if constexpr (kNormalises) value *= factors[(p * kThreads + int(threadIdx.x)) * kLanes + e];
        values[p * kLanes + e] = value;
        part += value;
      }
    }
    load(row + g.teams, loaded);
    if constexpr (!kNormalises) {
      finish(row, values, of_samples);
      continue;
    }
    part = pkb::reduce_block<kThreads>(part, [](float a, float b) { return a + b; });
    if (g.members == 1) {
      finish(row, values, 1.0f / part);
      continue;
    }
    if (threadIdx.x == 0) pkb::store_tagged(g.row_words + row * g.members + member, part, tag);
    if (before >= 0) finish(before, previous, 1.0f / await_row(g, before, tag));
    before = row;
#pragma unroll
    for (int i = 0; i < kEach; ++i) previous[i] = values[i];
  }
  if (kNormalises && before >= 0) finish(before, previous, 1.0f / await_row(g, before, tag));
  if constexpr (kAdds) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t column = column_of<T, kLanes>(first, i / kLanes) + i % kLanes;
      if (column < g.K) g.team_sums[team * g.K + column] = sums[i];
    }
  }
}

// Sums of all teams of all ranks of the group, and the factors that follow from them; sums themselves if there is no
// round. What stands behind the prototypes is the number of samples.
template <class T>
__global__ void __launch_bounds__(kThreads)
    combine(const __grid_constant__ Globals<T> g, int round, int rounds, const __grid_constant__ pkb::Device comm) {
  const uint32_t tag = tag_of(comm, round);
  const int64_t begin = blockIdx.x * int64_t(kThreads) + threadIdx.x, step = int64_t(gridDim.x) * kThreads;
  const int ranks = comm.group_size(g.group);
  if (round == 0) {
    comm.signal_begun();
    if (g.group >= 0) comm.wait_all_begun(1, g.group);
  }
  for (int64_t k = begin; k <= g.K; k += step) {
    float own = 0.0f;
    if (k == g.K) {
      own = float(*g.own_count);
    } else {
#pragma unroll 8
      for (int team = 0; team < g.teams; ++team) own += g.team_sums[team * g.K + k];
    }
    g.own_sums[k] = own;
    for (int place = 0; place < ranks; ++place) {
      const int r = comm.group_member(g.group, place);
      if (r != comm.rank) pkb::store_tagged(comm.peer(g.words_of(comm, round, comm.rank) + k, r), own, tag);
    }
  }
  comm.hold();
  for (int64_t k = begin; k <= g.K; k += step) {
    float sum = 0.0f;
    for (int place = 0; place < ranks; ++place) {
      const int r = comm.group_member(g.group, place);
      sum += r == comm.rank ? g.own_sums[k] : pkb::wait_tagged(g.words_of(comm, round, r) + k, tag);
    }
    if (rounds == 0 || k == g.K) g.factors[k] = sum;
    else g.factors[k] = (round == 0 ? 1.0f : g.factors[k]) / (float(g.K) * sum);
  }
}

template <class T, int kLanes, Pass kPass>
void launch_pass(const Globals<T>& g, int round, const pkb::Comm& comm) {
  if (g.teams == 0) return;
  const unsigned blocks = unsigned(g.teams * g.members);
  balance<T, kLanes, kPass><<<blocks, kThreads, 0, comm.cuda_stream()>>>(g, round, comm.device());
  PKB_CUDA_LAUNCHED();
}

template <class T, int kLanes>
void launch(Globals<T> g, int rounds, const pkb::Comm& comm) {
  const int most = std::min({pkb::resident_blocks<balance<T, kLanes, Pass::kFirst>, kThreads, 0>(),
                             pkb::resident_blocks<balance<T, kLanes, Pass::kMiddle>, kThreads, 0>(),
                             pkb::resident_blocks<balance<T, kLanes, Pass::kLast>, kThreads, 0>()});
  g.members = int((g.K + kSlab - 1) / kSlab);
  if (g.members > most) TVM_FFI_THROW(ValueError) << "expected at most " << int64_t(most) * kSlab << " prototypes";
  g.teams = int(std::min<int64_t>(most / g.members, g.rows));
  const int64_t W = comm.world_size, words = 4 * W * (g.K + 1);
  if (uint64_t(words + g.rows * g.members) * sizeof(uint64_t) > comm.scratch_bytes) {
    TVM_FFI_THROW(ValueError) << "scratch of " << comm.scratch_bytes << " bytes does not hold the sums of " << g.K
                              << " prototypes";
  }
  g.words = comm.scratch<uint64_t>();
  g.row_words = g.words + words;
  g.factors = pkb::kept_memory<float>((2 + g.teams) * (g.K + 1));
  g.own_sums = g.factors + g.K + 1;
  g.team_sums = g.own_sums + g.K + 1;

  const unsigned combining = pkb::blocks_for(g.K + 1, kThreads);  // resident, and as many on every rank
  for (int round = 0; round <= rounds; ++round) {
    if (round == 0) launch_pass<T, kLanes, Pass::kFirst>(g, round, comm);
    else if (round < rounds) launch_pass<T, kLanes, Pass::kMiddle>(g, round, comm);
    else launch_pass<T, kLanes, Pass::kLast>(g, round, comm);
    if (round == rounds && rounds > 0) break;
    combine<T><<<combining, kThreads, 0, comm.cuda_stream()>>>(g, round, rounds, comm.device());
    PKB_CUDA_LAUNCHED();
  }
  if (rounds == 0) launch_pass<T, kLanes, Pass::kOnly>(g, 0, comm);
}

}  // namespace

void solution(TensorView teacher_output, double teacher_temp, TensorView n_masked_patches_tensor, int64_t n_iterations,
              int64_t group, TensorView assignments, pkb::Comm comm) {
  if (n_iterations > kMaxRounds) {
    TVM_FFI_THROW(ValueError) << "expected at most " << kMaxRounds << " rounds, got " << n_iterations;
  }
  pkb::with_type<float, __nv_bfloat16, __half>(teacher_output.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Globals<T> g{};
    g.scores = static_cast<const T*>(teacher_output.data_ptr());
    g.assignments = static_cast<float*>(assignments.data_ptr());
    g.own_count = static_cast<const int64_t*>(n_masked_patches_tensor.data_ptr());
    g.rows = teacher_output.size(0);
    g.K = teacher_output.size(1);
    g.group = group;
    g.scale = float(1.4426950408889634 / teacher_temp);
    const int rounds = int(std::max<int64_t>(n_iterations, 0));
    if (g.K % pkb::kPerVector<T> == 0) launch<T, pkb::kPerVector<T>>(g, rounds, comm);
    else launch<T, 1>(g, rounds, comm);
  });
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
