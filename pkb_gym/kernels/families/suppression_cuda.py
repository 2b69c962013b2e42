"""SAM3IoUSuppression in CUDA: every rank sends its widened masks and their foreground bits to all, and all decide."""

from __future__ import annotations

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import BEGUN, DONE

TEXT = """
constexpr int kThreads = $threads;

// Widens the masks of this rank into the outputs of all ranks and packs their foreground bits into the scratch of all;
// blockIdx.y is the object.
template <class T>
__global__ void __launch_bounds__(kThreads)
send(const T* masks, const T* scores, int64_t first, float* all, float* found, uint32_t* bits, int64_t pixels,
     int64_t words, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  const int64_t object = first + blockIdx.y;
  const T* mask = masks + blockIdx.y * pixels;
  for (int64_t p = blockIdx.x * int64_t(kThreads) + threadIdx.x; p < words * 32; p += int64_t(gridDim.x) * kThreads) {
    const float value = p < pixels ? float(mask[p]) : 0.0f;
    const uint32_t word = __ballot_sync(0xffffffff, value > 0);
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      if (p < pixels) comm.peer(all, r)[object * pixels + p] = value;
      if (threadIdx.x % 32 == 0) comm.peer(bits, r)[object * words + p / 32] = word;
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < W) comm.peer(found, threadIdx.x)[object] = float(scores[blockIdx.y]);
}

struct Counts {
  unsigned common = 0, one = 0, other = 0;
};

// Foreground pixels of two objects, in words first, first + step ...
__device__ Counts count(const uint32_t* a, const uint32_t* b, int64_t words, int64_t first, int64_t step) {
  Counts counts;
  $unroll
  for (int64_t k = first; k < words; k += step) {
    counts.common += __popc(a[k] & b[k]);
    counts.one += __popc(a[k]);
    counts.other += __popc(b[k]);
  }
  return counts;
}

__device__ bool overlap(const Counts& counts, float threshold) {
  const float inter = float(counts.common), both = float(counts.one) + float(counts.other) - inter;
  return inter / fmaxf(both, 1.0f) >= threshold;
}

// Block i decides on object i.
__global__ void __launch_bounds__(kThreads)
decide(const uint32_t* bits, const int64_t* last, float* all, bool* suppressed, int64_t N, int64_t pixels,
       int64_t words, float threshold, bool reverse) {
  __shared__ bool loses;
  const int64_t i = blockIdx.x;
  if (threadIdx.x == 0) loses = false;
  __syncthreads();
  $pairs
  __syncthreads();
  if (threadIdx.x == 0) suppressed[i] = loses;
  $blank
}

$blank_kernel

void solution(TensorView low_res_masks_local, TensorView obj_scores_local, tvm::ffi::Array<int64_t> num_obj_per_gpu,
              TensorView last_occluded, double iou_threshold, bool reverse, int64_t group, TensorView masks,
              TensorView scores, TensorView suppressed, pkb::Comm comm) {
  const int64_t N = last_occluded.numel(), pixels = masks.size(1) * masks.size(2), words = (pixels + 31) / 32;
  const int64_t own = num_obj_per_gpu[comm.rank];
  int64_t first = 0;
  for (int r = 0; r < comm.rank; ++r) first += num_obj_per_gpu[r];
  float* all = static_cast<float*>(masks.data_ptr());
  uint32_t* bits = comm.scratch<uint32_t>();  // written again when all have begun the next call
  const cudaStream_t stream = comm.cuda_stream();
  comm.barrier();  // $begun
  if (own > 0) {
    const unsigned blocks = unsigned(std::min<int64_t>((pixels + kThreads - 1) / kThreads, $blocks));
    pkb::with_float_type(low_res_masks_local.dtype(), [&](auto zero) {
      using T = decltype(zero);
      send<T><<<dim3(blocks, unsigned(own)), kThreads, 0, stream>>>(
          static_cast<const T*>(low_res_masks_local.data_ptr()), static_cast<const T*>(obj_scores_local.data_ptr()),
          first, all, static_cast<float*>(scores.data_ptr()), bits, pixels, words, comm.device());
      PKB_CUDA_LAUNCHED();
    });
  }
  comm.barrier();  // $done
  if (N == 0) return;
  decide<<<unsigned(N), kThreads, 0, stream>>>(
      bits, static_cast<const int64_t*>(last_occluded.data_ptr()), all, static_cast<bool*>(suppressed.data_ptr()), N,
      pixels, words, float(iou_threshold), reverse);
  PKB_CUDA_LAUNCHED();
  $blank_launch
}
"""

