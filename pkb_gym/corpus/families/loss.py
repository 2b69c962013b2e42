"""GradAccLoss: one number of each rank, added up: all is latency."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
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
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          const int64_t count = *comm.peer<int64_t>(local_valid_tokens, r);
          if (count > 0) total += Sum(*comm.peer<T>(loss, r)) * Sum(count);
        }
        """,
    "push": """
        $own
        Sum* parts = $scratch;
        for (int r = 0; r < W; ++r) comm.peer(parts, r)[comm.rank] = own;
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += parts[r];
        }
        """,
    "post": """
        $own
        Sum* part = $scratch;
        *part = own;
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += *comm.peer(part, r);
        }
        """,
    "put": """
        $own
        Sum* parts = $scratch;
        for (int r = 0; r < W; ++r) comm.put(parts + comm.rank, &own, sizeof(Sum), r);
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += parts[r];
        }
        """,
}

MEETS: dict[Knob, str] = {
    "none": "",
    "barrier": "comm.barrier();",
    "two barriers": "comm.barrier();\ncomm.barrier();",
    "signals": "for (int r = 0; r < W; ++r) comm.signal(comm.rank, r);\nfor (int r = 0; r < W; ++r) comm.wait(r);",
}

CPP_CHOICES = {
    "exchange": tuple(CPP_EXCHANGES),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("none", "barrier", "two barriers", "signals"),
    "guard": ("halves", "barrier"),
    "sum": ("float", "double"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """What is sent needs signalling; what is pulled may have some all the same."""
    if knobs["exchange"] == "pull":
        return knobs["guard"] == "halves"
    return knobs["signalling"] != "none"


def cpp_source(knobs: Knobs) -> str:
    """The text of one kernel."""
    pull = knobs["exchange"] == "pull"
    meet = MEETS[knobs["signalling"]]
    halves = knobs["guard"] == "halves"
    scratch = "comm.scratch<Sum>(comm.epoch % 2 * W * sizeof(Sum))" if halves else "comm.scratch<Sum>()"
    exchange = fill(CPP_EXCHANGES[knobs["exchange"]], own=OWN, scratch=scratch, meet=meet, order=ORDERS[knobs["order"]])
    guard = meet if pull else "" if halves else "comm.barrier();  // the next call overwrites the scratch"
    text = fill(CPP, parameters=PARAMETERS, exchange=exchange, guard=guard, sum=knobs["sum"], export=EXPORT)
    return cpp_finish(text)


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
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          const int64_t count = *comm.peer(v.tokens, r);
          if (count > 0) total += float(*comm.peer(v.loss, r)) * float(count);
        }
        """,
    "pull, thread by rank": """
        if (threadIdx.x < W) {
          const int64_t count = *comm.peer(v.tokens, threadIdx.x);
          if (count > 0) total = float(*comm.peer(v.loss, threadIdx.x)) * float(count);
        }
        total = pkb::reduce_warp(total, [](float a, float b) { return a + b; });
        """,
    "push": """
        $own
        float* parts = comm.scratch<float>(comm.epoch % 2 * pkb::kMaxRanks * sizeof(float));
        if (threadIdx.x < W) comm.peer(parts, threadIdx.x)[comm.rank] = own;
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += parts[r];
        }
        """,
    "post": """
        $own
        float* part = comm.scratch<float>(comm.epoch % 2 * sizeof(float));
        if (threadIdx.x == 0) *part = own;
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += *comm.peer(part, r);
        }
        """,
    "tagged words": """
        $own
        uint64_t* parts = comm.scratch<uint64_t>(comm.epoch % 2 * pkb::kMaxRanks * sizeof(uint64_t));
        const uint32_t tag = uint32_t(comm.epoch);
        if (threadIdx.x < W) pkb::store_tagged(comm.peer(parts, threadIdx.x) + comm.rank, own, tag);
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          total += pkb::wait_tagged(parts + r, tag);
        }
        """,
}

CUDA_MEETS: dict[Knob, str] = {
    "none": "",
    "block barrier": "comm.barrier_blocks();",
    "signals": """
        __syncthreads();
        if (threadIdx.x < W) {
          comm.signal(comm.rank, threadIdx.x);
          comm.wait(threadIdx.x);
        }
        __syncthreads();
        """,
}

CUDA_CHOICES = {
    "exchange": tuple(CUDA_EXCHANGES),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("none", "block barrier", "signals"),
    "threads": (32, 64, 256, 1024),
    "after": ("", "comm.barrier();"),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """What is sent needs signalling, tagged words bring their own."""
    exchange, signalling = knobs["exchange"], knobs["signalling"]
    if exchange == "pull, thread by rank" and (knobs["order"] != "from 0" or signalling != "none"):
        return False
    if exchange in ("push", "post"):
        return signalling != "none"
    return signalling == "none" or (exchange == "pull, one thread" and knobs["order"] == "from 0")


def cuda_source(knobs: Knobs) -> str:
    """The text of one kernel."""
    meet = CUDA_MEETS[knobs["signalling"]].strip("\n")
    exchange = str(knobs["exchange"])
    pulls = exchange.startswith("pull")
    text = fill(
        CUDA,
        parameters=PARAMETERS.replace("tvm::ffi::Optional", "Optional"),
        exchange=fill(CUDA_EXCHANGES[exchange], own=CUDA_OWN, meet=meet, order=ORDERS[knobs["order"]]),
        guard=meet if pulls else "",
        threads=knobs["threads"],
        after=knobs["after"],
        export=EXPORT,
    )
    return cuda_finish(text)


FAMILIES = (
    Family("GradAccLoss", "cpp", CPP_CHOICES, cpp_source, cpp_makes_sense),
    Family("GradAccLoss", "cuda", CUDA_CHOICES, cuda_source, cuda_makes_sense),
)
