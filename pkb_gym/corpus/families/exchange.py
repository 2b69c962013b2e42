"""Blocks that every rank sends to every other: AllGather, UlyssesAllGather, AllToAll."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pkb_gym.corpus.families.cuda_copies import copies_by_rank
from pkb_gym.corpus.families.family import Family, Knobs, fill
from pkb_gym.corpus.families.pieces import (
    BYTES,
    COPY_ENGINES,
    CPP_COPIES,
    CUDA_COPIES,
    EXPORT,
    ORDERS,
    are_resident,
    cpp_copy,
    cpp_finish,
    cuda_finish,
)


@dataclass(frozen=True)
class Exchange:
    """What tells the problems apart.

    Attributes:
        problem: its name.
        parameters: of `solution`, before the communicator.
        tensor: name of the tensor that is sent.
        cuts: whether rank r gets block r of it, rather than all of it.
    """

    problem: str
    parameters: str
    tensor: str
    cuts: bool

    @property
    def block(self) -> str:
        """Bytes that one rank has for another."""
        return BYTES.format(self.tensor) + (" / W" if self.cuts else "")

    @property
    def sent(self) -> str:
        """Bytes of the tensor."""
        return "W * block" if self.cuts else "block"

    def ends(self, push: bool, source: str, target: str) -> tuple[str, str]:
        """Where the block for (from) rank r goes and where it lies, as addresses of this rank.

        Args:
            push: whether r is who receives it.
            source: start of what is sent.
            target: start of the stack of what is received.
        """
        if push:
            return f"{target} + comm.rank * block", f"{source} + r * block" if self.cuts else source
        return f"{target} + r * block", f"{source} + comm.rank * block" if self.cuts else source


EXCHANGES = (
    Exchange("AllGather", "TensorView tensor, TensorView out", "tensor", cuts=False),
    Exchange("UlyssesAllGather", "TensorView x, int64_t group, TensorView out", "x", cuts=False),
    Exchange("AllToAll", "TensorView tensor, TensorView out", "tensor", cuts=True),
)

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
using tvm::ffi::TensorView;

$move

void solution($parameters, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = $block;
  const char* send = static_cast<const char*>($tensor.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $begin
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    $wait
    $copy
    $signal
  }
  $end
}

$export
"""

