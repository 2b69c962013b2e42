"""Sums over ranks: AllReduce, which everyone receives, and Reduce, which one rank does."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
from pkb_gym.corpus.families.meetings import BEGUN, DONE, SENT, STAGED, cpp_meet
from pkb_gym.corpus.families.pieces import EXPORT, ORDERS, cpp_dispatch, cpp_finish, lines
from pkb_gym.corpus.families.sums_cuda import (
    CUDA_CHOICES,
    CUDA_REDUCE_CHOICES,
    cuda_all_reduce,
    cuda_makes_sense,
    cuda_reduce,
)

CPP = """
using tvm::ffi::TensorView;

$constant

template <class T, class Sum>
void add_up(const TensorView& tensor, ${root_parameter}const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t n = tensor.numel();
  const T* x = static_cast<const T*>(tensor.data_ptr());
  T* y = static_cast<T*>(out.data_ptr());
  $share
  $before
  $loop
  $after
}

void solution(TensorView tensor, ${root_argument}TensorView out, pkb::Comm comm) {
  $dispatch
}

$export
"""

CPP_CHUNKS = """
Sum sums[kChunk];
T rounded[kChunk];
for (int64_t at = begin; at < end; at += kChunk) {
  const int64_t count = std::min<int64_t>(kChunk, end - at);
  for (int64_t k = 0; k < count; ++k) sums[k] = 0;
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    const T* term = $term + at;
    for (int64_t k = 0; k < count; ++k) sums[k] += Sum(term[k]);
  }
  for (int64_t k = 0; k < count; ++k) rounded[k] = T(sums[k]);
  $store
}
"""

CPP_ELEMENTS = """
for (int64_t k = begin; k < end; ++k) {
  Sum sum = 0;
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    const T* term = $term;
    sum += Sum(term[k]);
  }
  $store
}
"""

CPP_SHARES: dict[Knob, str] = {
    "all": "const int64_t begin = 0, end = n;",
    "even": "const int64_t begin = n * comm.rank / W, end = n * (comm.rank + 1) / W;",
    "lines": """
        const int64_t part = (n + 64 * W - 1) / (64 * W) * 64;
        const int64_t begin = std::min(n, comm.rank * part), end = std::min(n, begin + part);
        """,
    "root": "const int64_t begin = 0, end = comm.rank == dst ? n : 0;",
    "helpers": """
        const int64_t helpers = W > 1 ? W - 1 : 1, part = (n + 64 * helpers - 1) / (64 * helpers) * 64;
        const int64_t place = comm.rank < dst || W == 1 ? comm.rank : comm.rank - 1;
        const int64_t begin = comm.rank == dst && W > 1 ? n : std::min(n, place * part);
        const int64_t end = std::min(n, begin + part);
        """,
}
"""Which elements a rank adds up."""

CPP_TO_INBOXES = """
$scratch
for (int r = 0; r < W; ++r) {
  const int64_t from = std::min(n, r * part), count = std::min(n, from + part) - from;
  comm.put(inbox + comm.rank * part, x + from, count * sizeof(T), r);
}
$meeting
"""

CPP_FROM_ALL: dict[Knob, str] = {
    "even": """
        for (int r = 0; r < W; ++r) {
          const int64_t from = n * r / W, to = n * (r + 1) / W;
          comm.get(y + from, outbox + from, (to - from) * sizeof(T), r);
        }
        """,
    "lines": """
        for (int r = 0; r < W; ++r) {
          const int64_t from = std::min(n, r * part), to = std::min(n, from + part);
          comm.get(y + from, outbox + from, (to - from) * sizeof(T), r);
        }
        """,
}

CPP_CHOICES = {
    "algorithm": ("two shot", "one shot", "two shot, pulled", "inbox"),
    "chunk": (1024, 32, 128, 256, 4096, 1),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
    "parts": ("lines", "even"),
}

REDUCE_CHOICES = {
    "algorithm": ("lines", "helpers", "root", "inbox"),
    "chunk": (1024, 32, 128, 256, 4096, 1),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
    "own": ("last", "first"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Staged variants have one order; signals come with few chunk sizes; parts are for shared sums."""
    if knobs["algorithm"] in ("one shot", "inbox") and knobs.get("parts", "lines") != "lines":
        return False
    if knobs.get("own") == "first" and knobs["order"] != "from 0":
        return False
    if knobs["algorithm"] in ("two shot, pulled", "inbox"):
        return knobs["order"] == "from 0"
    return knobs["signalling"] == "barrier" or knobs["chunk"] in (1024, 128, 1)


