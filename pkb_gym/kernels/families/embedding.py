"""EmbeddingLookup: rows of a table that is cut over the ranks, grouped by owner."""

from __future__ import annotations

from dataclasses import asdict

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    cpp_meet,
    cuda_meetings,
    signal_all,
    signal_to,
    wait_for,
    wait_for_all,
)
from pkb_gym.kernels.pieces import CPP_COPIES, cpp_copy

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
$move

void solution(TensorView indices, TensorView local_shard, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const int64_t L = indices.numel(), Vs = local_shard.size(0);
  const uint64_t row = uint64_t(local_shard.size(1)) * local_shard.dtype().bits / 8;
  const int64_t* ids = static_cast<const int64_t*>(indices.data_ptr());
  const char* table = static_cast<const char*>(local_shard.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $begin
  $grouping
  $end
}
"""

CPP_LOOPS: dict[Knob, str] = {
    "count": """
        std::vector<int64_t> next(W + 1, 0);
        for (int64_t k = 0; k < L; ++k) ++next[ids[k] / Vs + 1];
        for (int r = 0; r < W; ++r) next[r + 1] += next[r];
        for (int64_t k = 0; k < L; ++k) {
          const int r = int(ids[k] / Vs);
          const int64_t to = next[r]++;
          $copy
        }
        """,
    "pass by rank": """
        int64_t to = 0;
        for (int r = 0; r < W; ++r) {
          $wait
          for (int64_t k = 0; k < L; ++k) {
            if (ids[k] / Vs != r) continue;
            $copy
            ++to;
          }
          $signal
        }
        """,
    "sort": """
        std::vector<int64_t> order(L);
        for (int64_t k = 0; k < L; ++k) order[k] = k;
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return ids[a] / Vs < ids[b] / Vs; });
        for (int64_t to = 0; to < L; ++to) {
          const int64_t k = order[to];
          const int r = int(ids[k] / Vs);
          $copy
        }
        """,
    "lists": """
        std::vector<std::vector<int64_t>> of_rank(W);
        for (int64_t k = 0; k < L; ++k) of_rank[ids[k] / Vs].push_back(k);
        int64_t to = 0;
        for (int r = 0; r < W; ++r) {
          $wait
          for (const int64_t k : of_rank[r]) {
            $copy
            ++to;
          }
          $signal
        }
        """,
    "place of each": """
        for (int64_t k = 0; k < L; ++k) {
          const int r = int(ids[k] / Vs);
          int64_t to = 0;
          for (int64_t j = 0; j < L; ++j) to += ids[j] / Vs < r || (ids[j] / Vs == r && j < k);
          $copy
        }
        """,
}

CPP_CHOICES: Choices = {
    "grouping": CPP_LOOPS,
    "copy": tuple(copy for copy in CPP_COPIES if not str(copy).startswith(("threads", "chunks of 65536"))),
    "signalling": ("barrier", "signals", "split signals"),
}

BY_RANK = ("pass by rank", "lists")
"""Groupings that turn to one rank after the other, and can wait for each in its turn."""


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Signals are kept with plain copies."""
    if knobs["signalling"] == "split signals" and knobs["grouping"] not in BY_RANK:
        return False
    return knobs["signalling"] == "barrier" or knobs["copy"] in ("comm", "memcpy", "words of 8")


def cpp_pieces(knobs: Knobs) -> Pieces:
    """The copy of a row, and when ranks wait for each other."""
    copy = cpp_copy("pull", knobs["copy"], "recv + to * row", "table + (ids[k] - r * Vs) * row", "row", "r")
    begun, done, split = BEGUN["read"], DONE["read"], knobs["signalling"] == "split signals"
    return {
        "move": CPP_COPIES[knobs["copy"]],
        "copy": copy,
        "begin": signal_all() if split else cpp_meet(knobs["signalling"], begun),
        "wait": wait_for("r", begun) if split else "",
        "signal": signal_to("r", 1) if split else "",
        "end": wait_for_all(done, 1) if split else cpp_meet(knobs["signalling"], done, 1),
    }


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
constexpr int kThreads = $threads;

using Word = $word;

__device__ void copy_row(char* to, const char* from, uint64_t bytes) {
  const uint64_t misfit = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % sizeof(Word);
  const uint64_t words = misfit ? 0 : bytes / sizeof(Word);
  auto* target = reinterpret_cast<Word*>(to);
  auto* source = reinterpret_cast<const Word*>(from);
  $unroll
  for (uint64_t i = threadIdx.x; i < words; i += kThreads) target[i] = source[i];
  for (uint64_t i = words * sizeof(Word) + threadIdx.x; i < bytes; i += kThreads) to[i] = from[i];
}

