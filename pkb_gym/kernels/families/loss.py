"""GradAccLoss: one number of each rank, added up: all is latency."""

from __future__ import annotations

from dataclasses import asdict

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    FREE,
    SENT,
    STAGED,
    CudaMeetings,
    cpp_meet,
    cuda_meet,
    cuda_meetings,
    scratch,
    signal_all,
    signal_to,
    wait_for,
    wait_for_all,
)

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
template <class T>
T* data(const TensorView& x) {
  return static_cast<T*>(x.data_ptr());
}

template <class T, class Sum>
void add_up(TensorView loss, TensorView local_valid_tokens, TensorView global_valid_tokens,
              TensorView grad_normalized_loss, tvm::ffi::Optional<TensorView> grad_loss_sum,
              TensorView normalized_loss, TensorView loss_sum, TensorView grad_loss, pkb::Comm comm) {
  const int W = comm.world_size;
  const Sum tokens = Sum(*data<int64_t>(local_valid_tokens)), all = Sum(*data<int64_t>(global_valid_tokens));
  Sum total = 0;
  $exchange
  *data<T>(loss_sum) = T(total);
  *data<T>(normalized_loss) = T(total / all);
  const Sum second = grad_loss_sum.has_value() ? Sum(*data<T>(grad_loss_sum.value())) * tokens : 0;
  *data<T>(grad_loss) = T(Sum(*data<T>(grad_normalized_loss)) * tokens / all + second);
  $guard
}

void solution(TensorView loss, TensorView local_valid_tokens, TensorView global_valid_tokens,
              TensorView grad_normalized_loss, tvm::ffi::Optional<TensorView> grad_loss_sum,
              TensorView normalized_loss, TensorView loss_sum, TensorView grad_loss, pkb::Comm comm) {
  const auto run = loss.dtype().bits == 16 ? add_up<pkb::bf16, $sum> : add_up<float, $sum>;
  run(loss, local_valid_tokens, global_valid_tokens, grad_normalized_loss, grad_loss_sum, normalized_loss, loss_sum,
      grad_loss, comm);
}
"""

OWN = "const Sum own = tokens > 0 ? Sum(*data<T>(loss)) * tokens : 0;"

CPP_EXCHANGES: dict[Knob, str] = {
    "pull": """
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          $wait
          const int64_t count = *comm.peer<int64_t>(local_valid_tokens, r);
          if (count > 0) total += Sum(*comm.peer<T>(loss, r)) * Sum(count);
          $signal
        }
        """,
    "push": """
        $own
        $scratch
        for (int r = 0; r < W; ++r) comm.peer(parts, r)[comm.rank] = own;
        $add_up
        """,
    "post": """
        $own
        $scratch
        *part = own;
        $add_up
        """,
    "put": """
        $own
        $scratch
        for (int r = 0; r < W; ++r) comm.put(parts + comm.rank, &own, sizeof(Sum), r);
        $add_up
        """,
}

CPP_ADD_UP = """
$meet
for (int i = 0; i < W; ++i) {
  const int r = $order;
  $wait
  total += $part;
}
"""

CPP_CHOICES: Choices = {
    "exchange": CPP_EXCHANGES,
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals", "split signals"),
    "guard": ("halves", "barrier"),
    "sum": ("float", "double"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Only scratch has a guard."""
    return knobs["exchange"] != "pull" or knobs["guard"] == "halves"


def cpp_pieces(knobs: Knobs) -> Pieces:
    """When ranks wait for each other, and the scratch for what they send."""
    kind, exchange, halves = knobs["signalling"], knobs["exchange"], knobs["guard"] == "halves"
    reason = {"pull": BEGUN["read"], "post": STAGED}.get(str(exchange), SENT)
    split = kind == "split signals"
    pieces = {
        "own": OWN,
        "add_up": CPP_ADD_UP,
        "part": "*comm.peer(part, r)" if exchange == "post" else "parts[r]",
        "meet": signal_all() if split else cpp_meet(kind, reason),
        "wait": wait_for("r", reason) if split else "",
        "signal": signal_to("r", 1) if split else "",
    }
    if exchange == "pull":
        return pieces | {"guard": wait_for_all(DONE["read"], 1) if split else cpp_meet(kind, DONE["read"], 1)}
    name = "part" if exchange == "post" else "parts"
    return pieces | {"scratch": scratch("Sum", name, halves=halves), "guard": "" if halves else FREE}


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

template <class T>
struct Values {
  const T *loss, *grad, *grad_of_sum;
  const int64_t *tokens, *all;
  T *normalized, *total, *grad_loss;
};

$function

