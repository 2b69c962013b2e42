"""Blocks that one rank hands out or collects: Scatter, Gather, and Broadcast, whose block is the whole tensor."""

from __future__ import annotations

from functools import partial

from pkb_gym.kernels.cuda_copies import Copies, Ends, copies_by_rank, one_copy
from pkb_gym.kernels.family import ORDERS, Choices, Family, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    FREE,
    SENT,
    Access,
    CudaMeetings,
    cuda_meetings,
    scratch,
    signal_all,
    signal_to,
    wait_for,
    wait_for_all,
)
from pkb_gym.kernels.pieces import (
    BYTES,
    COPY_ENGINES,
    CPP_COPIES,
    CUDA_COPIES,
    cpp_copy,
    cuda_copy,
    cuda_geometry,
    lines,
)
from pkb_gym.kernels.text import fill

TEMPLATE = """
$constants

$copy

$kernel

void solution(TensorView tensor, int64_t $root, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = $block;
  const char* send = static_cast<const char*>(tensor.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $body
}
"""

PER_RANK = """
for (int i = 0; i < W; ++i) {
  const int r = $order;
  $copies
}
"""

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP_CHOICES: Choices = {
    "direction": ("pull", "push"),
    "copy": CPP_COPIES,
    "order": ("staggered", "from 0", "from last"),
    "staging": ("none", "inbox"),
    "signalling": ("signals", "barrier"),
    "guard": ("halves", "barrier"),
}

PREVIOUS = f"""
{signal_all(1)}
if ($writes) {{
  $wait
}}
"""
"""Words that a rank has begun: one that has begun the last call has read what came in the call before it."""

READ_BEFORE = "has read what came in this half"


def cpp_makes_sense(knobs: Knobs, loops_when: str) -> bool:
    """An order needs a loop; staging goes with push; only what is staged has a guard."""
    copy, push = knobs["copy"], knobs["direction"] == "push"
    if knobs["direction"] != loops_when and knobs["order"] != "staggered":
        return False
    if knobs["staging"] == "inbox":
        fits = push and copy in ("comm", "memcpy", "chunks of 4096", "words of 8")
        return fits and (knobs["guard"] == "halves" or copy in ("comm", "memcpy"))
    if knobs["guard"] != "halves":
        return False
    return knobs["signalling"] == "signals" or copy in ("comm", "memcpy", "words of 8")


def cpp_handed_out(mine: str, theirs: str, knobs: Knobs) -> Pieces:
    """The source pushes to every rank its part of the tensor, or every rank pulls its own.

    Args:
        mine: Place of this rank's part in the source's tensor, which begins at `send`.
        theirs: Place of the part of rank r.
        knobs: Values of `CPP_CHOICES`.
    """
    copy, order, signals = knobs["copy"], ORDERS[knobs["order"]], knobs["signalling"] == "signals"
    handed_out = partial(_cpp, "src", BYTES.format("out"))
    if knobs["direction"] == "pull":
        return handed_out(_pulled_by_all(cpp_copy("pull", copy, "recv", mine, "block", "int(src)"), signals))
    inbox, halves = knobs["staging"] == "inbox", knobs["guard"] == "halves"
    pushed = [cpp_copy("push", copy, "inbox" if inbox else "recv", theirs, "block", "r")]
    if signals:
        pushed.append(signal_to("r"))
        if not inbox:
            pushed.insert(0, wait_for("r", BEGUN["write"], 1))
    loop = fill(PER_RANK, order=order, copies=lines(*pushed))
    send = _guarded("comm.rank == src", loop)
    sent = SENT if inbox else DONE["write"]
    sync = wait_for("int(src)", sent) if signals else f"comm.barrier();  // {sent}"
    if not inbox:
        begin = signal_to("int(src)", 1) if signals else f"comm.barrier();  // {BEGUN['write']}"
        return handed_out([begin, send, sync])
    begin = scratch("char", "inbox", halves=halves)
    reuse = [_after_reader("comm.rank == src", "for (int r = 0; r < W; ++r) ", "r")] if halves and signals else []
    unpack = cpp_copy("push", copy, "recv", "inbox", "block", "comm.rank")
    guard = [] if halves else [FREE]
    return handed_out([begin, *reuse, send, sync, unpack, *guard])


def _after_reader(writes: str, each: str, reader: str) -> str:
    """A writer into scratch waits until its reader has read the data of two calls ago."""
    wait = f"{each}comm.wait(pkb::kMaxRanks + {reader}, comm.epoch - 1);  // {reader} {READ_BEFORE}"
    return fill(PREVIOUS, writes=writes, wait=wait.replace("// int(dst)", "// dst"))


def _pulled_by_all(pull: str, signals: bool) -> list[str]:
    if not signals:
        return [f"comm.barrier();  // {BEGUN['read']}", pull, f"comm.barrier();  // {DONE['read']}"]
    begun = _guarded("comm.rank == src", signal_all())
    done = _guarded("comm.rank == src", wait_for_all(DONE["read"], 1))
    return [begun, wait_for("int(src)", BEGUN["read"]), pull, signal_to("int(src)", 1), done]


