"""CUDA kernels that add up over ranks, for the families of `pkb_gym.kernels.families.sums`."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.kernels.family import Choices, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import ARRIVE, DONE, IN_KERNEL, SENT, Access, cuda_meetings
from pkb_gym.kernels.pieces import are_resident, cuda_geometry, lines

CUDA_TEMPLATE = """
$constants

$device

$function

template <class T>
__global__ void __launch_bounds__(kThreads)
add_up(const T* x, T* y, uint64_t n, ${root_parameter}const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  $share
  $enter
  $loop
  $after
}

void solution(TensorView tensor, ${root_argument}TensorView out, pkb::Comm comm) {
  const uint64_t n = $elements$and_world_size;
  $blocks_line
  pkb::with_float_type(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(tensor.data_ptr());
    T* y = static_cast<T*>(out.data_ptr());
    $host_before
    add_up<T><<<$blocks, kThreads, 0, comm.cuda_stream()>>>($source, y, n, ${root_value}comm.device());
    PKB_CUDA_LAUNCHED();
  });
  $host_after
}
"""

CUDA_PACKET = """
template <class T, int kLanes, class Term>
__device__ pkb::Packet<T, kLanes> sum_of(int W, const Term& term) {
  pkb::Accumulator<T> sums[kLanes] = {};
  $unroll
  for (int i = 0; i < W; ++i) {
    const auto packet = pkb::load_packet<T, kLanes>(term(i));
    for (int k = 0; k < kLanes; ++k) sums[k] += pkb::Accumulator<T>(packet.lanes[k]);
  }
  pkb::Packet<T, kLanes> sum;
  for (int k = 0; k < kLanes; ++k) sum.lanes[k] = T(sums[k]);
  return sum;
}
"""

CUDA_PACKETS = """
constexpr int kLanes = $bytes > sizeof(T) ? $bytes / sizeof(T) : 1;
const uint64_t step = uint64_t(gridDim.x) * kThreads * kLanes;
for (uint64_t at = begin + (blockIdx.x * uint64_t(kThreads) + threadIdx.x) * kLanes; at < end; at += step) {
  if (at + kLanes <= end) {
    const auto sum = sum_of<T, kLanes>(W, [&](int i) { return $term + at; });
    ${each}pkb::store_packet($result + at, sum);
  } else {
    for (uint64_t k = at; k < end; ++k) {
      const auto sum = sum_of<T, 1>(W, [&](int i) { return $term + k; });
      ${each}pkb::store_packet($result + k, sum);
    }
  }
}
"""

CUDA_ELEMENTS = """
for (uint64_t k = begin + blockIdx.x * uint64_t(kThreads) + threadIdx.x; k < end; k += gridDim.x * kThreads) {
  pkb::Accumulator<T> sum = 0;
  for (int i = 0; i < W; ++i) {
    const T* term = $term;
    sum += pkb::Accumulator<T>(term[k]);
  }
  ${each}$result[k] = T(sum);
}
"""

CUDA_LIBRARY = """
const auto term = [&](int i) { return $term + begin; };
const auto result = [&](int r) { return $result + begin; };
pkb::add_up<T>(end - begin, W, term, $results, result, blockIdx.x, gridDim.x);
"""

CUDA_SHARES: dict[Knob, str] = {
    "all": "const uint64_t begin = 0, end = n;",
    "lines": """
        const uint64_t part = (n + 64 * W - 1) / (64 * W) * 64;
        const uint64_t begin = comm.rank * part < n ? comm.rank * part : n, end = begin + part < n ? begin + part : n;
        """,
    "root": "const uint64_t begin = 0, end = comm.rank == dst ? n : 0;",
    "helpers": """
        const uint64_t helpers = W > 1 ? W - 1 : 1, part = (n + 64 * helpers - 1) / (64 * helpers) * 64;
        const uint64_t place = comm.rank < dst || W == 1 ? comm.rank : comm.rank - 1;
        const uint64_t begin = (comm.rank == dst && W > 1) || place * part > n ? n : place * part;
        const uint64_t end = begin + part < n ? begin + part : n;
        """,
}

CUDA_TO_INBOXES = """
T* inbox = comm.scratch<T>();  // nobody ends a call before all have read theirs
const uint64_t part = (n + 64 * W - 1) / (64 * W) * 64;
for (int r = 0; r < comm.world_size; ++r) {
  const uint64_t from = std::min(n, r * part), count = std::min(n, from + part) - from;
  comm.put(inbox + comm.rank * part, x + from, count * sizeof(T), r);
}
comm.barrier();  // $sent
"""

CUDA_BLOCKS_TO_INBOXES = """
T* inbox = comm.scratch<T>();  // nobody ends a call before all have read theirs
for (int r = 0; r < comm.world_size; ++r) comm.put(inbox + comm.rank * n, x + r * n, n * sizeof(T), r);
comm.barrier();  // $sent
"""

OWN_COPY = """
if (comm.rank != dst) {
  for (uint64_t k = blockIdx.x * uint64_t(kThreads) + threadIdx.x; k < n; k += gridDim.x * kThreads) y[k] = x[k];
}
"""

CUDA_CHOICES: dict[str, tuple[Knob, ...]] = {
    "algorithm": ("two shot", "one shot", "inbox"),
    "access": ("16 bytes", "8 bytes", "4 bytes", "element", "pkb::add_up"),
    "threads": (256, 64, 512, 1024),
    "blocks": ("by size", 1, 16, 64, 132),
    "unroll": ("", "#pragma unroll 4"),
    "order": ("from 0", "staggered"),
    "signalling": ("host barrier", "begun words", "block barrier", "split barrier", "signals"),
}

CUDA_REDUCE_CHOICES: Choices = CUDA_CHOICES | {
    "algorithm": ("helpers", "lines", "root", "inbox"),
    "own": ("kernel", "copy engine"),
}

CUDA_REDUCE_SCATTER_CHOICES: Choices = CUDA_CHOICES | {"algorithm": ("in place", "inbox")}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Each choice varies around plain ones; blocks that wait are few, so that all of them are resident."""
    access, threads, blocks, signalling = (knobs[name] for name in ("access", "threads", "blocks", "signalling"))
    plain = threads == 256 and not knobs["unroll"] and knobs["order"] == "from 0"
    if access == "pkb::add_up" and (threads != 256 or knobs["unroll"]):
        return False
    if access == "element" and (knobs["unroll"] or knobs["order"] != "from 0"):
        return False
    if threads != 256 and (blocks != 64 or knobs["unroll"]):
        return False
    if knobs["unroll"] and access not in ("16 bytes", "8 bytes"):
        return False
    if knobs["order"] != "from 0" and (threads != 256 or knobs["unroll"]):
        return False
    if knobs.get("own") == "copy engine" and not plain:
        return False
    if knobs["algorithm"] == "inbox":
        return signalling == "host barrier" and plain
    if signalling == "split barrier" and knobs.get("own") != "kernel":
        return False
    if signalling in IN_KERNEL:
        return access in ("16 bytes", "element") and are_resident(threads, blocks) and plain
    if signalling == "begun words":
        return access in ("16 bytes", "8 bytes") and plain and blocks in ("by size", 64, 132)
    return True


