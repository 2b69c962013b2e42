"""Blocks that one rank hands out or collects: Scatter and Gather."""

from __future__ import annotations

from functools import partial

from pkb_gym.corpus.families.cuda_copies import Copies, copies_by_rank, one_copy
from pkb_gym.corpus.families.family import Family, Knob, Knobs, fill
from pkb_gym.corpus.families.pieces import (
    BYTES,
    COPY_ENGINES,
    CPP_COPIES,
    CUDA_COPIES,
    EXPORT,
    ORDERS,
    cpp_copy,
    cpp_finish,
    cuda_copy,
    cuda_finish,
    cuda_geometry,
)

SOLUTION = """
void solution(TensorView tensor, int64_t $root, TensorView out, pkb::Comm comm) {
  const int W = comm.world_size;
  const uint64_t block = $block;
  const char* send = static_cast<const char*>(tensor.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $body
}

$export
"""

PER_RANK = """
for (int i = 0; i < W; ++i) {
  const int r = $order;
  $copy
}
"""

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
using tvm::ffi::TensorView;

$move

$solution
"""

CPP_CHOICES = {
    "direction": ("pull", "push"),
    "copy": tuple(CPP_COPIES),
    "order": ("staggered", "from 0", "from last"),
    "staging": ("none", "inbox"),
    "signalling": ("none", "barrier", "signals"),
}


def cpp_makes_sense(knobs: Knobs, loops_when: str) -> bool:
    """An order needs a loop; staging goes with push, and needs signalling."""
    copy, push = knobs["copy"], knobs["direction"] == "push"
    if knobs["direction"] != loops_when and knobs["order"] != "staggered":
        return False
    if knobs["staging"] == "inbox":
        return push and copy in ("comm", "memcpy", "chunks of 4096", "words of 8") and knobs["signalling"] != "none"
    return knobs["signalling"] == "none" or (copy in ("comm", "memcpy", "words of 8") and push)


def cpp_scatter(knobs: Knobs) -> str:
    """The source pushes every rank's block, or every rank pulls its own."""
    copy, order = knobs["copy"], ORDERS[knobs["order"]]
    target = "inbox" if knobs["staging"] == "inbox" else "recv"
    if knobs["direction"] == "pull":
        body = [cpp_copy("pull", copy, "recv", "send + comm.rank * block", "block", "int(src)")]
    else:
        pushed = [cpp_copy("push", copy, target, "send + r * block", "block", "r")]
        pushed += ["comm.signal(0, r);"] if knobs["signalling"] == "signals" else []
        loop = fill(PER_RANK, order=order, copy="\n".join(pushed))
        body = ["if (comm.rank == src) {", *(f"  {line}" for line in loop.split("\n")), "}"]
        body += {"barrier": ["comm.barrier();"], "signals": ["comm.wait(0);"]}.get(str(knobs["signalling"]), [])
    if knobs["staging"] == "inbox":
        body.insert(0, "char* inbox = comm.scratch<char>();")
        body.append(cpp_copy("push", copy, "recv", "inbox", "block", "comm.rank"))
        body.append("comm.barrier();  // the next call overwrites the scratch")
    return _cpp(copy, "src", BYTES.format("out"), body)


def cpp_gather(knobs: Knobs) -> str:
    """Every rank pushes its block, or the root pulls all; the others copy their own as well."""
    copy, order = knobs["copy"], ORDERS[knobs["order"]]
    target = "inbox" if knobs["staging"] == "inbox" else "recv"
    own = cpp_copy("push", copy, "recv", "send", "block", "comm.rank")
    if knobs["direction"] == "pull":
        loop = fill(PER_RANK, order=order, copy=cpp_copy("pull", copy, "recv + r * block", "send", "block", "r"))
        body = [f"if (comm.rank != dst) {{\n  {own}\n  return;\n}}", loop]
    else:
        body = [cpp_copy("push", copy, f"{target} + comm.rank * block", "send", "block", "int(dst)")]
        if knobs["signalling"] == "signals":
            body.append("comm.signal(comm.rank, int(dst));")
        body.append(f"if (comm.rank != dst) {own}")
        if knobs["signalling"] == "signals":
            body.append("if (comm.rank == dst) {\n  for (int r = 0; r < W; ++r) comm.wait(r);\n}")
        elif knobs["signalling"] == "barrier":
            body.append("comm.barrier();")
    if knobs["staging"] == "inbox":
        body.insert(0, "char* inbox = comm.scratch<char>();")
        unpack = cpp_copy("push", copy, "recv", "inbox", "W * block", "comm.rank")
        body.append(f"if (comm.rank == dst) {unpack}")
        body.append("comm.barrier();  // the next call overwrites the scratch")
    return _cpp(copy, "dst", BYTES.format("tensor"), body)