def cpp_gather(knobs: Knobs) -> Pieces:
    """Every rank pushes its block, or the root pulls all; the others copy their own as well."""
    copy, order, signals = knobs["copy"], ORDERS[knobs["order"]], knobs["signalling"] == "signals"
    block = BYTES.format("tensor")
    own = "if (comm.rank != dst) " + cpp_copy("push", copy, "recv", "send", "block", "comm.rank")
    if knobs["direction"] == "pull":
        pulled = [cpp_copy("pull", copy, "recv + r * block", "send", "block", "r")]
        if not signals:
            loop = _guarded("comm.rank == dst", fill(PER_RANK, order=order, copies=pulled[0]))
            ends = (f"comm.barrier();  // {BEGUN['read']}", f"comm.barrier();  // {DONE['read']}")
            return _cpp("dst", block, [own, ends[0], loop, ends[1]])
        pulled = [wait_for("r", BEGUN["read"]), *pulled, signal_to("r", 1)]
        loop = _guarded("comm.rank == dst", fill(PER_RANK, order=order, copies=lines(*pulled)))
        # The own copy needs no other rank, so that it stands between the signal and the wait.
        return _cpp("dst", block, [signal_to("int(dst)"), own, loop, wait_for("int(dst)", DONE["read"], 1)])
    inbox, halves = knobs["staging"] == "inbox", knobs["guard"] == "halves"
    push = cpp_copy("push", copy, f"{'inbox' if inbox else 'recv'} + comm.rank * block", "send", "block", "int(dst)")
    sent = SENT if inbox else DONE["write"]
    sync = f"comm.barrier();  // {sent}"
    if signals:
        push, sync = f"{push}\n{signal_to('int(dst)')}", _guarded("comm.rank == dst", wait_for_all(sent))
    if not inbox:
        begin = f"comm.barrier();  // {BEGUN['write']}"
        if signals:
            ready = _guarded("comm.rank == dst", signal_all(1))
            begin = f"{ready}\n{own}\n{wait_for('int(dst)', BEGUN['write'], 1)}"
        return _cpp("dst", block, [begin, push, *([] if signals else [own]), sync])
    begin = scratch("char", "inbox", halves=halves)
    reuse = [_after_reader("comm.rank != dst", "", "int(dst)")] if halves and signals else []
    unpack = f"if (comm.rank == dst) {cpp_copy('push', copy, 'recv', 'inbox', 'W * block', 'comm.rank')}"
    guard = [] if halves else [FREE]
    return _cpp("dst", block, [begin, *reuse, push, own, sync, unpack, *guard])


def _cpp(root: str, block: str, body: list[str]) -> Pieces:
    return {"constants": "", "kernel": "", "root": root, "block": block, "body": lines(*body)}


# ---- CUDA -----------------------------------------------------------------------------------------------------------

BOTH_COPIES = """
__global__ void __launch_bounds__(kThreads) copy_twice(char* there, char* here, const char* from, uint64_t bytes) {
  $copy_there
  if (here != there) $copy_here
}
"""

LAUNCH_BOTH = """
char* slice = $place;
char* own = comm.rank == dst ? slice : recv;
copy_twice<<<$blocks, kThreads, 0, comm.cuda_stream()>>>(slice, own, send, block);
PKB_CUDA_LAUNCHED();
"""

CUDA_CHOICES: Choices = {
    "direction": ("pull", "push"),
    "copy": CUDA_COPIES,
    "spread": ("grid", "loop", "launches"),
    "threads": (256, 64, 512, 1024),
    "blocks": ("by size", 1, 16, 64, 132),
    "order": ("staggered", "from 0"),
    "signalling": ("host barrier", "host signals"),
}


def cuda_makes_sense(knobs: Knobs, loops_when: str) -> bool:
    """Choices that have an effect; signals and other orders around plain copies alone."""
    copy, threads, blocks, spread = (knobs[name] for name in ("copy", "threads", "blocks", "spread"))
    loops = knobs["direction"] == loops_when
    plain = copy in ("words of 16", "copy engine") and threads == 256 and blocks in ("by size", 64)
    if copy in COPY_ENGINES and (threads, blocks, spread) != (256, "by size", "grid"):
        return False
    if copy == "copy engines" and not loops:
        return False
    if copy == "pkb::copy" and threads != 256:
        return False
    if threads != 256 and (blocks not in (16, 64) or spread != "grid"):
        return False
    if knobs["order"] != "staggered" and not (loops and plain):
        return False
    if knobs["signalling"] != "host barrier" and not plain:
        return False
    return loops or spread != "loop"


def cuda_handed_out(mine: str, ends: Ends, knobs: Knobs) -> Pieces:
    """The source pushes to every rank its part of the tensor, or every rank pulls its own.

    Args:
        mine: Place of this rank's part in the source's tensor, which begins at `send`.
        ends: Ends of the copy to rank r.
        knobs: Values of `CUDA_CHOICES`.
    """
    if knobs["direction"] == "push":
        copies = copies_by_rank(knobs, push=True, ends=ends, source="send", target="recv", meetings=CudaMeetings())
        body = [copies.blocks, _guarded("comm.rank == src", copies.launch)]
        return _cuda(knobs, "src", BYTES.format("out"), body, copies)
    if knobs["copy"] == "copy engine":
        return _cuda(knobs, "src", BYTES.format("out"), [f"comm.get(recv, {mine}, block, int(src));"])
    copies = one_copy(knobs, "recv", f"comm.peer({mine}, int(src))")
    return _cuda(knobs, "src", BYTES.format("out"), [copies.blocks, copies.launch], copies)


