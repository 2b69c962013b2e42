"""QuantizedGradAllReduce: the mean over ranks of gradients that are rounded to 8-bit codes, block by block."""

from __future__ import annotations

from dataclasses import asdict

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    HALF,
    HALVES,
    IN_KERNEL,
    STAGED,
    Access,
    cpp_meet,
    cuda_meetings,
)
from pkb_gym.kernels.pieces import cpp_dispatch

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
template <class T>
float scale_of(const T* x, int64_t count) {
  float most = 1e-8f;
  for (int64_t k = 0; k < count; ++k) most = std::max(most, std::abs(float(x[k])));
  return most / 127;
}

template <class T, class Sum>
void average(const TensorView& grad, int64_t size, const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t n = grad.numel(), blocks = (n + size - 1) / size;
  const T* x = static_cast<const T*>(grad.data_ptr());
  T* y = static_cast<T*>(out.data_ptr());
  std::vector<float> sums(size);
  $share
  $begin
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * size, count = std::min(size, n - begin);
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      $term
    }
    $store
  }
  $end
}

void solution(TensorView flat_grad, int64_t block_size, TensorView out, pkb::Comm comm) {
  $dispatch
}
"""

CPP_SHARES: dict[Knob, str] = {
    "two shot": "const int64_t first = blocks * comm.rank / W, last = blocks * (comm.rank + 1) / W;",
    "one shot": "const int64_t first = 0, last = blocks;",
}

CPP_DIRECT = """
const T* term = comm.peer(x, r) + begin;
const float scale = scale_of(term, count);
for (int64_t k = 0; k < count; ++k) sums[k] += std::nearbyint(float(term[k]) / scale) * scale;
"""

CPP_STAGE = """
$scratch
for (int64_t block = 0; block < blocks; ++block) {
  const int64_t begin = block * size, count = std::min(size, n - begin);
  scales[block] = scale_of(x + begin, count);
  for (int64_t k = begin; k < begin + count; ++k) codes[k] = int8_t(std::nearbyint(float(x[k]) / scales[block]));
}
$meet
"""

CPP_STAGED = """
const int8_t* term = comm.peer(codes, r) + begin;
const float scale = comm.peer(scales, r)[block];
for (int64_t k = 0; k < count; ++k) sums[k] += term[k] * scale;
"""

CPP_STORES: dict[tuple[Knob, Knob], str] = {
    ("one shot", "elements"): "for (int64_t k = 0; k < count; ++k) y[begin + k] = T(sums[k] / W);",
    ("two shot", "elements"): """
        for (int r = 0; r < W; ++r) {
          for (int64_t k = 0; k < count; ++k) comm.peer(y, r)[begin + k] = T(sums[k] / W);
        }
        """,
    ("two shot", "comm.put"): """
        std::vector<T> means(count);
        for (int64_t k = 0; k < count; ++k) means[k] = T(sums[k] / W);
        for (int r = 0; r < W; ++r) comm.put(y + begin, means.data(), count * sizeof(T), r);
        """,
    ("two shot", "own part first"): """
        for (int64_t k = 0; k < count; ++k) y[begin + k] = T(sums[k] / W);
        for (int r = 0; r < W; ++r) {
          if (r != comm.rank) comm.put(y + begin, y + begin, count * sizeof(T), r);
        }
        """,
}

CPP_SCRATCH = """
float* scales = comm.scratch<float>();  // nobody ends a call before all have read it
int8_t* codes = comm.scratch<int8_t>(blocks * sizeof(float));
"""

CPP_HALVES = f"""
// {HALVES}
const int64_t half = {HALF};
float* scales = comm.scratch<float>(half);
int8_t* codes = comm.scratch<int8_t>(half + blocks * sizeof(float));
"""

CPP_CHOICES: Choices = {
    "share": CPP_SHARES,
    "exchange": ("gradients", "codes"),
    "store": ("own part first", "comm.put", "elements"),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Sums that are added up whole are not sent."""
    return (knobs["share"], knobs["store"]) in CPP_STORES


