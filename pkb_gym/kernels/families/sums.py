"""Sums over ranks: AllReduce for everyone, Reduce for one rank, ReduceScatter by blocks."""

from __future__ import annotations

from functools import partial

from pkb_gym.kernels.families.sums_cuda import (
    CUDA_CHOICES,
    CUDA_REDUCE_CHOICES,
    CUDA_REDUCE_SCATTER_CHOICES,
    CUDA_TEMPLATE,
    cuda_all_reduce,
    cuda_makes_sense,
    cuda_reduce,
    cuda_reduce_scatter,
)
from pkb_gym.kernels.family import Choices, Family, Knob, Knobs, Pieces
from pkb_gym.kernels.meetings import BEGUN, DONE, FREE, SENT, STAGED, cpp_meet, scratch
from pkb_gym.kernels.pieces import cpp_dispatch, lines

CPP = """
$constant

template <class T, class Sum>
void add_up(const TensorView& tensor, ${root_parameter}const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t n = $elements;
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
"""Range of elements that a rank adds up."""

CPP_TO_INBOXES = """
T* inbox = comm.scratch<T>();  // nobody ends a call before all have read theirs
for (int r = 0; r < W; ++r) {
  const int64_t from = std::min(n, r * part), count = std::min(n, from + part) - from;
  comm.put(inbox + comm.rank * part, x + from, count * sizeof(T), r);
}
$sent
"""

CPP_BLOCKS_TO_INBOXES = """
for (int r = 0; r < W; ++r) comm.put(inbox + comm.rank * n, x + r * n, n * sizeof(T), r);
$sent
"""

CPP_STAGE = """
comm.put(outbox, x, W * n * sizeof(T), comm.rank);
$staged
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

CPP_CHOICES: Choices = {
    "algorithm": ("two shot", "one shot", "two shot, pulled", "inbox"),
    "chunk": (1024, 32, 128, 256, 4096, 1),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
    "parts": ("lines", "even"),
}

REDUCE_CHOICES: Choices = {
    "algorithm": ("lines", "helpers", "root", "inbox"),
    "chunk": (1024, 32, 128, 256, 4096, 1),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
    "own": ("last", "first"),
}


