"""TPRMSNorm: rows that are cut by columns over the ranks; each needs the sum of all ranks' squares."""

from __future__ import annotations

from dataclasses import asdict

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    FREE,
    IN_KERNEL,
    SENT,
    STAGED,
    cpp_meet,
    cuda_meet,
    cuda_meetings,
    scratch,
)
from pkb_gym.kernels.pieces import cpp_dispatch

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
$constant

template <class T, class Sum>
Sum squares(const T* row, int64_t n) {
  $squares
}

template <class T, class Sum>
void rms_norm(const TensorView& hidden, const TensorView& weight, double eps, const TensorView& out,
              const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t n = weight.numel(), M = hidden.numel() / n;
  const T* x = static_cast<const T*>(hidden.data_ptr());
  const T* gain = static_cast<const T*>(weight.data_ptr());
  T* y = static_cast<T*>(out.data_ptr());
  $before
  $loops
  $after
}

void solution(TensorView local_hidden_states, TensorView local_weight, double variance_epsilon, TensorView out,
              pkb::Comm comm) {
  $dispatch
}
"""

CPP_SQUARES: dict[Knob, str] = {
    "8 at once": """
        Sum sums[8] = {};
        int64_t k = 0;
        for (; k + 8 <= n; k += 8) {
          for (int j = 0; j < 8; ++j) sums[j] += Sum(row[k + j]) * Sum(row[k + j]);
        }
        for (; k < n; ++k) sums[0] += Sum(row[k]) * Sum(row[k]);
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
        """,
    "plain": """
        Sum sum = 0;
        for (int64_t k = 0; k < n; ++k) sum += Sum(row[k]) * Sum(row[k]);
        return sum;
        """,
    "32 at once": """
        Sum sums[32] = {};
        int64_t k = 0;
        for (; k + 32 <= n; k += 32) {
          for (int j = 0; j < 32; ++j) sums[j] += Sum(row[k + j]) * Sum(row[k + j]);
        }
        for (; k < n; ++k) sums[0] += Sum(row[k]) * Sum(row[k]);
        for (int j = 1; j < 32; ++j) sums[0] += sums[j];
        return sums[0];
        """,
}

CPP_TWO_PASSES = """
for (int64_t m = 0; m < M; ++m) {
  const Sum own = squares<T, Sum>(x + m * n, n);
  $send
}
$meet
for (int64_t m = 0; m < M; ++m) {
  $row
}
"""

CPP_CHUNKS = """
for (int64_t first = 0; first < M; first += kRows) {
  const int64_t last = std::min<int64_t>(M, first + kRows);
  for (int64_t m = first; m < last; ++m) {
    const Sum own = squares<T, Sum>(x + m * n, n);
    $send
  }
  $meet
  for (int64_t m = first; m < last; ++m) {
    $row
  }
}
"""

CPP_ONE_PASS = """
for (int64_t m = 0; m < M; ++m) {
  $row
}
"""

CPP_ROW = """
Sum total = 0;
for (int i = 0; i < W; ++i) {
  const int r = $order;
  total += $term;
}
const Sum scale = 1 / std::sqrt(total / Sum(n * W) + Sum(eps));
for (int64_t k = 0; k < n; ++k) y[m * n + k] = T(Sum(gain[k]) * (Sum(x[m * n + k]) * scale));
"""

CPP_CHOICES: Choices = {
    "exchange": ("peers' rows", "push sums", "pull sums"),
    "squares": CPP_SQUARES,
    "rows": (0, 4, 16, 64),
    "order": ("from 0", "staggered"),
    "signalling": ("barrier", "signals"),
    "guard": ("halves", "barrier"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Chunks of rows meet at barriers; only scratch has a guard."""
    if knobs["exchange"] == "peers' rows":
        return knobs["rows"] == 0 and knobs["guard"] == "halves"
    return not knobs["rows"] or (knobs["signalling"] == "barrier" and knobs["order"] == "from 0")


def cpp_pieces(knobs: Knobs) -> Pieces:
    """Sums of peers' rows, or sums that are exchanged."""
    exchange, rows = knobs["exchange"], knobs["rows"]
    send, term = "", "squares<T, Sum>(comm.peer(x, r) + m * n, n)"
    if exchange == "push sums":
        send, term = "for (int r = 0; r < W; ++r) comm.peer(sums, r)[comm.rank * M + m] = own;", "sums[r * M + m]"
    elif exchange == "pull sums":
        send, term = "sums[m] = own;", "comm.peer(sums, r)[m]"
    dispatch = cpp_dispatch(
        "rms_norm",
        "local_hidden_states",
        "local_hidden_states, local_weight, variance_epsilon, out, comm",
        has_double=False,
    )
    pieces = {"row": CPP_ROW, "send": send, "term": term, "dispatch": dispatch}
    kind, halves = knobs["signalling"], knobs["guard"] == "halves"
    if exchange == "peers' rows":
        ends = {"before": cpp_meet(kind, BEGUN["read"]), "after": cpp_meet(kind, DONE["read"], 1)}
        return pieces | ends | {"constant": "", "loops": CPP_ONE_PASS}
    return pieces | {
        "constant": "constexpr int64_t kRows = $rows;" if rows else "",
        "loops": CPP_CHUNKS if rows else CPP_TWO_PASSES,
        "meet": cpp_meet(kind, SENT if exchange == "push sums" else STAGED),
        "before": scratch("Sum", "sums", halves=halves),
        "after": "" if halves else FREE,
    }


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
constexpr int kThreads = $threads;

