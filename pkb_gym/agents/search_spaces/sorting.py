"""SampleSort in C++, for bfloat16: every rank comes to its own piece of the sorted whole."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
from pkb_gym.corpus.families.meetings import cpp_meet
from pkb_gym.corpus.families.pieces import EXPORT, ORDERS, lines

TEXT = """
#include <algorithm>
#include <vector>

#include "pkb/bf16.h"
#include "pkb/symm.h"

using pkb::bf16;
using tvm::ffi::TensorView;

struct Shard {
  int64_t length, offset;  // values, and where they lie in the rank's segment
};

void solution(TensorView local_shard, int64_t group, TensorView sorted_shard, pkb::Comm comm) {
  const int W = comm.world_size;
  const int64_t n = local_shard.numel();
  const bf16* own = static_cast<const bf16*>(local_shard.data_ptr());
  $prepare
  $begin
  $memory
  std::vector<int64_t> ends{0};
  int64_t N = 0;
  $reserve
  for (int i = 0; i < W; ++i) {
    const Shard* theirs = comm.peer(shard, $order);
    const bf16* values = reinterpret_cast<const bf16*>(comm.segments[$order] + theirs->offset);
    all.insert(all.end(), values, values + theirs->length);
    ends.push_back(N += theirs->length);
  }
  $end
  const int64_t count = sorted_shard.numel();
  const int64_t first = comm.rank * (N / W) + std::min<int64_t>(comm.rank, N % W);
  $sort
  bf16* piece = static_cast<bf16*>(sorted_shard.data_ptr());
  for (int64_t i = 0; i < count; ++i) piece[i] = bf16(all[first + i]);
}

$export
"""

WHERE_IT_LIES = """
Shard* shard = comm.scratch<Shard>();
*shard = {n, reinterpret_cast<const char*>(own) - comm.segments[comm.rank]};
"""

SORTED_FIRST = """
Shard* shard = comm.scratch<Shard>();
float* staged_floats = comm.scratch<float>(4096);
std::copy(own, own + n, staged_floats);
std::$how(staged_floats, staged_floats + n);
bf16* staged = reinterpret_cast<bf16*>(staged_floats + n);
for (int64_t i = 0; i < n; ++i) staged[i] = bf16(staged_floats[i]);
*shard = {n, reinterpret_cast<const char*>(staged) - comm.segments[comm.rank]};
"""

MEMORY: dict[Knob, str] = {
    "fresh": "std::vector<float> all;",
    "kept": "static std::vector<float> all;  // its memory serves the next call\nall.clear();",
}

RESERVE = "for (int r = 0; r < W; ++r) N += comm.peer(shard, r)->length;\nall.reserve(N);\nN = 0;"

SORTS: dict[Knob, str] = {
    "all": "std::$how(all.begin(), all.end());",
    "window": """
        const auto low = all.begin() + first, high = low + count;
        if (low != all.end()) std::nth_element(all.begin(), low, all.end());
        if (high != all.end()) std::nth_element(low, high, all.end());
        std::$how(low, high);
        """,
    "heap": """
        std::partial_sort(all.begin(), all.begin() + first + count, all.end());
        """,
    "merge": """
        for (int i = 1; i < W; ++i) {
          std::inplace_merge(all.begin(), all.begin() + ends[i], all.begin() + ends[i + 1]);
        }
        """,
}
"""How a rank comes to places first .. first + count - 1; "merge" has each shard sorted by its own rank."""

CHOICES = {
    "algorithm": tuple(SORTS),
    "how": ("sort", "stable_sort"),
    "memory": tuple(MEMORY),
    "reserve": ("no", "yes"),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
}


def makes_sense(knobs: Knobs) -> bool:
    """A heap has one way to sort; an order matters little, so that it comes with the plainest memory."""
    if knobs["algorithm"] == "heap" and knobs["how"] != "sort":
        return False
    return knobs["order"] == "from 0" or (knobs["memory"], knobs["reserve"]) == ("fresh", "no")


def source(knobs: Knobs) -> str:
    """The text of one kernel."""
    how, meet, merges = knobs["how"], knobs["signalling"], knobs["algorithm"] == "merge"
    return (
        fill(
            TEXT,
            prepare=fill(SORTED_FIRST, how=how) if merges else WHERE_IT_LIES,
            begin=cpp_meet(meet, "all lengths and places are there"),
            memory=MEMORY[knobs["memory"]],
            reserve=RESERVE if knobs["reserve"] == "yes" else "",
            order=ORDERS[knobs["order"]],
            end=lines([cpp_meet(meet, "by now peers have read this rank's values", 1)]),
            sort=fill(str(SORTS[knobs["algorithm"]]), how=how),
            export=EXPORT,
        )
        + "\n"
    )


FAMILIES = (Family("SampleSort", "cpp", CHOICES, source, makes_sense),)