template <class T>
__global__ void add_up(const Values<T> v, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  const float tokens = float(*v.tokens), all = float(*v.all);
  float total = 0;
  $exchange
  if (threadIdx.x == 0) {
    *v.total = T(total);
    *v.normalized = T(total / all);
    const float second = v.grad_of_sum ? float(*v.grad_of_sum) * tokens : 0;
    *v.grad_loss = T(float(*v.grad) * tokens / all + second);
  }
  $leave
}

template <class T>
T* data(const TensorView& x) {
  return static_cast<T*>(x.data_ptr());
}

void solution(TensorView loss, TensorView local_valid_tokens, TensorView global_valid_tokens,
              TensorView grad_normalized_loss, Optional<TensorView> grad_loss_sum,
              TensorView normalized_loss, TensorView loss_sum, TensorView grad_loss, pkb::Comm comm) {
  pkb::with_type<__nv_bfloat16, float>(loss.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Values<T> values{data<T>(loss), data<T>(grad_normalized_loss),
                           grad_loss_sum.has_value() ? data<T>(grad_loss_sum.value()) : nullptr,
                           data<int64_t>(local_valid_tokens), data<int64_t>(global_valid_tokens),
                           data<T>(normalized_loss), data<T>(loss_sum), data<T>(grad_loss)};
    $before
    add_up<T><<<1, $threads, 0, comm.cuda_stream()>>>(values, comm.device());
    PKB_CUDA_LAUNCHED();
  });
  $after
}
"""

CUDA_OWN = "const float own = tokens > 0 ? float(*v.loss) * tokens : 0;"

CUDA_EXCHANGES: dict[Knob, str] = {
    "pull, one thread": """
        $enter
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          const int64_t count = *comm.peer(v.tokens, r);
          if (count > 0) total += float(*comm.peer(v.loss, r)) * float(count);
        }
        """,
    "pull, thread by rank": """
        $enter
        if (threadIdx.x < W) {
          const int64_t count = *comm.peer(v.tokens, threadIdx.x);
          if (count > 0) total = float(*comm.peer(v.loss, threadIdx.x)) * float(count);
        }
        total = pkb::reduce_warp(total, [](float a, float b) { return a + b; });
        """,
    "push": """
        $own
        $scratch
        if (threadIdx.x < W) comm.peer(parts, threadIdx.x)[comm.rank] = own;
        $meet
        $add_up
        """,
    "post": """
        $own
        $scratch
        if (threadIdx.x == 0) *part = own;
        $meet
        $add_up
        """,
    "tagged words": """
        $own
        $scratch
        const uint32_t tag = uint32_t(comm.epoch);  // distinguishes this call's words from those of earlier ones
        if (threadIdx.x < W) pkb::store_tagged(comm.peer(parts, threadIdx.x) + comm.rank, own, tag);
        $add_up
        """,
}

CUDA_ADD_UP = """
for (int i = 0; i < W; ++i) {
  const int r = $order;
  total += $part;
}
"""

CUDA_CHOICES: Choices = {
    "exchange": CUDA_EXCHANGES,
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("block barrier", "signals", "host barrier", "begun words"),
    "threads": (32, 64, 256, 1024),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Parts that are sent need one meeting in the kernel; tagged words bring their own."""
    exchange, signalling = knobs["exchange"], knobs["signalling"]
    if exchange == "pull, thread by rank":
        return knobs["order"] == "from 0"
    if exchange in ("push", "post"):
        return signalling in ("block barrier", "signals")
    return exchange == "pull, one thread" or signalling == "block barrier"


def cuda_pieces(knobs: Knobs) -> Pieces:
    """When ranks wait for each other, and the scratch for what they send."""
    exchange, kind = str(knobs["exchange"]), knobs["signalling"]
    if exchange.startswith("pull"):
        return asdict(cuda_meetings(kind, "read"))
    pieces = {"own": CUDA_OWN, "add_up": CUDA_ADD_UP, **asdict(CudaMeetings())}
    if exchange == "tagged words":
        return pieces | {
            "scratch": scratch("uint64_t", "parts", halves=True),
            "part": "pkb::wait_tagged(parts + r, tag)",
        }
    post = exchange == "post"
    function, meet = cuda_meet(kind, STAGED if post else SENT)
    return pieces | {
        "scratch": scratch("float", "part" if post else "parts", halves=True),
        "part": "*comm.peer(part, r)" if post else "parts[r]",
        "function": function,
        "meet": meet,
    }


FAMILIES = (
    Family("GradAccLoss", "cpp", CPP_CHOICES, CPP, cpp_pieces, cpp_makes_sense),
    Family("GradAccLoss", "cuda", CUDA_CHOICES, CUDA, cuda_pieces, cuda_makes_sense),
)
