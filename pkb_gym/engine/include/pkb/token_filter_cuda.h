// The filter of top-k and top-p sampling: which logits of a row stay, and what they weigh together, without sorting.
//
// First all but the k largest are left out, with those that equal the k-th kept; then the least of the others, as long as
// their mass is at most the tail. Borders are found by bisecting the keys of floating-point numbers (pkb/select_cuda.h):
// a team visits its logits, wherever they lie, once for each bit that differs. Bound: shared memory, or what the logits
// lie in; some twenty visits a row.
//
//   const pkb::FilterCut cut = pkb::cut_of<T>(team, logits, filter);
//   const float result = pkb::log_prob<T>(cut, own_logit);
//
// Filters: A. Fan et al., Hierarchical Neural Story Generation, arXiv:1805.04833 (top-k); A. Holtzman et al., The Curious
// Case of Neural Text Degeneration, arXiv:1904.09751 (top-p).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "pkb/select_cuda.h"
#include "pkb/teams_cuda.h"
#include "pkb/vectors_cuda.h"

namespace pkb {

struct TokenFilter {
  int k;       // 0: off
  float tail;  // mass that top-p may leave out
  bool has_p;
};

// What stays of a row: logits whose key is above the border, and so many of those at it.
struct FilterCut {
  uint32_t border;
  float most, mass;        // the largest logit, and the exponentials of what stays relative to it
  float equals, stay;      // logits at the border, where top-p may part them; else infinity

  __device__ float log_normaliser() const { return most + logf(mass); }
};

// Top-p leaves out the least logits, as long as their mass is at most the tail; of equal ones at this border some may go.
template <typename T, typename Team, typename Logits>
__device__ FilterCut cut_of(const Team& team, const Logits& logits, const TokenFilter& filter) {
  const KeyRange range = range_of<T>(team, logits);
  const float most = value_of<T>(range.high);
  // Mass of the logits with from <= key < to.
  const auto mass_of = [&](uint32_t from, uint32_t to) {
    float mass = 0;
    logits.visit(team, [&](float x, float weight) {
      const uint32_t key = key_of<T>(x);
      if (key >= from && key < to) mass += weight * __expf(x - most);
    });
    return team.sum(mass);
  };

  const uint32_t least = filter.k > 0 ? kth_largest<T>(team, logits, range, filter.k) : 0;
  FilterCut cut{least, most, mass_of(least, ~0u), kInfinity, kInfinity};
  if (!filter.has_p) return cut;
  const float allowed = filter.tail * cut.mass;
  cut.border = largest_key(max(least, range.low), range.high,
                           [&](uint32_t key) { return mass_of(least, key) <= allowed; });
  int equals = 0;
  logits.visit(team, [&](float x, float weight) { equals += key_of<T>(x) == cut.border ? int(weight) : 0; });
  cut.equals = float(team.sum(equals));
  const float each = __expf(value_of<T>(cut.border) - most);
  const float out = floorf((allowed - mass_of(least, cut.border)) / each);
  cut.stay = cut.equals - fmaxf(0.0f, fminf(out, cut.equals - 1.0f));  // the largest logit always stays
  cut.mass = mass_of(cut.border + 1, ~0u) + cut.stay * each;
  return cut;
}

// The log-probability of a token that has logit `own`; at a border that top-p parts it is taken for one that stays.
template <typename T>
__device__ float log_prob(const FilterCut& cut, float own) {
  return key_of<T>(own) < cut.border ? -kInfinity : own - cut.most - logf(cut.mass);
}

}  // namespace pkb