CPP_CHOICES = {
    "direction": ("pull", "push"),
    "copy": tuple(CPP_COPIES),
    "order": ("staggered", "from 0", "from last"),
    "staging": ("none", "inbox", "outbox"),
    "signalling": ("none", "barrier", "signals"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Staging goes with one direction and needs signalling; needless signalling is kept with the plain copies."""
    if knobs["staging"] == "none":
        return knobs["signalling"] == "none" or knobs["copy"] in ("comm", "memcpy")
    fits = knobs["staging"] == ("inbox" if knobs["direction"] == "push" else "outbox")
    plain = knobs["copy"] in ("comm", "memcpy", "words of 8") and knobs["order"] == "staggered"
    return fits and plain and knobs["signalling"] != "none"


def cpp_source(exchange: Exchange, knobs: Knobs) -> str:
    """The text of one kernel."""
    push, staging, copy = knobs["direction"] == "push", knobs["staging"], knobs["copy"]
    source, target = ("outbox" if staging == "outbox" else "send"), ("inbox" if staging == "inbox" else "recv")
    begin: list[str] = []
    end: list[str] = []
    wait = signal = ""
    if staging != "none":
        begin.append(f"char* {staging} = comm.scratch<char>();")
    if staging == "outbox":
        begin.append(cpp_copy("push", copy, "outbox", "send", exchange.sent, "comm.rank"))
    if knobs["signalling"] == "barrier":
        (end if push else begin).append("comm.barrier();")
    elif knobs["signalling"] == "signals" and push:
        signal = "comm.signal(comm.rank, r);"
        end.append("for (int r = 0; r < W; ++r) comm.wait(r);")
    elif knobs["signalling"] == "signals":
        begin.append("for (int r = 0; r < W; ++r) comm.signal(comm.rank, r);")
        wait = "comm.wait(r);"
    if staging == "inbox":
        end.append(cpp_copy("push", copy, "recv", "inbox", "W * block", "comm.rank"))
    if staging != "none":
        end.append("comm.barrier();  // the next call overwrites the scratch")
    text = fill(
        CPP,
        move=CPP_COPIES[copy],
        parameters=exchange.parameters,
        block=exchange.block,
        tensor=exchange.tensor,
        begin="\n".join(begin),
        order=ORDERS[knobs["order"]],
        wait=wait,
        copy=cpp_copy(knobs["direction"], copy, *exchange.ends(push, source, target), "block", "r"),
        signal=signal,
        end="\n".join(end),
        export=EXPORT,
    )
    return cpp_finish(text)


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
using tvm::ffi::TensorView;

$constants

$move

$kernel

void solution($parameters, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = $block;
  const char* send = static_cast<const char*>($tensor.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $begin
  $blocks
  $launch
  $end
}

$export
"""

CUDA_CHOICES = {
    "direction": ("push", "pull"),
    "copy": tuple(CUDA_COPIES),
    "spread": ("loop", "grid", "launches"),
    "threads": (256, 64, 1024),
    "blocks": ("by size", 1, 16, 64, 132),
    "order": ("staggered", "from 0"),
    "staging": ("none", "inbox", "outbox"),
    "signalling": ("none", "host barrier", "block barrier", "signals"),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Each choice varies around plain ones; blocks that wait are few, so that all of them are resident."""
    copy, spread, signalling, staging = (knobs[name] for name in ("copy", "spread", "signalling", "staging"))
    threads, blocks, staggered = knobs["threads"], knobs["blocks"], knobs["order"] == "staggered"
    if copy in COPY_ENGINES and (threads, blocks, spread) != (256, "by size", "loop"):
        return False
    if copy == "pkb::copy" and threads != 256:
        return False
    if threads != 256 and (spread == "launches" or blocks not in (16, 64)):
        return False
    if staging != "none":
        fits = staging == ("inbox" if knobs["direction"] == "push" else "outbox")
        plain = copy in ("copy engine", "words of 16", "pkb::copy") and spread == "loop" and threads == 256
        return fits and plain and staggered and signalling == "host barrier"
    if signalling in ("block barrier", "signals"):
        return copy == "words of 16" and spread == "loop" and staggered and are_resident(threads, blocks)
    if signalling == "host barrier":
        return copy in ("copy engine", "words of 16, 4 at once") and staggered and threads == 256 and spread == "loop"
    if spread == "launches" or not staggered:
        return copy in (*COPY_ENGINES, "words of 16", "words of 4") and threads == 256 and blocks in ("by size", 64)
    return True


def cuda_source(exchange: Exchange, knobs: Knobs) -> str:
    """The text of one kernel."""
    push, staging, copy = knobs["direction"] == "push", knobs["staging"], knobs["copy"]
    source, target = ("outbox" if staging == "outbox" else "send"), ("inbox" if staging == "inbox" else "recv")
    copies = copies_by_rank(knobs, push=push, ends=partial(exchange.ends, push), source=source, target=target)
    begin: list[str] = []
    end: list[str] = []
    if staging != "none":
        begin.append(f"char* {staging} = comm.scratch<char>();")
    if staging == "outbox":
        begin.append(f"comm.put(outbox, send, {exchange.sent}, comm.rank);")
    if knobs["signalling"] == "host barrier":
        (end if push else begin).append("comm.barrier();")
    if staging == "inbox":
        end.append("comm.put(recv, inbox, W * block, comm.rank);")
    if staging != "none":
        end.append("comm.barrier();  // the next call overwrites the scratch")
    text = fill(
        CUDA,
        constants=copies.constants,
        move=CUDA_COPIES[copy],
        kernel=copies.kernel,
        parameters=exchange.parameters,
        block=exchange.block,
        tensor=exchange.tensor,
        begin="\n".join(begin),
        blocks=copies.blocks,
        launch=copies.launch,
        end="\n".join(end),
        export=EXPORT,
    )
    return cuda_finish(text)


FAMILIES = tuple(
    family
    for exchange in EXCHANGES
    for family in (
        Family(exchange.problem, "cpp", CPP_CHOICES, partial(cpp_source, exchange), cpp_makes_sense),
        Family(exchange.problem, "cuda", CUDA_CHOICES, partial(cuda_source, exchange), cuda_makes_sense),
    )
)
