"""VocabParallelLogProb in C++, for bfloat16: every rank filters its share of the tokens."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
from pkb_gym.corpus.families.meetings import cpp_meet
from pkb_gym.corpus.families.pieces import EXPORT

TEXT = """
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

using pkb::bf16;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

using Entry = std::pair<float, int64_t>;  // a logit and its id: equal logits are left out in order of id

// The log-probability of one token's target among V logits, which are reordered.
static float log_prob(std::vector<Entry>& row, int64_t target, int64_t k, bool has_p, $real tail) {
  const int64_t V = row.size();
  const Entry own = row[target];
  if (k > 0 && k < V) {
    $select
  }
  $real most = row[0].first, mass = 0;
  for (const Entry& entry : row) most = std::max<$real>(most, entry.first);
  for (const Entry& entry : row) mass += std::exp($real(entry.first) - most);
  if (has_p) {
    $order
    $real out = 0;
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      const $real next = out + std::exp($real(row[i].first) - most);
      if (next > tail * mass) break;
      if (row[i] == own) return -std::numeric_limits<float>::infinity();
      out = next;
    }
    mass -= out;
  }
  return float(own.first - most - std::log(mass));
}

void solution(TensorView vocab_parallel_logits, TensorView target, int64_t tp_group, Optional<int64_t> top_k,
              Optional<double> top_p, TensorView logprobs, pkb::Comm comm) {
  const int W = comm.world_size;
  const int64_t T = target.numel(), Vl = vocab_parallel_logits.size(2), share = T / W;
  const int64_t k = top_k.value_or(0);
  const bool has_p = top_p.value_or(1.0) < 1.0;
  const $real tail = float(bf16(float(1.0 - top_p.value_or(1.0))));
  const int64_t* ids = static_cast<const int64_t*>(target.data_ptr());
  float* out = static_cast<float*>(logprobs.data_ptr());
  $begin
  $memory
  for (int64_t i = $from; i < $to; ++i) {
    row.clear();
    for (int r = 0; r < W; ++r) {
      const bf16* logits = comm.peer<bf16>(vocab_parallel_logits, r) + i * Vl;
      for (int64_t j = 0; j < Vl; ++j) row.emplace_back(float(logits[j]), r * Vl + j);
    }
    $store
  }
  $send
  $end
}

$export
"""

DROP = """
row.erase(std::remove_if(row.begin(), row.end(), [&](const Entry& e) { return e.first < threshold; }), row.end());
if (own.first < threshold) return -std::numeric_limits<float>::infinity();
"""

SELECTS: dict[Knob, str] = {
    "sort": "std::sort(row.begin(), row.end());\nconst float threshold = row[V - k].first;",
    "nth element": (
        "std::nth_element(row.begin(), row.begin() + (V - k), row.end());\nconst float threshold = row[V - k].first;"
    ),
    "heap": (
        "std::partial_sort(row.begin(), row.begin() + k, row.end(), std::greater<Entry>());\n"
        "const float threshold = row[k - 1].first;"
    ),
}

ORDERINGS: dict[Knob, str] = {
    "sort": "std::sort(row.begin(), row.end());",
    "heap": "std::make_heap(row.begin(), row.end());\nstd::sort_heap(row.begin(), row.end());",
}

VALUE = "log_prob(row, ids[i], k, has_p, tail)"

CHOICES = {
    "work": ("shared", "everything"),
    "select": tuple(SELECTS),
    "ordering": tuple(ORDERINGS),
    "real": ("double", "float"),
    "memory": ("fresh", "kept"),
    "send": ("block", "elements"),
    "signalling": ("barrier", "signals"),
}


def makes_sense(knobs: Knobs) -> bool:
    """Who computes everything sends nothing."""
    return knobs["work"] == "shared" or knobs["send"] == "block"


def source(knobs: Knobs) -> str:
    """The text of one kernel."""
    shared, real, meet = knobs["work"] == "shared", str(knobs["real"]), knobs["signalling"]
    access = "touched" if shared else "read"
    by_element = shared and knobs["send"] == "elements"
    put = "for (int r = 0; r < W; ++r) comm.put(out + comm.rank * share, out + comm.rank * share, 4 * share, r);"
    each = f"const float value = {VALUE};\nfor (int r = 0; r < W; ++r) comm.peer(out, r)[i] = value;"
    memory = "static std::vector<Entry> row;" if knobs["memory"] == "kept" else "std::vector<Entry> row;"
    return (
        fill(
            TEXT,
            real=real,
            select=f"{SELECTS[knobs['select']]}\n{DROP.strip()}",
            order=ORDERINGS[knobs["ordering"]],
            begin=cpp_meet(meet, f"peers' memory may be {access}: their calls have begun"),
            memory=memory,
            **{"from": "comm.rank * share" if shared else "0", "to": "(comm.rank + 1) * share" if shared else "T"},
            store=each if by_element else f"out[i] = {VALUE};",
            send=put.replace("r);", "r);") if shared and not by_element else "",
            end=cpp_meet(meet, "by now peers are done with this rank's memory", 1),
            export=EXPORT,
        )
        + "\n"
    )


FAMILIES = (Family("VocabParallelLogProb", "cpp", CHOICES, source, makes_sense),)
