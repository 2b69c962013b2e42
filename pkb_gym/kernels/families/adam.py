"""FusedAdamAllGather: Adam on every rank's slice of the parameters, and all slices for everyone."""

from __future__ import annotations

from dataclasses import asdict

from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    IN_KERNEL,
    Access,
    cpp_meet,
    cuda_meet,
    cuda_meetings,
    signal_all,
    wait_for_all,
)
from pkb_gym.kernels.pieces import are_resident, cuda_geometry

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
void solution(TensorView grad_shard, TensorView master_shard, TensorView exp_avg, TensorView exp_avg_sq, double lr,
              double beta1, double beta2, double eps, int64_t step, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const int64_t p = grad_shard.numel();
  const float correct1 = 1 - std::pow(beta1, step), correct2 = 1 - std::pow(beta2, step);
  const auto updated = [&](int r, int64_t k) {
    const float g = comm.peer<pkb::bf16>(grad_shard, r)[k];
    const float m = beta1 * comm.peer<pkb::bf16>(exp_avg, r)[k] + (1 - beta1) * g;
    const float v = beta2 * comm.peer<pkb::bf16>(exp_avg_sq, r)[k] + (1 - beta2) * g * g;
    const float change = m / correct1 / (std::sqrt(v / correct2) + float(eps));
    return pkb::bf16(comm.peer<pkb::bf16>(master_shard, r)[k] - float(lr) * change);
  };
  pkb::bf16* y = static_cast<pkb::bf16*>(out.data_ptr());
  $own
  $begin
  $exchange
  $end
}
"""

CPP_LOOPS: dict[Knob, str] = {
    "push": """
        for (int64_t at = 0; at < p; at += $chunk) {
          const int64_t count = std::min<int64_t>($chunk, p - at);
          for (int64_t k = at; k < at + count; ++k) own[k] = updated(comm.rank, k);
          for (int i = 1; i < W; ++i) {
            const int r = $order;
            comm.put(own + at, own + at, count * sizeof(pkb::bf16), r);
          }
        }
        """,
    "push late": """
        for (int64_t k = 0; k < p; ++k) own[k] = updated(comm.rank, k);
        $meet
        for (int i = 1; i < W; ++i) {
          const int r = $order;
          comm.put(own, own, p * sizeof(pkb::bf16), r);
        }
        """,
    "push elements": """
        for (int64_t k = 0; k < p; ++k) {
          const pkb::bf16 value = updated(comm.rank, k);
          for (int i = 0; i < W; ++i) {
            const int r = $order;
            comm.peer(own, r)[k] = value;
          }
        }
        """,
    "pull": """
        for (int64_t k = 0; k < p; ++k) own[k] = updated(comm.rank, k);
        $meet
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          if (r != comm.rank) comm.get(y + r * p, y + r * p, p * sizeof(pkb::bf16), r);
        }
        """,
    "all slices": """
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          for (int64_t k = 0; k < p; ++k) y[r * p + k] = updated(r, k);
        }
        """,
}

UPDATED = "peers have updated their slices"

CPP_CHOICES: Choices = {
    "exchange": CPP_LOOPS,
    "chunk": ("p", 64, 128, 256, 512, 1024, 4096),
    "order": ("staggered", "from 0", "from last"),
    "signalling": ("barrier", "signals", "split signals"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Chunks are for pushing at once; who pushes begins with the next rank; split signals are for pushing late."""
    if knobs["signalling"] == "split signals" and knobs["exchange"] != "push late":
        return False
    if str(knobs["exchange"]) in ("push", "push late") and knobs["order"] != "staggered":
        return False
    return knobs["exchange"] == "push" or knobs["chunk"] == "p"


def cpp_pieces(knobs: Knobs) -> Pieces:
    """When ranks wait for each other: a rank's own update needs no other."""
    exchange, kind = knobs["exchange"], knobs["signalling"]
    access: Access = "read" if exchange == "all slices" else "write"
    begin, meet, end = cpp_meet(kind, BEGUN[access]), "", cpp_meet(kind, DONE[access], 1)
    if exchange == "pull":
        begin, meet, end = "", cpp_meet(kind, UPDATED), cpp_meet(kind, "by now peers have read this rank's slice", 1)
    elif exchange == "push late" and kind == "split signals":
        begin, meet = signal_all(), wait_for_all(BEGUN[access])
    elif exchange == "push late":
        begin, meet = "", begin
    own = "" if exchange == "all slices" else "pkb::bf16* own = y + comm.rank * p;"
    return {"own": own, "begin": begin, "meet": meet, "end": end}


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
using bf16 = __nv_bfloat16;
using tvm::ffi::TensorView;

$constants

struct Adam {
  const bf16 *g, *w, *m, *v;
  float lr, beta1, beta2, eps, correct1, correct2;
};

__device__ bf16 updated(const Adam& a, const pkb::Device& comm, int r, int64_t k) {
  const float g = comm.peer(a.g, r)[k];
  const float m = a.beta1 * float(comm.peer(a.m, r)[k]) + (1 - a.beta1) * g;
  const float v = a.beta2 * float(comm.peer(a.v, r)[k]) + (1 - a.beta2) * g * g;
  return bf16(float(comm.peer(a.w, r)[k]) - a.lr * (m / a.correct1 / (sqrtf(v / a.correct2) + a.eps)));
}

$function

