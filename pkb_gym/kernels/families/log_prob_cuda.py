"""VocabParallelLogProb in CUDA: a block for each token selects by digits of the logits what the filters leave out."""

from __future__ import annotations

from dataclasses import asdict

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import Access, cuda_meetings

TEXT = """
using tvm::ffi::Optional;
using tvm::ffi::TensorView;
using Real = $real;

constexpr int kThreads = $threads, kBits = $bits, kDigits = 1 << kBits;

// Keys are in the order of the logits.
__device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ float logit_of(uint32_t key) { return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }

$sums

__device__ float block_max(float value) {
  __shared__ uint32_t most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  atomicMax(&most, key_of(value));
  __syncthreads();
  const float result = logit_of(most);
  __syncthreads();
  return result;
}

__device__ bool have_prefix(uint32_t key, uint32_t other, int shift) { return (uint64_t(key) ^ other) >> shift == 0; }

struct Cut {
  uint32_t key;  // the greatest for which the weights of smaller keys are at most a limit
  Real below;    // those weights
};

// Digit by digit, from the highest; keys(j) and weight(j) are those of entry j, and the greatest key is never passed.
template <class Keys, class Weight>
__device__ Cut select(
    int64_t V, uint32_t least, uint32_t greatest, Real limit, const Keys& keys, const Weight& weight) {
  __shared__ Real sums[kDigits];
  Cut cut{0, 0};
  for (int shift = 32 - kBits; shift >= 0; shift -= kBits) {
    for (int d = threadIdx.x; d < kDigits; d += kThreads) sums[d] = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < V; j += kThreads) {
      const uint32_t key = keys(j);
      if (key < least || !have_prefix(key, cut.key, shift + kBits)) continue;
      atomicAdd(&sums[key >> shift & (kDigits - 1)], weight(j));
    }
    __syncthreads();
    const bool last = have_prefix(greatest, cut.key, shift + kBits);
    const uint32_t end = last ? greatest >> shift & (kDigits - 1) : kDigits - 1;
    uint32_t digit = 0;
    for (; digit < end && cut.below + sums[digit] <= limit; ++digit) cut.below += sums[digit];
    cut.key |= digit << shift;
    __syncthreads();
  }
  return cut;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
log_probs(const T* logits, const int64_t* target, float* out, int64_t Vl, int64_t first, int64_t k, bool has_p,
          float tail, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  $enter
  const int64_t V = W * Vl, token = first + blockIdx.x, id = target[token];
  const auto at = [&](int64_t j) { return float(comm.peer(logits, int(j / Vl))[token * Vl + j % Vl]); };
  const auto keys = [&](int64_t j) { return key_of(at(j)); };
  const float own = at(id);
  float largest = -INFINITY;
  for (int64_t j = threadIdx.x; j < V; j += kThreads) largest = fmaxf(largest, at(j));
  const float most = block_max(largest);
  const auto weight = [&](int64_t j) { return Real($exp(at(j) - most)); };
  uint32_t least = 0;  // keys below it are left out
  if (k > 0 && k < V) least = select(V, 0, key_of(most), Real(V - k), keys, [](int64_t) { return Real(1); }).key;
  Real mass = 0;
  for (int64_t j = threadIdx.x; j < V; j += kThreads) mass += keys(j) >= least ? weight(j) : Real(0);
  mass = block_sum(mass);
  bool stays = key_of(own) >= least;
  if (has_p && stays) {
    const Real limit = Real(tail) * mass;
    const Cut cut = select(V, least, key_of(most), limit, keys, weight);
    // Equal logits are left out in the order of their ids, and the last of all stays.
    Real before = 0, equals = 0;
    for (int64_t j = threadIdx.x; j < V; j += kThreads) {
      if (keys(j) != cut.key) continue;
      equals += 1;
      before += j < id;
    }
    before = block_sum(before);
    equals = block_sum(equals);
    const Real each = Real($exp(logit_of(cut.key) - most));
    Real dropped = floor((limit - cut.below) / each);
    dropped = fmin(dropped, cut.key == key_of(most) ? equals - 1 : equals);
    stays = key_of(own) > cut.key || (key_of(own) == cut.key && before >= dropped);
    mass -= cut.below + dropped * each;
  }
  const float value = stays ? float(Real(own) - Real(most) - log(mass)) : -INFINITY;
  $store
  $leave
}

void solution(TensorView vocab_parallel_logits, TensorView target, int64_t tp_group, Optional<int64_t> top_k,
              Optional<double> top_p, TensorView logprobs, pkb::Comm comm) {
  const int64_t tokens = target.numel(), Vl = vocab_parallel_logits.size(2);
  $share
  const bool has_p = top_p.value_or(1.0) < 1.0;
  $before
  pkb::with_float_type(vocab_parallel_logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const float tail = float(T(float(1.0 - top_p.value_or(1.0))));
    log_probs<T><<<unsigned(count), kThreads, 0, comm.cuda_stream()>>>(
        static_cast<const T*>(vocab_parallel_logits.data_ptr()), static_cast<const int64_t*>(target.data_ptr()),
        static_cast<float*>(logprobs.data_ptr()), Vl, first, top_k.value_or(0), has_p, tail, comm.device());
    PKB_CUDA_LAUNCHED();
  });
  $after
}
"""

BLOCK_SUMS: dict[Knob, str] = {
    "atomics": """
        __device__ Real block_sum(Real value) {
          __shared__ Real sum;
          if (threadIdx.x == 0) sum = 0;
          __syncthreads();
          atomicAdd(&sum, value);
          __syncthreads();
          const Real result = sum;
          __syncthreads();
          return result;
        }
        """,
    "shuffles": """
        __device__ Real block_sum(Real value) {
          __shared__ Real sums[kThreads / 32];
          for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
          if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
          __syncthreads();
          Real result = 0;
          for (int warp = 0; warp < kThreads / 32; ++warp) result += sums[warp];
          __syncthreads();
          return result;
        }
        """,
}

WORK: dict[Knob, tuple[Access, str, str]] = {
    "shared": (
        "touch",
        "const int64_t count = tokens / comm.world_size, first = comm.rank * count;",
        "if (threadIdx.x < W) comm.peer(out, threadIdx.x)[token] = value;",
    ),
    "everything": (
        "read",
        "const int64_t count = tokens, first = 0;",
        "if (threadIdx.x == 0) out[token] = value;",
    ),
}
"""For each way of sharing out tokens: access to each other's memory, the tokens of a rank, and their destination."""

CHOICES: Choices = {
    "work": tuple(WORK),
    "bits": (1, 2, 4, 8),
    "threads": (256, 64, 128, 512, 1024),
    "real": ("double", "float"),
    "sums": BLOCK_SUMS,
    "signalling": ("host barrier", "begun words"),
}


def makes_sense(knobs: Knobs) -> bool:
    """Words that a rank has begun come with plain sums."""
    return knobs["signalling"] == "host barrier" or knobs["sums"] == "atomics"


def pieces(knobs: Knobs) -> Pieces:
    """The places of the text."""
    access, share, store = WORK[knobs["work"]]
    exp = "exp" if knobs["real"] == "double" else "expf"
    return {"exp": exp, "share": share, "store": store, **asdict(cuda_meetings(knobs["signalling"], access))}


FAMILIES = (Family("VocabParallelLogProb", "cuda", CHOICES, TEXT, pieces, makes_sense),)
