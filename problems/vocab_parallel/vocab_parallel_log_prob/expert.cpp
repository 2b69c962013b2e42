// VocabParallelLogProb: each rank owns T / W tokens, reads their logits from all ranks where they lie, filters, and
// writes the log-probability to every rank's output. The ranks of the group meet before, and when all is read and
// written.
//
// What moves: a rank reads T / W rows of V logits, all but one in W of them over the link, once or twice, and sends 4
// bytes per token. No row is sorted: top-k keeps the candidates seen so far above a rising threshold, and top-p halves
// the part of the candidates in which its border lies. The bound is reading the logits once.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// exp(x) for x <= 0 within a few units in the last place; plain arithmetic, so that loops over it vectorise.
inline float exp_of_negative(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kSmallest = -87.0f;  // what is less is no part of any sum
  const float clamped = x > kSmallest ? x : kSmallest;
  // Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
  constexpr float kRounder = 12582912.0f;
  const float rounded = clamped * kLog2E + kRounder;
  const float whole = rounded - kRounder;
  const float rest = (clamped - whole * kLn2High) - whole * kLn2Low;
  float sum = 1.9875691500e-4f;  // minimax polynomial of the Cephes library
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  const int32_t exponent = (int32_t(whole) + 127) << 23;
  float power;
  std::memcpy(&power, &exponent, sizeof power);
  return x > kSmallest ? sum * power : 0.0f;
}

// The filters of a call; k >= V and p >= 1 filter nothing and count as off.
struct Filters {
  int64_t k = 0;      // 0: off
  double tail = 0.0;  // mass that top-p may leave out, rounded to the dtype of the logits
  bool has_p = false;
};

// One token's logits: `size` consecutive ones in each of the W ranks' memories.
template <typename T>
struct Row {
  const T* pieces[pkb::kMaxRanks];
  int W;
  int64_t size;

  float operator[](int64_t id) const { return float(pieces[id / size][id % size]); }
};

constexpr int64_t kChunk = 256;  // logits looked at together

// Calls visit(chunk, m) with float copies of all logits of a row, in order, kChunk or fewer at a time.
template <typename T, typename Visit>
void for_chunks(const Row<T>& row, Visit visit) {
  float chunk[kChunk];
  for (int w = 0; w < row.W; ++w) {
    for (int64_t i = 0; i < row.size; i += kChunk) {
      const int64_t m = std::min(kChunk, row.size - i);
      const T* logits = row.pieces[w] + i;
      for (int64_t j = 0; j < m; ++j) chunk[j] = float(logits[j]);
      visit(static_cast<const float*>(chunk), m);
    }
  }
}

float largest(const float* logits, int64_t n) {
  float most = -kInfinity;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) most = logits[i] > most ? logits[i] : most;
  return most;
}

// Sum of exp(logit - most). Pieces are summed in float32, and these sums in float64.
double mass_of(const float* logits, int64_t n, float most) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t end = std::min(n, i + kChunk);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = i; j < end; ++j) sum += exp_of_negative(logits[j] - most);
    total += sum;
  }
  return total;
}

// All logits that are not less than the k-th largest, in any order. Memory is the caller's, to be used again.
template <typename T>
void keep_top_k(const Row<T>& row, int64_t k, std::vector<float>& kept) {
  kept.clear();
  float threshold = -kInfinity;  // no more than the k-th largest
  size_t crowded = size_t(2 * k + kChunk);
  auto raise_threshold = [&] {
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), std::greater<float>());
    threshold = kept[k - 1];
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](float x) { return x < threshold; }), kept.end());
  };
  for_chunks(row, [&](const float* chunk, int64_t m) {
    if (largest(chunk, m) < threshold) return;
    for (int64_t j = 0; j < m; ++j) {
      if (chunk[j] >= threshold) kept.push_back(chunk[j]);
    }
    if (kept.size() > crowded) {
      raise_threshold();
      crowded = std::max(crowded, 2 * kept.size());  // many equals
    }
  });
  if (int64_t(kept.size()) > k) raise_threshold();
}

// What top-p leaves out: all logits below `border`, of those equal to it the first `equals` in order of id.
struct Cut {
  float border = -kInfinity;
  int64_t equals = 0;
  double mass = 0;  // of all that is left out
};

