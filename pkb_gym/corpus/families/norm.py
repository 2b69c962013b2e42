"""TPRMSNorm: rows that are cut by columns over the ranks; each needs the sum of all ranks' squares."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
from pkb_gym.corpus.families.meetings import (
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
from pkb_gym.corpus.families.pieces import EXPORT, ORDERS, cpp_dispatch, cpp_finish, cuda_finish

PARAMETERS = """\
TensorView local_hidden_states, TensorView local_weight, double variance_epsilon, TensorView out,
              pkb::Comm comm"""

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
using tvm::ffi::TensorView;

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

void solution($parameters) {
  $dispatch
}

$export
"""

CPP_SQUARES: dict[Knob, str] = {
    "plain": """
        Sum sum = 0;
        for (int64_t k = 0; k < n; ++k) sum += Sum(row[k]) * Sum(row[k]);
        return sum;
        """,
    "8 at once": """
        Sum sums[8] = {};
        int64_t k = 0;
        for (; k + 8 <= n; k += 8) {
          for (int j = 0; j < 8; ++j) sums[j] += Sum(row[k + j]) * Sum(row[k + j]);
        }
        for (; k < n; ++k) sums[0] += Sum(row[k]) * Sum(row[k]);
        return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
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

CPP_CHOICES = {
    "exchange": ("peers' rows", "push sums", "pull sums"),
    "squares": ("8 at once", "plain", "32 at once"),
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


def cpp_source(knobs: Knobs) -> str:
    """The text of one kernel."""
    exchange, rows = knobs["exchange"], knobs["rows"]
    send, term = "", "squares<T, Sum>(comm.peer(x, r) + m * n, n)"
    if exchange == "push sums":
        send, term = "for (int r = 0; r < W; ++r) comm.peer(sums, r)[comm.rank * M + m] = own;", "sums[r * M + m]"
    elif exchange == "pull sums":
        send, term = "sums[m] = own;", "comm.peer(sums, r)[m]"
    row = fill(CPP_ROW, order=ORDERS[knobs["order"]], term=term)
    if exchange == "peers' rows":
        loops = fill(CPP_ONE_PASS, row=row)
        before = cpp_meet(knobs["signalling"], BEGUN["read"])
        after = cpp_meet(knobs["signalling"], DONE["read"], 1)
    else:
        meet = cpp_meet(knobs["signalling"], SENT if exchange == "push sums" else STAGED)
        loops = fill(CPP_CHUNKS if rows else CPP_TWO_PASSES, send=send, meet=meet, row=row)
        halves = knobs["guard"] == "halves"
        before = scratch("Sum", "sums", halves=halves)
        after = "" if halves else FREE
    arguments = "local_hidden_states, local_weight, variance_epsilon, out, comm"
    text = fill(
        CPP,
        constant=f"constexpr int64_t kRows = {rows};" if rows else "",
        squares=CPP_SQUARES[knobs["squares"]],
        before=before,
        loops=loops,
        after=after,
        parameters=PARAMETERS,
        dispatch=cpp_dispatch("rms_norm", "local_hidden_states", arguments, has_double=False),
        export=EXPORT,
    )
    return cpp_finish(text)


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
using tvm::ffi::TensorView;

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

void solution($parameters) {
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

$export
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

CUDA_LAUNCH = """
rms_norm<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(x, gain, y, M, n, eps, comm.device());
PKB_CUDA_LAUNCHED();
"""

CUDA_SEND_LAUNCH = """
send_sums<T><<<blocks, kThreads, 0, comm.cuda_stream()>>>(x, M, n, comm.device());
PKB_CUDA_LAUNCHED();
comm.barrier();  // $meet
"""

CUDA_CHOICES = {
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


def cuda_source(knobs: Knobs) -> str:
    """The text of one kernel."""
    launch = fill(CUDA_LAUNCH)
    if knobs["exchange"] == "peers' rows":
        meetings = cuda_meetings(knobs["kernels"], "read")
        kernels = fill(
            CUDA_ROWS_OF_PEERS,
            function=meetings.function,
            enter=meetings.enter,
            leave=meetings.leave,
            order=ORDERS[knobs["order"]],
        )
        launches = "\n".join(filter(None, (meetings.before, launch, meetings.after)))
    else:
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
            kernels, launches = fill(CUDA_TWO_KERNELS, **pieces), f"{fill(CUDA_SEND_LAUNCH, meet=meet)}\n{launch}"
        else:
            function, line = cuda_meet(knobs["kernels"], meet)
            kernels, launches = fill(CUDA_ONE_KERNEL, function=function, meet=line, **pieces), launch
    text = fill(
        CUDA,
        threads=knobs["threads"],
        unroll=knobs["unroll"],
        kernels=kernels,
        parameters=PARAMETERS,
        blocks=knobs["blocks"],
        launches=launches,
        export=EXPORT,
    )
    return cuda_finish(text)


FAMILIES = (
    Family("TPRMSNorm", "cpp", CPP_CHOICES, cpp_source, cpp_makes_sense),
    Family("TPRMSNorm", "cuda", CUDA_CHOICES, cuda_source, cuda_makes_sense),
)
