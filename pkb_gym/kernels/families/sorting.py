"""SampleSort in C++, for bfloat16: every rank finds its own piece of the sorted whole."""

from __future__ import annotations

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import cpp_meet
from pkb_gym.kernels.pieces import cpp_bfloat16

TEXT = """
using pkb::bf16;
using tvm::ffi::TensorView;

struct Shard {
  int64_t length, offset;  // values, and where they lie in the rank's segment
};

void solution(TensorView local_shard, int64_t group, TensorView sorted_shard, pkb::Comm comm) {
  $check
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
  $algorithm
  bf16* piece = static_cast<bf16*>(sorted_shard.data_ptr());
  for (int64_t i = 0; i < count; ++i) piece[i] = bf16(all[first + i]);
}
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
"""Algorithm -> lines that sort places first .. first + count - 1; for "merge" each rank has sorted its own shard."""

CHOICES: Choices = {
    "algorithm": SORTS,
    "how": ("sort", "stable_sort"),
    "memory": MEMORY,
    "reserve": {"no": "", "yes": RESERVE},
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
}


def makes_sense(knobs: Knobs) -> bool:
    """A heap has one way to sort; an order matters little, so that it comes with the plainest memory."""
    if knobs["algorithm"] == "heap" and knobs["how"] != "sort":
        return False
    return knobs["order"] == "from 0" or (knobs["memory"], knobs["reserve"]) == ("fresh", "no")


def pieces(knobs: Knobs) -> Pieces:
    """The places of the text."""
    return {
        "check": cpp_bfloat16("local_shard"),
        "prepare": SORTED_FIRST if knobs["algorithm"] == "merge" else WHERE_IT_LIES,
        "begin": cpp_meet(knobs["signalling"], "all lengths and places are there"),
        "end": cpp_meet(knobs["signalling"], "by now peers have read this rank's values", 1),
    }


IDEA = "every rank reads all values from its peers, sorts all of them and keeps its own piece; bfloat16 only"

FAMILIES = (Family("SampleSort", "cpp", CHOICES, TEXT, pieces, makes_sense, idea=IDEA),)