// Finds the longest ascending run of the logits whose mass is at most `allowed`; the largest logit never belongs to
// it. Reorders the logits.
Cut find_cut(std::vector<float>& logits, float most, double allowed) {
  Cut cut;
  // What lies before `low` is left out, what lies from `high` on stays, and is neither less than what is between.
  auto low = logits.begin(), high = logits.end() - 1;
  std::nth_element(low, high, logits.end());
  while (low < high) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high);
    const double up_to_middle = mass_of(&*low, middle + 1 - low, most);
    if (cut.mass + up_to_middle <= allowed) {
      cut.mass += up_to_middle;
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  cut.border = *high;
  cut.equals = std::count(logits.begin(), high, cut.border);
  return cut;
}

// Whether a target that equals the border is among the first of its equals, which are left out.
template <typename T>
bool is_among_first(const Row<T>& row, int64_t target, const Cut& cut) {
  if (cut.equals == 0) return false;
  const float own = row[target];
  int64_t before = 0;
  for (int64_t id = 0; id < target; ++id) before += row[id] == own;
  return before < cut.equals;
}

template <typename T>
float log_prob(const Row<T>& row, int64_t target, const Filters& filters) {
  static std::vector<float> kept;
  const float own = row[target];
  if (filters.k > 0) {
    keep_top_k(row, filters.k, kept);
    if (own < *std::min_element(kept.begin(), kept.end())) return -kInfinity;
  } else {
    kept.clear();
    for_chunks(row, [](const float* chunk, int64_t m) { kept.insert(kept.end(), chunk, chunk + m); });
  }
  const float most = largest(kept.data(), kept.size());
  double mass = mass_of(kept.data(), kept.size(), most);
  if (filters.has_p) {
    const Cut cut = find_cut(kept, most, filters.tail * mass);
    if (own < cut.border || (own == cut.border && is_among_first(row, target, cut))) return -kInfinity;
    mass -= cut.mass;
  }
  return float(own - most - std::log(mass));
}

struct Globals {
  TensorView logits;
  const int64_t* target;
  float* logprobs;
  Filters filters;
};

template <typename T>
void write_log_probs(Globals g, int64_t group_index, const pkb::Comm& comm) {
  const pkb::Group group = comm.group(group_index);
  const int64_t T_all = g.logits.shape()[0] * g.logits.shape()[1], Vl = g.logits.shape()[2], V = group.size * Vl;
  const int64_t tokens = T_all / group.size, first = group.rank * tokens;
  if (g.filters.k >= V) g.filters.k = 0;
  g.filters.tail = T(float(g.filters.tail));

  Row<T> row{{}, group.size, Vl};
  std::vector<float> results(tokens);
  comm.barrier(group_index);
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t token = first + i, id = g.target[token];
    if (id < 0 || id >= V) {
      TVM_FFI_THROW(IndexError) << "target " << id << " of token " << token << " is not in 0 .. " << V - 1;
    }
    for (int w = 0; w < group.size; ++w) row.pieces[w] = comm.peer<T>(g.logits, group.ranks[w]) + token * Vl;
    results[i] = log_prob(row, id, g.filters);
  }
  for (int w = 0; w < group.size; ++w) {
    comm.put(g.logprobs + first, results.data(), tokens * sizeof(float), group.ranks[w]);
  }
  comm.barrier(group_index);
}

}  // namespace

void solution(TensorView vocab_parallel_logits, TensorView target, int64_t tp_group, Optional<int64_t> top_k,
              Optional<double> top_p, TensorView logprobs, pkb::Comm comm) {
  const int ranks = comm.group(tp_group).size;
  if (target.numel() % ranks) {
    TVM_FFI_THROW(ValueError) << target.numel() << " tokens cannot be shared evenly by " << ranks << " ranks";
  }
  Filters filters;
  filters.k = std::max<int64_t>(0, top_k.value_or(0));
  filters.has_p = top_p.value_or(1.0) < 1.0;
  filters.tail = 1.0 - top_p.value_or(1.0);
  const Globals g{vocab_parallel_logits, static_cast<const int64_t*>(target.data_ptr()),
                  static_cast<float*>(logprobs.data_ptr()), filters};
  const DLDataType dtype = vocab_parallel_logits.dtype();
  if (dtype.code == kDLBfloat) return write_log_probs<pkb::bf16>(g, tp_group, comm);
  if (dtype.code == kDLFloat && dtype.bits == 16) return write_log_probs<_Float16>(g, tp_group, comm);
  if (dtype.code == kDLFloat && dtype.bits == 32) return write_log_probs<float>(g, tp_group, comm);
  TVM_FFI_THROW(TypeError) << "logits must be bfloat16, float16 or float32, got code " << int(dtype.code) << " of "
                           << int(dtype.bits) << " bits";
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution);