REDUCE_SCATTER_CHOICES: Choices = {
    "algorithm": ("in place", "inbox", "outbox"),
    "chunk": (1024, 1, 32, 128, 256, 4096),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
    "guard": ("halves", "barrier"),
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


def reduce_scatter_makes_sense(knobs: Knobs) -> bool:
    """Only what is staged has a guard, and it is added up in one order."""
    return knobs["guard"] == "halves" if knobs["algorithm"] == "in place" else knobs["order"] == "from 0"


def cpp_all_reduce(knobs: Knobs) -> Pieces:
    """Every rank adds up all elements, or its share of them for all."""
    meet, algorithm = knobs["signalling"], knobs["algorithm"]
    begun, done = (cpp_meet(meet, BEGUN["touch"]), cpp_meet(meet, DONE["touch"], 1))
    if algorithm == "one shot":
        begun, done = cpp_meet(meet, BEGUN["read"]), cpp_meet(meet, DONE["read"], 1)
        return _cpp(knobs, "all", begun, done, store=OWN_STORES)
    share = knobs["parts"]
    if algorithm == "two shot, pulled":
        outbox = "T* outbox = comm.scratch<T>();  // written again when all have begun the next call"
        begun = lines(cpp_meet(meet, BEGUN["read"]), outbox)
        done = lines(cpp_meet(meet, f"{STAGED}, arguments are read", 1), CPP_FROM_ALL[share])
        stores = ("std::memcpy(outbox + at, rounded, count * sizeof(T));", "outbox[k] = T(sum);")
        return _cpp(knobs, share, begun, done, store=stores)
    stores = (
        "for (int r = 0; r < W; ++r) comm.put(y + at, rounded, count * sizeof(T), r);",
        "for (int r = 0; r < W; ++r) comm.peer(y, r)[k] = T(sum);",
    )
    if algorithm == "inbox":
        return _cpp(knobs, share, CPP_TO_INBOXES, cpp_meet(meet, DONE["write"], 1), store=stores, term=FROM_INBOX)
    return _cpp(knobs, share, begun, done, store=stores)


def cpp_reduce(knobs: Knobs) -> Pieces:
    """Some ranks add up their shares for the root; the others copy their own tensors as well."""
    own = "if (comm.rank != dst) std::memcpy(y, x, n * sizeof(T));"
    share, term, meet = knobs["algorithm"], "comm.peer(x, r)", knobs["signalling"]
    begin, end = cpp_meet(meet, BEGUN["touch"]), cpp_meet(meet, DONE["touch"], 1)
    if share == "inbox":
        share, term, begin, end = "lines", FROM_INBOX, CPP_TO_INBOXES, cpp_meet(meet, DONE["write"], 1)
    before = lines(own, begin) if knobs["own"] == "first" else begin
    after = lines(own, end) if knobs["own"] == "last" else end
    stores = ("comm.put(y + at, rounded, count * sizeof(T), dst);", "comm.peer(y, dst)[k] = T(sum);")
    return _cpp(knobs, share, before, after, store=stores, term=term, root="dst")


def cpp_reduce_scatter(knobs: Knobs) -> Pieces:
    """Every rank adds up its block of all ranks' tensors: where they lie, or from scratch."""
    algorithm, meet, halves = str(knobs["algorithm"]), knobs["signalling"], knobs["guard"] == "halves"
    added = partial(_cpp, knobs, "all", store=OWN_STORES, elements="out.numel()")
    if algorithm == "in place":
        begun, done = cpp_meet(meet, BEGUN["read"]), cpp_meet(meet, DONE["read"], 1)
        return added(begun, done, term="comm.peer(x, r) + comm.rank * n")
    inbox = algorithm == "inbox"
    term = "inbox + r * n" if inbox else "comm.peer(outbox, r) + comm.rank * n"
    begin = lines(scratch("T", algorithm, halves=halves), CPP_BLOCKS_TO_INBOXES if inbox else CPP_STAGE)
    return added(begin, "" if halves else FREE, term=term)


OWN_STORES = ("std::memcpy(y + at, rounded, count * sizeof(T));", "y[k] = T(sum);")
"""Lines that keep a chunk, and an element, of sums."""

FROM_INBOX = "inbox + r * part - begin"
"""Terms that were pushed into scratch, which is always there; who has sent has begun: its output may be written."""


def _cpp(
    knobs: Knobs,
    share: Knob,
    before: str,
    after: str,
    *,
    store: tuple[str, str],
    term: str = "comm.peer(x, r)",
    root: str = "",
    elements: str = "tensor.numel()",
) -> Pieces:
    by_element = knobs["chunk"] == 1
    arguments = f"tensor, int({root}), out, comm" if root else "tensor, out, comm"
    return {
        "constant": "" if by_element else "constexpr int64_t kChunk = $chunk;",
        "root_parameter": f"int {root}, " if root else "",
        "elements": elements,
        "share": CPP_SHARES[share],
        "before": before,
        "sent": cpp_meet(knobs["signalling"], SENT),
        "staged": cpp_meet(knobs["signalling"], STAGED),
        "loop": CPP_ELEMENTS if by_element else CPP_CHUNKS,
        "term": term,
        "store": store[by_element],
        "after": after,
        "root_argument": f"int64_t {root}, " if root else "",
        "dispatch": cpp_dispatch("add_up", "tensor", arguments),
    }


FAMILIES = (
    Family("AllReduce", "cpp", CPP_CHOICES, CPP, cpp_all_reduce, cpp_makes_sense),
    Family("Reduce", "cpp", REDUCE_CHOICES, CPP, cpp_reduce, cpp_makes_sense),
    Family("ReduceScatter", "cpp", REDUCE_SCATTER_CHOICES, CPP, cpp_reduce_scatter, reduce_scatter_makes_sense),
    Family("AllReduce", "cuda", CUDA_CHOICES, CUDA_TEMPLATE, cuda_all_reduce, cuda_makes_sense),
    Family("Reduce", "cuda", CUDA_REDUCE_CHOICES, CUDA_TEMPLATE, cuda_reduce, cuda_makes_sense),
    Family("ReduceScatter", "cuda", CUDA_REDUCE_SCATTER_CHOICES, CUDA_TEMPLATE, cuda_reduce_scatter, cuda_makes_sense),
)