def cpp_pieces(knobs: Knobs) -> Pieces:
    """Gradients that peers round where they lie, or codes that ranks stage."""
    meet, one_shot = knobs["signalling"], knobs["share"] == "one shot"
    access: Access = "read" if one_shot else "touch"
    pieces = {
        "store": CPP_STORES[knobs["share"], knobs["store"]],
        "dispatch": cpp_dispatch("average", "flat_grad", "flat_grad, block_size, out, comm", has_double=False),
    }
    if knobs["exchange"] == "codes":
        return pieces | {
            "term": CPP_STAGED,
            "begin": CPP_STAGE,
            "scratch": CPP_HALVES if one_shot else CPP_SCRATCH,
            "meet": cpp_meet(meet, STAGED),
            "end": "" if one_shot else cpp_meet(meet, DONE["write"], 1),
        }
    return pieces | {
        "term": CPP_DIRECT,
        "begin": cpp_meet(meet, BEGUN[access]),
        "end": cpp_meet(meet, DONE[access], 1),
    }


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
constexpr int kThreads = $threads;

template <class T>
__device__ float scale_of(const T* x, int64_t count) {
  float most = 1e-8f;
  for (int64_t k = threadIdx.x; k < count; k += kThreads) most = fmaxf(most, fabsf(float(x[k])));
  return pkb::reduce_block<kThreads>(most, [](float a, float b) { return fmaxf(a, b); }) / 127;
}

$function

template <class T>
__global__ void __launch_bounds__(kThreads)
average(const T* x, T* y, int64_t n, int64_t size, const __grid_constant__ pkb::Device comm) {
  extern __shared__ float sums[];
  const int W = comm.world_size;
  const int64_t blocks = (n + size - 1) / size;
  $share
  $enter
  for (int64_t block = first + blockIdx.x; block < last; block += gridDim.x) {
    const int64_t begin = block * size, count = size < n - begin ? size : n - begin;
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      const T* term = comm.peer(x, r) + begin;
      const float scale = scale_of(term, count);
      for (int64_t k = threadIdx.x; k < count; k += kThreads) {
        sums[k] = (i ? sums[k] : 0) + rintf(float(term[k]) / scale) * scale;
      }
    }
    $store
  }
  $leave
}

void solution(TensorView flat_grad, int64_t block_size, TensorView out, pkb::Comm comm) {
  const int64_t n = flat_grad.numel();
  const unsigned blocks = unsigned(std::min<int64_t>((n + block_size - 1) / block_size, $blocks));
  pkb::with_type<__nv_bfloat16, __half, float>(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(flat_grad.data_ptr());
    T* y = static_cast<T*>(out.data_ptr());
    $before
    const unsigned shared = unsigned(block_size * sizeof(float));
    average<T><<<blocks, kThreads, shared, comm.cuda_stream()>>>(x, y, n, block_size, comm.device());
    PKB_CUDA_LAUNCHED();
  });
  $after
}
"""

CUDA_STORES: dict[tuple[Knob, Knob], str] = {
    ("one shot", "elements"): """
        for (int64_t k = threadIdx.x; k < count; k += kThreads) y[begin + k] = T(sums[k] / W);
        """,
    ("two shot", "elements"): """
        for (int64_t k = threadIdx.x; k < count; k += kThreads) {
          for (int r = 0; r < W; ++r) comm.peer(y, r)[begin + k] = T(sums[k] / W);
        }
        """,
    ("two shot", "rank by rank"): """
        for (int i = 0; i < W; ++i) {
          T* theirs = comm.peer(y, (comm.rank + i) % W) + begin;
          for (int64_t k = threadIdx.x; k < count; k += kThreads) theirs[k] = T(sums[k] / W);
        }
        """,
}

CUDA_CHOICES: Choices = {
    "share": CPP_SHARES,
    "store": ("elements", "rank by rank"),
    "threads": (128, 32, 64, 256),
    "blocks": (1024, 1, 16, 64, 132, 8192),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("host barrier", "begun words", "block barrier", "signals"),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Blocks that wait for each other are few."""
    if (knobs["share"], knobs["store"]) not in CUDA_STORES:
        return False
    if knobs["signalling"] == "host barrier":
        return knobs["order"] == "from 0" or knobs["threads"] == 128
    few = int(knobs["blocks"]) <= 64 or knobs["signalling"] not in IN_KERNEL
    return few and knobs["order"] == "from 0" and knobs["threads"] == 128


def cuda_pieces(knobs: Knobs) -> Pieces:
    """When ranks wait for each other, and where sums go."""
    meetings = cuda_meetings(knobs["signalling"], "read" if knobs["share"] == "one shot" else "touch")
    return {"store": CUDA_STORES[knobs["share"], knobs["store"]], **asdict(meetings)}


FAMILIES = (
    Family("QuantizedGradAllReduce", "cpp", CPP_CHOICES, CPP, cpp_pieces, cpp_makes_sense),
    Family("QuantizedGradAllReduce", "cuda", CUDA_CHOICES, CUDA, cuda_pieces, cuda_makes_sense),
)
