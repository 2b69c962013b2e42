"""VocabParallelLogProb in C++, for bfloat16: every rank filters its share of the tokens."""

from __future__ import annotations

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import BEGUN, DONE, cpp_meet
from pkb_gym.kernels.pieces import cpp_bfloat16

TEXT = """
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
    $drop
  }
  $real most = row[0].first, mass = 0;
  for (const Entry& entry : row) most = std::max<$real>(most, entry.first);
  for (const Entry& entry : row) mass += std::exp($real(entry.first) - most);
  if (has_p) {
    $ordering
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
  $check
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

CHOICES: Choices = {
    "work": ("shared", "everything"),
    "select": SELECTS,
    "ordering": ORDERINGS,
    "real": ("double", "float"),
    "memory": {"fresh": "std::vector<Entry> row;", "kept": "static std::vector<Entry> row;"},
    "send": ("block", "elements"),
    "signalling": ("barrier", "signals"),
}


def makes_sense(knobs: Knobs) -> bool:
    """A rank that computes everything sends nothing."""
    return knobs["work"] == "shared" or knobs["send"] == "block"


def pieces(knobs: Knobs) -> Pieces:
    """The places of the text."""
    shared, meet = knobs["work"] == "shared", knobs["signalling"]
    by_element = shared and knobs["send"] == "elements"
    put = "for (int r = 0; r < W; ++r) comm.put(out + comm.rank * share, out + comm.rank * share, 4 * share, r);"
    each = f"const float value = {VALUE};\nfor (int r = 0; r < W; ++r) comm.peer(out, r)[i] = value;"
    return {
        "check": cpp_bfloat16("vocab_parallel_logits"),
        "drop": DROP,
        "begin": cpp_meet(meet, BEGUN["touch" if shared else "read"]),
        "from": "comm.rank * share" if shared else "0",
        "to": "(comm.rank + 1) * share" if shared else "T",
        "store": each if by_element else f"out[i] = {VALUE};",
        "send": put if shared and not by_element else "",
        "end": cpp_meet(meet, DONE["touch"], 1),
    }


IDEA = "every rank filters and sums up the logits of all ranks, which it reads in place; bfloat16 only"

FAMILIES = (Family("VocabParallelLogProb", "cpp", CHOICES, TEXT, pieces, makes_sense, idea=IDEA),)