$kernels

void solution(TensorView indices, TensorView local_shard, TensorView out, pkb::Comm comm) {
  const int64_t L = indices.numel(), Vs = local_shard.size(0);
  const uint64_t row = uint64_t(local_shard.size(1)) * local_shard.dtype().bits / 8;
  const int64_t* ids = static_cast<const int64_t*>(indices.data_ptr());
  const char* table = static_cast<const char*>(local_shard.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  // A rank without indices meets the others all the same.
  const unsigned blocks = unsigned(std::max<int64_t>(std::min<int64_t>(L, $blocks), 1));
  $before
  $grouping
  $after
}
"""

PLACE_OF_EACH = """
__global__ void __launch_bounds__(kThreads)
look_up(const int64_t* ids, const char* table, char* recv, int64_t L, int64_t Vs, uint64_t row,
        const __grid_constant__ pkb::Device comm) {
  $enter
  for (int64_t k = blockIdx.x; k < L; k += gridDim.x) {
    const int64_t r = ids[k] / Vs;
    int before = 0;
    for (int64_t j = threadIdx.x; j < L; j += kThreads) before += ids[j] / Vs < r || (ids[j] / Vs == r && j < k);
    const int to = pkb::reduce_block<kThreads>(before, [](int a, int b) { return a + b; });
    copy_row(recv + to * row, comm.peer(table, int(r)) + (ids[k] - r * Vs) * row, row);
  }
}
"""

PLACES_FIRST = """
__global__ void __launch_bounds__(1024) find_places(const int64_t* ids, int* places, int64_t L, int64_t Vs, int W) {
  int next = 0;
  for (int r = 0; r < W; ++r) {
    for (int64_t first = 0; first < L; first += 1024) {
      const int64_t k = first + threadIdx.x;
      const bool mine = k < L && ids[k] / Vs == r;
      const pkb::Count count = pkb::count_in_block<1024>(mine);
      if (mine) places[k] = next + count.before;
      next += count.all;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
look_up(const int64_t* ids, const int* places, const char* table, char* recv, int64_t L, int64_t Vs, uint64_t row,
        const __grid_constant__ pkb::Device comm) {
  $enter
  for (int64_t k = blockIdx.x; k < L; k += gridDim.x) {
    const int64_t r = ids[k] / Vs;
    copy_row(recv + places[k] * row, comm.peer(table, int(r)) + (ids[k] - r * Vs) * row, row);
  }
}
"""

CUDA_LAUNCHES: dict[Knob, str] = {
    "places first": """
        int* places = comm.scratch<int>();
        find_places<<<1, 1024, 0, comm.cuda_stream()>>>(ids, places, L, Vs, comm.world_size);
        PKB_CUDA_LAUNCHED();
        look_up<<<blocks, kThreads, 0, comm.cuda_stream()>>>(ids, places, table, recv, L, Vs, row, comm.device());
        PKB_CUDA_LAUNCHED();
        """,
    "place of each": """
        look_up<<<blocks, kThreads, 0, comm.cuda_stream()>>>(ids, table, recv, L, Vs, row, comm.device());
        PKB_CUDA_LAUNCHED();
        """,
}

WORDS: dict[Knob, str] = {16: "uint4", 8: "uint2", 4: "uint32_t", 2: "uint16_t", 1: "char"}

CUDA_CHOICES: Choices = {
    "grouping": CUDA_LAUNCHES,
    "word": WORDS,
    "threads": (128, 32, 64, 256, 512, 1024),
    "blocks": (1024, 1, 16, 132, 65536),
    "unroll": ("", "#pragma unroll 4"),
    "signalling": ("host barrier", "begun words"),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Each choice varies around plain ones."""
    plain = knobs["word"] == 16 and not knobs["unroll"]
    if knobs["signalling"] != "host barrier":
        return plain and knobs["threads"] in (128, 256)
    if knobs["unroll"] and knobs["word"] not in (16, 4):
        return False
    return knobs["threads"] in (128, 512) or plain


def cuda_pieces(knobs: Knobs) -> Pieces:
    """The kernels, and when ranks wait for each other."""
    each = knobs["grouping"] == "place of each"
    return {"kernels": PLACE_OF_EACH if each else PLACES_FIRST, **asdict(cuda_meetings(knobs["signalling"], "read"))}


FAMILIES = (
    Family("EmbeddingLookup", "cpp", CPP_CHOICES, CPP, cpp_pieces, cpp_makes_sense),
    Family("EmbeddingLookup", "cuda", CUDA_CHOICES, CUDA, cuda_pieces, cuda_makes_sense),
)
