"""Blocks that every rank sends to every other: AllGather, UlyssesAllGather, AllToAll."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from pkb_gym.kernels.cuda_copies import copies_by_rank
from pkb_gym.kernels.family import Choices, Family, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    FREE,
    IN_KERNEL,
    SENT,
    STAGED,
    Access,
    cpp_meet,
    cuda_meetings,
    scratch,
    signal_all,
    signal_to,
    wait_for,
    wait_for_all,
)
from pkb_gym.kernels.pieces import BYTES, COPY_ENGINES, CPP_COPIES, CUDA_COPIES, are_resident, cpp_copy, lines


@dataclass(frozen=True)
class Exchange:
    """The parts that differ between the problems.

    Attributes:
        problem: Name of the problem.
        parameters: Parameters of `solution` before the communicator.
        tensor: Name of the tensor that is sent.
        cuts: Whether rank r gets block r of the tensor, rather than all of it.
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
        """The target and the source of the block for (from) rank r, as addresses of this rank.

        Args:
            push: Whether rank r receives the block, rather than sends it.
            source: Start of the sent tensor.
            target: Start of the stack of received blocks.
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
$copy

void solution($parameters, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = $block;
  const char* send = static_cast<const char*>($tensor.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $begin
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    $wait
    $copies
    $signal
  }
  $end
}
"""

CPP_CHOICES: Choices = {
    "direction": ("pull", "push"),
    "copy": CPP_COPIES,
    "order": ("staggered", "from 0", "from last"),
    "staging": ("none", "inbox", "outbox"),
    "signalling": ("barrier", "signals", "split signals"),
    "guard": ("halves", "barrier"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """Staging goes with one direction; only what is staged has a guard; signals come with the plain copies."""
    if knobs["staging"] == "none":
        plain = knobs["copy"] in ("comm", "memcpy", "words of 8")
        return knobs["guard"] == "halves" and (knobs["signalling"] == "barrier" or plain)
    fits = knobs["staging"] == ("inbox" if knobs["direction"] == "push" else "outbox")
    plain = knobs["copy"] in ("comm", "memcpy", "words of 8") and knobs["order"] == "staggered"
    return fits and plain and (knobs["guard"] == "halves" or knobs["copy"] == "comm")


def cpp_pieces(exchange: Exchange, knobs: Knobs) -> Pieces:
    """Copies in place, or by way of scratch, and when ranks wait for each other."""
    staging, signalling = str(knobs["staging"]), knobs["signalling"]
    push, copy, split = knobs["direction"] == "push", knobs["copy"], signalling == "split signals"
    source, target = ("outbox" if staging == "outbox" else "send"), ("inbox" if staging == "inbox" else "recv")
    begin: list[str] = []
    end: list[str] = []
    wait = signal = ""
    if staging == "none":
        access: Access = "write" if push else "read"
        if split:
            begin.append(signal_all())
            wait, signal = wait_for("r", BEGUN[access]), signal_to("r", 1)
            end.append(wait_for_all(DONE[access], 1))
        else:
            begin.append(cpp_meet(signalling, BEGUN[access]))
            end.append(cpp_meet(signalling, DONE[access], 1))
    else:
        begin.append(scratch("char", staging, halves=knobs["guard"] == "halves"))
    if staging == "inbox":
        if split:
            signal = signal_to("r")
            pieces = cpp_copy("push", copy, "recv + r * block", "inbox + r * block", "block", "comm.rank")
            end.append(f"for (int r = 0; r < W; ++r) {{\n  {wait_for('r', SENT)}\n  {pieces}\n}}")
        else:
            end.append(cpp_meet(signalling, SENT))
            end.append(cpp_copy("push", copy, "recv", "inbox", "W * block", "comm.rank"))
    elif staging == "outbox":
        begin.append(cpp_copy("push", copy, "outbox", "send", exchange.sent, "comm.rank"))
        begin.append(signal_all() if split else cpp_meet(signalling, STAGED))
        wait = wait_for("r", STAGED) if split else ""
    if staging != "none" and knobs["guard"] == "barrier":
        end.append(FREE)
    return {
        "parameters": exchange.parameters,
        "block": exchange.block,
        "tensor": exchange.tensor,
        "begin": lines(*begin),
        "wait": wait,
        "copies": cpp_copy(knobs["direction"], copy, *exchange.ends(push, source, target), "block", "r"),
        "signal": signal,
        "end": lines(*end),
    }


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
$constants

$copy

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
"""

CUDA_CHOICES: Choices = {
    "direction": ("push", "pull"),
    "copy": CUDA_COPIES,
    "spread": ("loop", "grid", "launches"),
    "threads": (256, 64, 1024),
    "blocks": ("by size", 1, 16, 64, 132),
    "order": ("staggered", "from 0"),
    "staging": ("none", "inbox", "outbox"),
    "signalling": ("host barrier", "begun words", "block barrier", "signals"),
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
    if signalling in IN_KERNEL:
        fits = copy in ("words of 16", "words of 16, 4 at once", "pkb::copy") and are_resident(threads, blocks)
        return fits and spread == "loop" and staggered
    if signalling == "begun words":
        fits = copy not in COPY_ENGINES and spread != "launches"
        return fits and staggered and threads == 256 and blocks in ("by size", 132)
    if spread == "launches" or not staggered:
        return copy in (*COPY_ENGINES, "words of 16", "words of 4") and threads == 256 and blocks in ("by size", 64)
    return threads == 256 or copy in ("words of 16", "words of 4")


def cuda_pieces(exchange: Exchange, knobs: Knobs) -> Pieces:
    """Copies in place, or by way of scratch, and when ranks wait for each other."""
    push, staging = knobs["direction"] == "push", str(knobs["staging"])
    source, target = ("outbox" if staging == "outbox" else "send"), ("inbox" if staging == "inbox" else "recv")
    meetings = cuda_meetings(knobs["signalling"], "write" if push else "read")
    ends = partial(exchange.ends, push)
    copies = copies_by_rank(knobs, push=push, ends=ends, source=source, target=target, meetings=meetings)
    begin, end = [meetings.before], [meetings.after]
    if staging == "inbox":
        begin = [scratch("char", staging, halves=True)]
        end = [f"comm.barrier();  // {SENT}", "comm.put(recv, inbox, W * block, comm.rank);"]
    elif staging == "outbox":
        begin = [scratch("char", staging, halves=True)]
        begin += [f"comm.put(outbox, send, {exchange.sent}, comm.rank);", f"comm.barrier();  // {STAGED}"]
        end = []
    return {
        "parameters": exchange.parameters,
        "block": exchange.block,
        "tensor": exchange.tensor,
        "begin": lines(*begin),
        "end": lines(*end),
        **asdict(copies),
    }


FAMILIES = tuple(
    family
    for exchange in EXCHANGES
    for family in (
        Family(exchange.problem, "cpp", CPP_CHOICES, CPP, partial(cpp_pieces, exchange), cpp_makes_sense),
        Family(exchange.problem, "cuda", CUDA_CHOICES, CUDA, partial(cuda_pieces, exchange), cuda_makes_sense),
    )
)