def cpp_all_reduce(knobs: Knobs) -> str:
    """The text of one kernel for AllReduce."""
    meet, algorithm = knobs["signalling"], knobs["algorithm"]
    share, term = knobs["parts"], "comm.peer(x, r)"
    before, after = cpp_meet(meet, BEGUN["touch"]), [cpp_meet(meet, DONE["touch"], 1)]
    stores = (
        "for (int r = 0; r < W; ++r) comm.put(y + at, rounded, count * sizeof(T), r);",
        "for (int r = 0; r < W; ++r) comm.peer(y, r)[k] = T(sum);",
    )
    if algorithm == "one shot":
        share, stores = "all", ("std::memcpy(y + at, rounded, count * sizeof(T));", "y[k] = T(sum);")
        before, after = cpp_meet(meet, BEGUN["read"]), [cpp_meet(meet, DONE["read"], 1)]
    elif algorithm == "two shot, pulled":
        outbox = "T* outbox = comm.scratch<T>();  // written again when all have begun the next call"
        before = f"{cpp_meet(meet, BEGUN['read'])}\n{outbox}"
        stores = ("std::memcpy(outbox + at, rounded, count * sizeof(T));", "outbox[k] = T(sum);")
        after = [cpp_meet(meet, f"{STAGED}, arguments are read", 1), fill(CPP_FROM_ALL[share])]
    elif algorithm == "inbox":
        before, term = _to_inboxes(meet), "inbox + r * part - begin"
        after = [cpp_meet(meet, DONE["write"], 1)]
    return _cpp(knobs, share, term, before, stores, after, root="")


def cpp_reduce(knobs: Knobs) -> str:
    """The text of one kernel for Reduce."""
    own = "if (comm.rank != dst) std::memcpy(y, x, n * sizeof(T));"
    share, term, meet = knobs["algorithm"], "comm.peer(x, r)", knobs["signalling"]
    begin, end = cpp_meet(meet, BEGUN["touch"]), cpp_meet(meet, DONE["touch"], 1)
    if share == "inbox":
        share, term, begin, end = (
            "lines",
            "inbox + r * part - begin",
            _to_inboxes(meet),
            cpp_meet(meet, DONE["write"], 1),
        )
    before = [own, begin] if knobs["own"] == "first" else [begin]
    after = [own, end] if knobs["own"] == "last" else [end]
    stores = ("comm.put(y + at, rounded, count * sizeof(T), dst);", "comm.peer(y, dst)[k] = T(sum);")
    return _cpp(knobs, share, term, lines(before), stores, after, root="dst")


def _to_inboxes(meet: Knob) -> str:
    """Terms are pushed into scratch, which is always there; who has sent has begun: its output may be written."""
    inbox = "T* inbox = comm.scratch<T>();  // nobody ends a call before all have read theirs"
    return fill(CPP_TO_INBOXES, scratch=inbox, meeting=cpp_meet(meet, SENT))


def _cpp(
    knobs: Knobs, share: Knob, term: str, before: str, stores: tuple[str, str], after: list[str], root: str
) -> str:
    by_element = knobs["chunk"] == 1
    loop, store = (CPP_ELEMENTS, stores[1]) if by_element else (CPP_CHUNKS, stores[0])
    arguments = f"tensor, int({root}), out, comm" if root else "tensor, out, comm"
    text = fill(
        CPP,
        constant="" if by_element else f"constexpr int64_t kChunk = {knobs['chunk']};",
        root_parameter=f"int {root}, " if root else "",
        share=CPP_SHARES[share],
        before=before,
        loop=fill(loop, order=ORDERS[knobs["order"]], term=term, store=store),
        after=lines(after),
        root_argument=f"int64_t {root}, " if root else "",
        dispatch=cpp_dispatch("add_up", "tensor", arguments),
        export=EXPORT,
    )
    return cpp_finish(text)


FAMILIES = (
    Family("AllReduce", "cpp", CPP_CHOICES, cpp_all_reduce, cpp_makes_sense),
    Family("Reduce", "cpp", REDUCE_CHOICES, cpp_reduce, cpp_makes_sense),
    Family("AllReduce", "cuda", CUDA_CHOICES, cuda_all_reduce, cuda_makes_sense),
    Family("Reduce", "cuda", CUDA_REDUCE_CHOICES, cuda_reduce, cuda_makes_sense),
)