template <class T>
__device__ float squares(const T* row, int64_t n) {
  float sum = 0;
  $unroll
  for (int64_t k = threadIdx.x; k < n; k += kThreads) sum += float(row[k]) * float(row[k]);
  return pkb::reduce_block<kThreads>(sum, [](float a, float b) { return a + b; });
}

template <class T>
__device__ void scale_row(const T* x, const T* gain, T* y, int64_t n, float scale) {
  $unroll
  for (int64_t k = threadIdx.x; k < n; k += kThreads) y[k] = T(float(gain[k]) * (float(x[k]) * scale));
}

$kernels

void solution(TensorView local_hidden_states, TensorView local_weight, double variance_epsilon, TensorView out,
              pkb::Comm comm) {
  const int64_t n = local_weight.numel(), M = local_hidden_states.numel() / n;
  const float eps = float(variance_epsilon);
  const unsigned blocks = unsigned(std::min<int64_t>(M, $blocks));
  pkb::with_type<__nv_bfloat16, __half, float>(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(local_hidden_states.data_ptr());
    const T* gain = static_cast<const T*>(local_weight.data_ptr());
    T* y = static_cast<T*>(out.data_ptr());
    $launches
  });
}
"""

CUDA_ROWS_OF_PEERS = """
$function

template <class T>
__global__ void __launch_bounds__(kThreads)
rms_norm(const T* x, const T* gain, T* y, int64_t M, int64_t n, float eps, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  $enter
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    float total = 0;
    for (int i = 0; i < W; ++i) {
      const int r = $order;
      total += squares(comm.peer(x, r) + m * n, n);
    }
    scale_row(x + m * n, gain, y + m * n, n, rsqrtf(total / (n * W) + eps));
  }
  $leave
}
"""

CUDA_ONE_KERNEL = """
$function

template <class T>
__global__ void __launch_bounds__(kThreads)
rms_norm(const T* x, const T* gain, T* y, int64_t M, int64_t n, float eps, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  $scratch
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    const float own = squares(x + m * n, n);
    $send
  }
  $meet
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    float total = 0;
    for (int r = 0; r < W; ++r) total += $term;
    scale_row(x + m * n, gain, y + m * n, n, rsqrtf(total / (n * W) + eps));
  }
}
"""

CUDA_TWO_KERNELS = """
template <class T>
__global__ void __launch_bounds__(kThreads)
send_sums(const T* x, int64_t M, int64_t n, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  $scratch
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    const float own = squares(x + m * n, n);
    $send
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
rms_norm(const T* x, const T* gain, T* y, int64_t M, int64_t n, float eps, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  $scratch
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    float total = 0;
    for (int r = 0; r < W; ++r) total += $term;
    scale_row(x + m * n, gain, y + m * n, n, rsqrtf(total / (n * W) + eps));
  }
}
"""

CUDA_LAUNCH = """\
rms_norm<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(x, gain, y, M, n, eps, comm.device());
PKB_CUDA_LAUNCHED();"""

CUDA_SEND_LAUNCH = """\
send_sums<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(x, M, n, comm.device());
PKB_CUDA_LAUNCHED();
comm.barrier();  // $meet"""

CUDA_CHOICES: Choices = {
    "exchange": ("peers' rows", "push sums", "pull sums"),
    "kernels": ("block barrier", "signals", "host barrier", "begun words"),
    "threads": (256, 32, 64, 128, 512, 1024),
    "blocks": (64, 16, 4, 264, 4096),
    "unroll": ("", "#pragma unroll 4"),
    "order": ("from 0", "staggered"),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Blocks that wait for each other are few; an order is for those who read peers' rows."""
    few = knobs["kernels"] not in IN_KERNEL or int(knobs["blocks"]) <= 64
    if knobs["exchange"] == "peers' rows":
        return few and (knobs["threads"] == 256 or (knobs["kernels"] == "host barrier" and not knobs["unroll"]))
    return few and knobs["order"] == "from 0" and knobs["kernels"] != "begun words"


def cuda_pieces(knobs: Knobs) -> Pieces:
    """Kernels and launches."""
    if knobs["exchange"] == "peers' rows":
        meetings = cuda_meetings(knobs["kernels"], "read")
        return {"kernels": CUDA_ROWS_OF_PEERS, "launches": f"$before\n{CUDA_LAUNCH}\n$after", **asdict(meetings)}
    push = knobs["exchange"] == "push sums"
    meet = SENT if push else STAGED
    send = "if (threadIdx.x == 0) sums[m] = own;"
    if push:
        send = "if (threadIdx.x < W) comm.peer(sums, threadIdx.x)[comm.rank * M + m] = own;"
    pieces = {
        "scratch": scratch("float", "sums", halves=True),
        "send": send,
        "term": "sums[r * M + m]" if push else "comm.peer(sums, r)[m]",
    }
    if knobs["kernels"] == "host barrier":
        return pieces | {"kernels": CUDA_TWO_KERNELS, "launches": f"{CUDA_SEND_LAUNCH}\n{CUDA_LAUNCH}", "meet": meet}
    function, line = cuda_meet(knobs["kernels"], meet)
    return pieces | {"kernels": CUDA_ONE_KERNEL, "launches": CUDA_LAUNCH, "function": function, "meet": line}


FAMILIES = (
    Family("TPRMSNorm", "cpp", CPP_CHOICES, CPP, cpp_pieces, cpp_makes_sense),
    Family("TPRMSNorm", "cuda", CUDA_CHOICES, CUDA, cuda_pieces, cuda_makes_sense),
)