def cuda_gather(knobs: Knobs) -> Pieces:
    """Every rank pushes its block, or the root pulls all; the others copy their own as well."""
    block, engines = BYTES.format("tensor"), knobs["copy"] in COPY_ENGINES
    own = one_copy(knobs, "recv", "send")
    if knobs["direction"] == "pull":
        copies = copies_by_rank(
            knobs, push=False, ends=_from_each, source="send", target="recv", meetings=CudaMeetings()
        )
        mine = "comm.put(recv, send, block, comm.rank);" if engines else own.launch
        body = [copies.blocks, _guarded("comm.rank != dst", mine), _guarded("comm.rank == dst", copies.launch)]
        return _cuda(knobs, "dst", block, body, *([copies] if engines else [own, copies]))
    if engines:
        body = [
            "comm.put(recv + comm.rank * block, send, block, int(dst));",
            "if (comm.rank != dst) comm.put(recv, send, block, comm.rank);",
        ]
        return _cuda(knobs, "dst", block, body)
    place = "comm.peer(recv, int(dst)) + comm.rank * block"
    if knobs["spread"] == "launches":
        there = one_copy(knobs, place, "send")
        body = [there.blocks, there.launch, _guarded("comm.rank != dst", own.launch)]
        return _cuda(knobs, "dst", block, body, there)
    _, line, blocks = cuda_geometry(knobs["threads"], knobs["blocks"], "block")
    kernel = fill(
        BOTH_COPIES,
        copy_there=cuda_copy(knobs["copy"], "there", "from", "bytes"),
        copy_here=cuda_copy(knobs["copy"], "here", "from", "bytes"),
    )
    both = Copies(own.constants, kernel, line, fill(LAUNCH_BOTH, place=place, blocks=blocks))
    return _cuda(knobs, "dst", block, [line, both.launch], both)


def _to_each(source: str, target: str) -> tuple[str, str]:
    return target, f"{source} + r * block"


def _whole_to_each(source: str, target: str) -> tuple[str, str]:
    return target, source


def _from_each(source: str, target: str) -> tuple[str, str]:
    return f"{target} + r * block", source


def _guarded(condition: str, lines: str) -> str:
    return fill("if ($condition) {\n  $lines\n}", condition=condition, lines=lines)


def _met(knobs: Knobs, root: str, body: list[str]) -> list[str]:
    """Lines of the host with what they wait for: all ranks for all, or the root and each other rank for one another."""
    push = knobs["direction"] == "push"
    access: Access = "write" if push else "read"
    if knobs["signalling"] == "host barrier":
        meetings = cuda_meetings("host barrier", access)
        return [meetings.before, *body, meetings.after]
    from_root = (_guarded(f"comm.rank == {root}", signal_all()), wait_for(f"int({root})", "{}"))
    to_root = (signal_to(f"int({root})", 1), _guarded(f"comm.rank == {root}", wait_for_all("{}", 1)))
    # The memory of the root is touched where it is pulled from, or pushed to.
    of_root = (root == "dst") == push
    begin, end = (from_root, to_root) if of_root else (to_root, from_root)
    return [begin[0], begin[1].replace("{}", BEGUN[access]), *body, end[0], end[1].replace("{}", DONE[access])]


def _cuda(knobs: Knobs, root: str, block: str, body: list[str], *copies: Copies) -> Pieces:
    kernels = dict.fromkeys(one.kernel for one in copies if one.kernel)
    return {
        "constants": copies[0].constants if kernels else "",
        "kernel": "\n\n".join(kernels),
        "root": root,
        "block": block,
        "body": lines(*_met(knobs, root, body)),
    }


_OUT = (
    ("Scatter", "send + comm.rank * block", "send + r * block", _to_each),
    ("Broadcast", "send", "send", _whole_to_each),
)
_CPP_FITS, _CUDA_FITS = (partial(rule, loops_when="push") for rule in (cpp_makes_sense, cuda_makes_sense))

FAMILIES = (
    *(
        Family(name, "cpp", CPP_CHOICES, TEMPLATE, partial(cpp_handed_out, mine, theirs), _CPP_FITS)
        for name, mine, theirs, _ in _OUT
    ),
    *(
        Family(name, "cuda", CUDA_CHOICES, TEMPLATE, partial(cuda_handed_out, mine, ends), _CUDA_FITS)
        for name, mine, _, ends in _OUT
    ),
    Family("Gather", "cpp", CPP_CHOICES, TEMPLATE, cpp_gather, partial(cpp_makes_sense, loops_when="pull")),
    Family("Gather", "cuda", CUDA_CHOICES, TEMPLATE, cuda_gather, partial(cuda_makes_sense, loops_when="pull")),
)