LOSES = "last[j] > -1 && (reverse ? last[i] < last[j] : last[i] > last[j])"
STORE = "if (overlap(counts, threshold)) loses = true;"

PAIRS: dict[Knob, str] = {
    "thread a pair": """
        for (int64_t j = threadIdx.x; j < N; j += kThreads) {
          $skip
          const Counts counts = count(bits + i * words, bits + j * words, words, 0, 1);
          $store
        }
        """,
    "warp a pair": """
        for (int64_t j = threadIdx.x / 32; j < N; j += kThreads / 32) {
          $skip
          Counts counts = count(bits + i * words, bits + j * words, words, threadIdx.x % 32, 32);
          counts.common = __reduce_add_sync(0xffffffff, counts.common);
          counts.one = __reduce_add_sync(0xffffffff, counts.one);
          counts.other = __reduce_add_sync(0xffffffff, counts.other);
          $store
        }
        """,
    "block a pair": """
        __shared__ Counts total;
        for (int64_t j = 0; j < N; ++j) {
          $skip
          if (threadIdx.x == 0) total = Counts();
          __syncthreads();
          const Counts part = count(bits + i * words, bits + j * words, words, threadIdx.x, kThreads);
          atomicAdd(&total.common, part.common);
          atomicAdd(&total.one, part.one);
          atomicAdd(&total.other, part.other);
          __syncthreads();
          const Counts counts = total;
          __syncthreads();
          $store
        }
        """,
}

BLANK = "for (int64_t p = threadIdx.x; loses && p < pixels; p += kThreads) all[i * pixels + p] = -10.0f;"

BLANK_KERNEL = """
__global__ void __launch_bounds__(kThreads) blank(const bool* suppressed, float* all, int64_t pixels) {
  const int64_t object = blockIdx.y, step = int64_t(gridDim.x) * kThreads;
  if (!suppressed[object]) return;
  for (int64_t p = blockIdx.x * int64_t(kThreads) + threadIdx.x; p < pixels; p += step) {
    all[object * pixels + p] = -10.0f;
  }
}
"""

BLANK_LAUNCH = """
const unsigned parts = unsigned(std::min<int64_t>((pixels + kThreads - 1) / kThreads, 64));
blank<<<dim3(parts, unsigned(N)), kThreads, 0, stream>>>(static_cast<const bool*>(suppressed.data_ptr()), all, pixels);
PKB_CUDA_LAUNCHED();
"""

CHOICES: Choices = {
    "pairs": PAIRS,
    "skip": ("itself", "who cannot win"),
    "blank": ("by the block that decides", "by a kernel"),
    "threads": (256, 64, 128, 512),
    "blocks": (16, 64, 4),
    "order": ("staggered", "from 0"),
    "unroll": ("", "#pragma unroll 4"),
}


def makes_sense(knobs: Knobs) -> bool:
    """Other blocks, orders and loops around plain choices alone."""
    plain = knobs["threads"] == 256
    return plain or (knobs["blocks"] == 16 and knobs["order"] == "staggered" and not knobs["unroll"])


def pieces(knobs: Knobs) -> Pieces:
    """The places of the text."""
    apart = knobs["blank"] == "by a kernel"
    skip = "if (i == j) continue;" if knobs["skip"] == "itself" else f"if (i == j || !({LOSES})) continue;"
    store = STORE if knobs["skip"] != "itself" else f"if (overlap(counts, threshold) && {LOSES}) loses = true;"
    return {
        "skip": skip,
        "store": store,
        "blank": "" if apart else BLANK,
        "blank_kernel": BLANK_KERNEL if apart else "",
        "begun": BEGUN["write"],
        "done": DONE["write"],
        "blank_launch": BLANK_LAUNCH if apart else "",
    }


FAMILIES = (Family("SAM3IoUSuppression", "cuda", CHOICES, TEXT, pieces, makes_sense),)