@dataclass(frozen=True)
class SumParts:
    """The parts that differ between the problems.

    Attributes:
        share: Elements that a rank adds up, a key of `CUDA_SHARES`.
        elements: Number of elements, as an expression of the host.
        term: First element of the rank that `{}` stands for.
        staged: First element of that rank's terms in an inbox.
        to_inboxes: Lines of the host that fill the inboxes.
        results: Number of ranks that receive the sums, and the address of each.
        root: Parameter that names the only rank which receives them; empty where several do.
    """

    share: Knob
    results: tuple[str, str]
    root: str = ""
    elements: str = "tensor.numel()"
    term: str = "comm.peer(x, {})"
    staged: str = "x + {} * part - begin"
    to_inboxes: str = CUDA_TO_INBOXES


def cuda_all_reduce(knobs: Knobs) -> Pieces:
    """Every rank adds up all elements, or its share of them for all."""
    if knobs["algorithm"] == "one shot":
        return _cuda(knobs, SumParts("all", ("1", "y")))
    return _cuda(knobs, SumParts("lines", ("W", "comm.peer(y, r)")))


def cuda_reduce(knobs: Knobs) -> Pieces:
    """Some ranks add up their shares for the root."""
    share = "lines" if knobs["algorithm"] == "inbox" else knobs["algorithm"]
    return _cuda(knobs, SumParts(share, ("1", "comm.peer(y, dst)"), root="dst"))


def cuda_reduce_scatter(knobs: Knobs) -> Pieces:
    """Every rank adds up its block."""
    block = "comm.peer(x, {}) + comm.rank * n"
    return _cuda(
        knobs, SumParts("all", ("1", "y"), "", "out.numel()", block, "x + {} * n", to_inboxes=CUDA_BLOCKS_TO_INBOXES)
    )


def _cuda(knobs: Knobs, problem: SumParts) -> Pieces:
    access, inbox, root = str(knobs["access"]), knobs["algorithm"] == "inbox", problem.root
    rank = "i" if knobs["order"] == "from 0" else "(comm.rank + i) % W"
    term = (problem.staged if inbox else problem.term).format(rank)
    results, own_only = problem.results, problem.share in ("all", "root")
    each = "for (int r = 0; r < W; ++r) " if results[0] == "W" else ""
    template = {"element": CUDA_ELEMENTS, "pkb::add_up": CUDA_LIBRARY}.get(access, CUDA_PACKETS)
    work = "n / 8" if own_only else "n / W / 8"
    constants, line, blocks = cuda_geometry(knobs["threads"], knobs["blocks"], work, "kThreads")
    access_kind: Access = "read" if problem.share == "all" else "touch"
    meetings = cuda_meetings(knobs["signalling"], access_kind)
    own_in_kernel = bool(root) and not inbox and knobs.get("own") == "kernel"
    enter, after = [meetings.enter], [meetings.leave]
    if own_in_kernel and knobs["signalling"] == "split barrier":
        enter = [ARRIVE, OWN_COPY, meetings.enter]
    elif own_in_kernel:
        after.insert(0, OWN_COPY)
    before = [problem.to_inboxes if inbox else meetings.before]
    if root and not own_in_kernel:
        before.insert(0, f"if (comm.rank != {root}) comm.put(y, x, n * sizeof(T), comm.rank);")
    return {
        "constants": constants,
        "sent": SENT,
        "device": CUDA_PACKET if template is CUDA_PACKETS else "",
        "root_parameter": f"int {root}, " if root else "",
        "function": meetings.function,
        "share": CUDA_SHARES[problem.share],
        "elements": problem.elements,
        "and_world_size": ", W = comm.world_size" if "W" in line or inbox else "",
        "enter": lines(*enter),
        "loop": template,
        "bytes": access.removesuffix(" bytes"),
        "term": term,
        "each": each,
        "results": results[0],
        "result": results[1],
        "after": lines(*after),
        "root_argument": f"int64_t {root}, " if root else "",
        "blocks_line": line,
        "host_before": lines(*before),
        "blocks": blocks,
        "source": "inbox" if inbox else "x",
        "root_value": f"int({root}), " if root else "",
        "host_after": f"comm.barrier();  // {DONE['write']}" if inbox else meetings.after,
    }
