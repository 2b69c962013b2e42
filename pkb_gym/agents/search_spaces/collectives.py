"""Broadcast and ReduceScatter in C++."""

from __future__ import annotations

from pkb_gym.corpus.families.family import Family, Knobs, fill
from pkb_gym.corpus.families.meetings import (
    BEGUN,
    DONE,
    FREE,
    SENT,
    STAGED,
    cpp_meet,
    scratch,
    signal_all,
    signal_to,
    wait_for,
    wait_for_all,
)
from pkb_gym.corpus.families.pieces import BYTES, CPP_COPIES, EXPORT, ORDERS, cpp_copy, cpp_dispatch, cpp_finish, lines

# ---- Broadcast ------------------------------------------------------------------------------------------------------

BROADCAST = """
using tvm::ffi::TensorView;

$move

void solution(TensorView tensor, int64_t src, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t bytes = $bytes;
  const char* send = static_cast<const char*>(tensor.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $body
}

$export
"""

PUSH_LOOP = """
if (comm.rank == src) {
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    $push
  }
}
"""

BROADCAST_CHOICES = {
    "direction": ("pull", "push"),
    "copy": tuple(CPP_COPIES),
    "order": ("staggered", "from 0", "from last"),
    "signalling": ("barrier", "signals"),
    "own": ("with the others", "straight"),
}


def broadcast_makes_sense(knobs: Knobs) -> bool:
    """Only the source that pushes has an order; only who pulls can copy the source's own tensor apart."""
    if knobs["direction"] == "pull":
        return knobs["order"] == "staggered"
    return knobs["own"] == "with the others"


def broadcast(knobs: Knobs) -> str:
    """Every rank pulls the tensor from the source, or the source pushes it to every rank."""
    body = _pulled(knobs) if knobs["direction"] == "pull" else _pushed(knobs)
    text = fill(
        BROADCAST, move=CPP_COPIES[knobs["copy"]], bytes=BYTES.format("tensor"), body=lines(body), export=EXPORT
    )
    return cpp_finish(text)


def _pulled(knobs: Knobs) -> list[str]:
    pull = cpp_copy("pull", knobs["copy"], "recv", "send", "bytes", "int(src)")
    if knobs["own"] == "straight":  # the source reads its own memory by its own address
        own = cpp_copy("pull", knobs["copy"], "recv", "send", "bytes", "comm.rank")
        pull = f"if (comm.rank == src) {{\n  {own}\n}} else {{\n  {pull}\n}}"
    if knobs["signalling"] == "barrier":
        return [cpp_meet("barrier", BEGUN["read"]), pull, cpp_meet("barrier", DONE["read"])]
    begun, done = f"if (comm.rank == src) {signal_all()}", f"if (comm.rank == src) {wait_for_all(DONE['read'], 1)}"
    return [begun, wait_for("int(src)", BEGUN["read"]), pull, signal_to("int(src)", 1), done]


def _pushed(knobs: Knobs) -> list[str]:
    push = cpp_copy("push", knobs["copy"], "recv", "send", "bytes", "r")
    order = ORDERS[knobs["order"]]
    if knobs["signalling"] == "barrier":
        loop = fill(PUSH_LOOP, order=order, push=push)
        return [cpp_meet("barrier", BEGUN["write"]), loop, cpp_meet("barrier", DONE["write"])]
    steps = lines([wait_for("r", BEGUN["write"], 1), push, signal_to("r")])
    return [signal_to("int(src)", 1), fill(PUSH_LOOP, order=order, push=steps), wait_for("int(src)", DONE["write"])]


# ---- ReduceScatter --------------------------------------------------------------------------------------------------

REDUCE_SCATTER = """
using tvm::ffi::TensorView;

$constant

template <class T, class Sum>
void add_up(const TensorView& tensor, const TensorView& out, const pkb::Comm& comm) {
  const int W = comm.world_size;
  const int64_t block = out.numel();
  const T* x = static_cast<const T*>(tensor.data_ptr());
  T* y = static_cast<T*>(out.data_ptr());
  $before
  $loop
  $after
}

void solution(TensorView tensor, TensorView out, pkb::Comm comm) {
  $dispatch
}

$export
"""

CHUNKS = """
Sum sums[kChunk];
for (int64_t at = 0; at < block; at += kChunk) {
  const int64_t count = std::min<int64_t>(kChunk, block - at);
  for (int64_t k = 0; k < count; ++k) sums[k] = 0;
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    const T* term = $term + at;
    for (int64_t k = 0; k < count; ++k) sums[k] += Sum(term[k]);
  }
  for (int64_t k = 0; k < count; ++k) y[at + k] = T(sums[k]);
}
"""

ELEMENTS = """
for (int64_t k = 0; k < block; ++k) {
  Sum sum = 0;
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    const T* term = $term;
    sum += Sum(term[k]);
  }
  y[k] = T(sum);
}
"""

SEND_BLOCKS = "for (int r = 0; r < W; ++r) comm.put(inbox + comm.rank * block, x + r * block, block * sizeof(T), r);"
STAGE = "comm.put(outbox, x, W * block * sizeof(T), comm.rank);"

REDUCE_SCATTER_CHOICES = {
    "algorithm": ("in place", "inbox", "outbox"),
    "chunk": (1024, 1, 32, 128, 256, 4096),
    "order": ("from 0", "staggered", "from last"),
    "signalling": ("barrier", "signals"),
    "guard": ("halves", "barrier"),
}


def reduce_scatter_makes_sense(knobs: Knobs) -> bool:
    """Only what is staged has a guard, and it is added up in one order."""
    if knobs["algorithm"] == "in place":
        return knobs["guard"] == "halves"
    return knobs["order"] == "from 0"


def reduce_scatter(knobs: Knobs) -> str:
    """Every rank adds up its block of all ranks' tensors: where they lie, or from scratch."""
    by_element, algorithm, meet = knobs["chunk"] == 1, knobs["algorithm"], knobs["signalling"]
    halves = knobs["guard"] == "halves"
    if algorithm == "in place":
        term = "comm.peer(x, r) + comm.rank * block"
        before, after = [cpp_meet(meet, BEGUN["read"])], [cpp_meet(meet, DONE["read"], 1)]
    else:
        inbox = algorithm == "inbox"
        term = "inbox + r * block" if inbox else "comm.peer(outbox, r) + comm.rank * block"
        begin = scratch("T", str(algorithm), halves=halves)
        before = [begin, SEND_BLOCKS if inbox else STAGE, cpp_meet(meet, SENT if inbox else STAGED)]
        after = [] if halves else [FREE]
    text = fill(
        REDUCE_SCATTER,
        constant="" if by_element else f"constexpr int64_t kChunk = {knobs['chunk']};",
        before=lines(before),
        loop=fill(ELEMENTS if by_element else CHUNKS, order=ORDERS[knobs["order"]], term=term),
        after=lines(after),
        dispatch=cpp_dispatch("add_up", "tensor", "tensor, out, comm"),
        export=EXPORT,
    )
    return cpp_finish(text)


FAMILIES = (
    Family("Broadcast", "cpp", BROADCAST_CHOICES, broadcast, broadcast_makes_sense),
    Family("ReduceScatter", "cpp", REDUCE_SCATTER_CHOICES, reduce_scatter, reduce_scatter_makes_sense),
)