__global__ void __launch_bounds__(kThreads)
step_and_gather(const Adam a, bf16* y, int64_t p, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  const int64_t first = blockIdx.x * int64_t(kThreads) + threadIdx.x, stride = int64_t(gridDim.x) * kThreads;
  $enter
  $exchange
  $leave
}

template <class T>
const T* data(const TensorView& x) {
  return static_cast<const T*>(x.data_ptr());
}

void solution(TensorView grad_shard, TensorView master_shard, TensorView exp_avg, TensorView exp_avg_sq, double lr,
              double beta1, double beta2, double eps, int64_t step, TensorView out, pkb::Comm comm) {
  const int64_t p = grad_shard.numel();
  const Adam a{data<bf16>(grad_shard), data<bf16>(master_shard), data<bf16>(exp_avg), data<bf16>(exp_avg_sq),
               float(lr), float(beta1), float(beta2), float(eps),
               float(1 - std::pow(beta1, step)), float(1 - std::pow(beta2, step))};
  bf16* y = static_cast<bf16*>(out.data_ptr());
  $before
  $line
  step_and_gather<<<$blocks, kThreads, 0, comm.cuda_stream()>>>(a, y, p, comm.device());
  PKB_CUDA_LAUNCHED();
  $after
}
"""

CUDA_LOOPS: dict[Knob, str] = {
    "push": """
        for (int64_t k = first; k < p; k += stride) {
          const bf16 value = updated(a, comm, comm.rank, k);
          for (int i = 0; i < W; ++i) {
            const int r = $order;
            comm.peer(y, r)[comm.rank * p + k] = value;
          }
        }
        """,
    "push pairs": """
        for (int64_t k = 2 * first; k + 1 < p; k += 2 * stride) {
          const __nv_bfloat162 pair(updated(a, comm, comm.rank, k), updated(a, comm, comm.rank, k + 1));
          for (int i = 0; i < W; ++i) {
            const int r = $order;
            bf16* to = comm.peer(y, r) + comm.rank * p + k;
            to[0] = pair.x;
            to[1] = pair.y;
          }
        }
        if (p % 2 && first == 0) {
          for (int r = 0; r < W; ++r) comm.peer(y, r)[comm.rank * p + p - 1] = updated(a, comm, comm.rank, p - 1);
        }
        """,
    "pull": """
        for (int64_t k = first; k < p; k += stride) y[comm.rank * p + k] = updated(a, comm, comm.rank, k);
        $meet
        for (int i = 1; i < W; ++i) {
          const int r = $order;
          for (int64_t k = first; k < p; k += stride) y[r * p + k] = comm.peer(y, r)[r * p + k];
        }
        """,
    "all slices": """
        for (int i = 0; i < W; ++i) {
          const int r = $order;
          for (int64_t k = first; k < p; k += stride) y[r * p + k] = updated(a, comm, r, k);
        }
        """,
    "copy engine": """
        for (int64_t k = first; k < p; k += stride) y[comm.rank * p + k] = updated(a, comm, comm.rank, k);
        """,
}

CUDA_SENDS = """\
bf16* own = y + comm.rank * p;
for (int i = 1; i < comm.world_size; ++i) {
  comm.put(own, own, p * sizeof(bf16), (comm.rank + i) % comm.world_size);
}"""

CUDA_CHOICES: Choices = {
    "exchange": CUDA_LOOPS,
    "threads": (256, 64, 512, 1024),
    "blocks": ("by size", 1, 16, 64, 132),
    "order": ("staggered", "from 0"),
    "signalling": ("host barrier", "begun words", "block barrier", "signals"),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Pulling needs blocks that wait for each other, which are few; it begins with the next rank."""
    exchange, signalling, resident = (
        knobs["exchange"],
        knobs["signalling"],
        are_resident(knobs["threads"], knobs["blocks"]),
    )
    if exchange in ("pull", "copy engine") and knobs["order"] != "staggered":
        return False
    if exchange == "pull":
        return signalling in IN_KERNEL and resident
    if exchange == "copy engine":
        return signalling == "host barrier"
    if signalling in IN_KERNEL:
        return resident and knobs["threads"] == 256
    return signalling == "host barrier" or (knobs["threads"] == 256 and knobs["order"] == "staggered")


def cuda_pieces(knobs: Knobs) -> Pieces:
    """When ranks wait for each other, and the copies of the host."""
    exchange, kind = str(knobs["exchange"]), knobs["signalling"]
    meetings = cuda_meetings(kind, "read" if exchange == "all slices" else "write")
    constants, line, blocks = cuda_geometry(knobs["threads"], knobs["blocks"], "p", "kThreads")
    pieces = {"constants": constants, "line": line, "blocks": blocks, "meet": "", **asdict(meetings)}
    if exchange == "pull":
        leave = meetings.leave.replace(DONE["write"], "by now peers have read this rank's slice")
        pieces |= {"meet": cuda_meet(kind, UPDATED)[1], "enter": "", "leave": leave}
    elif exchange == "copy engine":
        # The update needs no other rank: the barrier stands before the first write to one.
        pieces |= {"before": "", "after": f"{meetings.before}\n{CUDA_SENDS}\n{meetings.after}"}
    return pieces


FAMILIES = (
    Family("FusedAdamAllGather", "cpp", CPP_CHOICES, CPP, cpp_pieces, cpp_makes_sense),
    Family("FusedAdamAllGather", "cuda", CUDA_CHOICES, CUDA, cuda_pieces, cuda_makes_sense),
)
