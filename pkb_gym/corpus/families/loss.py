"""GradAccLoss: one number of each rank, added up: all is latency."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
from pkb_gym.corpus.families.meetings import (
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
from pkb_gym.corpus.families.pieces import EXPORT, ORDERS, cpp_finish, cuda_finish

PARAMETERS = (
    "TensorView loss, TensorView local_valid_tokens, TensorView global_valid_tokens,\n"
    "              TensorView grad_normalized_loss, tvm::ffi::Optional<TensorView> grad_loss_sum,\n"
    "              TensorView normalized_loss, TensorView loss_sum, TensorView grad_loss, pkb::Comm comm"
)

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
using tvm::ffi::TensorView;

template <class T>
T* data(const TensorView& x) {
  return static_cast<T*>(x.data_ptr());
}

template <class T, class Sum>
void add_up($parameters) {
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

void solution($parameters) {
  const auto run = loss.dtype().bits == 16 ? add_up<pkb::bf16, $sum> : add_up<float, $sum>;
  run(loss, local_valid_tokens, global_valid_tokens, grad_normalized_loss, grad_loss_sum, normalized_loss, loss_sum,
      grad_loss, comm);
}

$export
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
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          $wait
          total += parts[r];
        }
        """,
    "post": """
        $own
        $scratch
        *part = own;
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          $wait
          total += *comm.peer(part, r);
        }
        """,
    "put": """
        $own
        $scratch
        for (int r = 0; r < W; ++r) comm.put(parts + comm.rank, &own, sizeof(Sum), r);
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          $wait
          total += parts[r];
        }
        """,
}

CPP_CHOICES = {
    "exchange": tuple(CPP_EXCHANGES),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals", "split signals"),
    "guard": ("halves", "barrier"),
    "sum": ("float", "double"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Only scratch has a guard."""
    return knobs["exchange"] != "pull" or knobs["guard"] == "halves"


def cpp_source(knobs: Knobs) -> str:
    """The text of one kernel."""
    kind, exchange, halves = knobs["signalling"], knobs["exchange"], knobs["guard"] == "halves"
    reason = {"pull": BEGUN["read"], "post": STAGED}.get(str(exchange), SENT)
    split = kind == "split signals"
    lines, after = "", ""
    if exchange == "pull":
        after = wait_for_all(DONE["read"], 1) if split else cpp_meet(kind, DONE["read"], 1)
    else:
        name = "part" if exchange == "post" else "parts"
        lines, after = scratch("Sum", name, halves=halves), "" if halves else FREE
    text = fill(
        CPP_EXCHANGES[exchange],
        own=OWN,
        scratch=lines,
        meet=signal_all() if split else cpp_meet(kind, reason),
        order=ORDERS[knobs["order"]],
        wait=wait_for("r", reason) if split else "",
        signal=signal_to("r", 1) if split else "",
    )
    return cpp_finish(fill(CPP, parameters=PARAMETERS, exchange=text, guard=after, sum=knobs["sum"], export=EXPORT))


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
  $guard
}

template <class T>
T* data(const TensorView& x) {
  return static_cast<T*>(x.data_ptr());
}

void solution($parameters) {
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

$export
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
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += parts[r];
        }
        """,
    "post": """
        $own
        $scratch
        if (threadIdx.x == 0) *part = own;
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += *comm.peer(part, r);
        }
        """,
    "tagged words": """
        $own
        $scratch
        const uint32_t tag = uint32_t(comm.epoch);  // distinguishes this call's words from those of earlier ones
        if (threadIdx.x < W) pkb::store_tagged(comm.peer(parts, threadIdx.x) + comm.rank, own, tag);
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += pkb::wait_tagged(parts + r, tag);
        }
        """,
}

CUDA_CHOICES = {
    "exchange": tuple(CUDA_EXCHANGES),
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


def cuda_source(knobs: Knobs) -> str:
    """The text of one kernel."""
    exchange, kind = str(knobs["exchange"]), knobs["signalling"]
    function, meet, lines = "", "", ""
    meetings = CudaMeetings()
    if exchange.startswith("pull"):
        meetings = cuda_meetings(kind, "read")
        function = meetings.function
    elif exchange == "tagged words":
        lines = scratch("uint64_t", "parts", halves=True)
    else:
        name = "part" if exchange == "post" else "parts"
        lines = scratch("float", name, halves=True)
        function, meet = cuda_meet(kind, STAGED if exchange == "post" else SENT)
    text = fill(
        CUDA,
        parameters=PARAMETERS.replace("tvm::ffi::Optional", "Optional"),
        function=function,
        exchange=fill(
            CUDA_EXCHANGES[exchange],
            own=CUDA_OWN,
            enter=meetings.enter,
            scratch=lines,
            meet=meet,
            order=ORDERS[knobs["order"]],
        ),
        guard=meetings.leave,
        threads=knobs["threads"],
        before=meetings.before,
        after=meetings.after,
        export=EXPORT,
    )
    return cuda_finish(text)


FAMILIES = (
    Family("GradAccLoss", "cpp", CPP_CHOICES, cpp_source, cpp_makes_sense),
    Family("GradAccLoss", "cuda", CUDA_CHOICES, cuda_source, cuda_makes_sense),
)