def _cpp(copy: Knob, root: str, block: str, body: list[str]) -> str:
    lines = "\n".join(body)
    solution = fill(SOLUTION, root=root, block=block, body=lines, export=EXPORT)
    return cpp_finish(fill(CPP, move=CPP_COPIES[copy], solution=solution))


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
using tvm::ffi::TensorView;

$constants

$move

$kernels

$solution
"""

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

CUDA_CHOICES = {
    "direction": ("pull", "push"),
    "copy": tuple(CUDA_COPIES),
    "spread": ("grid", "loop", "launches"),
    "threads": (256, 64, 512, 1024),
    "blocks": ("by size", 1, 16, 64, 132),
    "order": ("staggered", "from 0"),
    "signalling": ("none", "host barrier"),
}


def cuda_makes_sense(knobs: Knobs, loops_when: str) -> bool:
    """Choices that have an effect; needless signalling and other orders around plain copies alone."""
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
    if knobs["signalling"] != "none" and not plain:
        return False
    return loops or spread != "loop"


def cuda_scatter(knobs: Knobs) -> str:
    """The source pushes every rank's block, or every rank pulls its own."""
    mine = "send + comm.rank * block"
    if knobs["direction"] == "push":
        copies = copies_by_rank(knobs, push=True, ends=_to_each, source="send", target="recv")
        body = [copies.blocks, _guarded("comm.rank == src", copies.launch)]
        return _cuda(knobs, "src", BYTES.format("out"), body, copies)
    if knobs["copy"] == "copy engine":
        return _cuda(knobs, "src", BYTES.format("out"), [f"comm.get(recv, {mine}, block, int(src));"])
    copies = one_copy(knobs, "recv", f"comm.peer({mine}, int(src))")
    return _cuda(knobs, "src", BYTES.format("out"), [copies.blocks, copies.launch], copies)


def cuda_gather(knobs: Knobs) -> str:
    """Every rank pushes its block, or the root pulls all; the others copy their own as well."""
    block, engines = BYTES.format("tensor"), knobs["copy"] in COPY_ENGINES
    own = one_copy(knobs, "recv", "send")
    if knobs["direction"] == "pull":
        copies = copies_by_rank(knobs, push=False, ends=_from_each, source="send", target="recv")
        mine = "comm.put(recv, send, block, comm.rank);" if engines else own.launch
        body = [copies.blocks, _guarded("comm.rank != dst", f"{mine}\nreturn;"), copies.launch]
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
        body = [there.blocks, there.launch, "if (comm.rank == dst) return;", own.launch]
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


def _from_each(source: str, target: str) -> tuple[str, str]:
    return f"{target} + r * block", source


def _guarded(condition: str, lines: str) -> str:
    return fill("if ($condition) {\n  $lines\n}", condition=condition, lines=lines)


def _cuda(knobs: Knobs, root: str, block: str, body: list[str], *copies: Copies) -> str:
    if knobs["signalling"] == "host barrier":
        body = ["comm.barrier();", *body]
    kernels = dict.fromkeys(one.kernel for one in copies if one.kernel)
    text = fill(
        CUDA,
        constants=copies[0].constants if kernels else "",
        move=CUDA_COPIES[knobs["copy"]],
        kernels="\n\n".join(kernels),
        solution=fill(SOLUTION, root=root, block=block, body="\n".join(filter(None, body)), export=EXPORT),
    )
    return cuda_finish(text)


FAMILIES = (
    Family("Scatter", "cpp", CPP_CHOICES, cpp_scatter, partial(cpp_makes_sense, loops_when="push")),
    Family("Gather", "cpp", CPP_CHOICES, cpp_gather, partial(cpp_makes_sense, loops_when="pull")),
    Family("Scatter", "cuda", CUDA_CHOICES, cuda_scatter, partial(cuda_makes_sense, loops_when="push")),
    Family("Gather", "cuda", CUDA_CHOICES, cuda_gather, partial(cuda_makes_sense, loops_when="pull")),
)
