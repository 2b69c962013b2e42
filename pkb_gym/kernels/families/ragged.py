"""MoEAllToAll: pieces of rows for every rank of a group, whose places only their owners know.

Groups may differ from call to call, so that at one end of the call all ranks meet, not the group alone: ranks of
another group may still be in an earlier call, whose scratch this one would overwrite.
"""

from __future__ import annotations

from pkb_gym.kernels.family import Choices, Family, Knobs, Pieces
from pkb_gym.kernels.meetings import (
    BEGUN,
    DONE,
    Access,
    cpp_meet,
    scratch,
    signal_all,
    signal_to,
    wait_for,
)
from pkb_gym.kernels.pieces import CPP_COPIES, cpp_copy, cuda_copy, cuda_geometry

# ---- C++ ------------------------------------------------------------------------------------------------------------

CPP = """
using tvm::ffi::TensorView;
using Sizes = tvm::ffi::Optional<tvm::ffi::Array<int64_t>>;

$move

void solution(TensorView local_tensor, Sizes input_split_sizes, Sizes output_split_sizes, int64_t group,
              TensorView out, pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  const uint64_t row = uint64_t(local_tensor.size(1)) * local_tensor.dtype().bits / 8;
  const int64_t even = local_tensor.size(0) / members.size;
  const char* send = static_cast<const char*>(local_tensor.data_ptr());
  char* recv = static_cast<char*>(out.data_ptr());
  $scratch
  std::vector<int64_t> sent(members.size + 1, 0), received(members.size + 1, 0);
  for (int p = 0; p < members.size; ++p) {
    sent[p + 1] = sent[p] + (input_split_sizes.has_value() ? input_split_sizes.value()[p] : even);
    received[p + 1] = received[p] + (output_split_sizes.has_value() ? output_split_sizes.value()[p] : even);
    comm.peer(starts, members.ranks[p])[members.rank] = $start;
  }
  $meet
  for (int i = 0; i < members.size; ++i) {
    const int p = $order, r = members.ranks[p];
    $wait
    $copy
    $signal
  }
  $end
}
"""

CPP_CHOICES: Choices = {
    "direction": ("pull", "push"),
    "copy": tuple(CPP_COPIES),
    "order": {
        "staggered": "(members.rank + i) % members.size",
        "from 0": "i",
        "from last": "members.size - 1 - i",
    },
    "signalling": ("signals", "late signals", "barrier"),
    "end": ("signals", "barrier"),
}


def cpp_makes_sense(knobs: Knobs) -> bool:
    """The plain copies come with everything, the others with the plainest rest; who waits late ends with all ranks."""
    if knobs["signalling"] == "late signals" and knobs["end"] == "signals":
        return False
    plain = knobs["copy"] in ("comm", "memcpy")
    return plain or (knobs["end"] == "signals" and knobs["order"] == "staggered" and knobs["signalling"] == "signals")


def cpp_pieces(knobs: Knobs) -> Pieces:
    """Each rank sends the others the offsets of their pieces, in what is sent or received."""
    pull, halves, signalling = knobs["direction"] == "pull", knobs["end"] == "signals", knobs["signalling"]
    access: Access = "read" if pull else "write"
    begun, done, wait, signal = BEGUN[access], DONE[access], "", ""
    if signalling == "late signals":
        meet, wait = _of_world(signal_all()), wait_for("r", begun)
    else:
        meet = _of_world(cpp_meet(signalling, begun))
    end = f"comm.barrier();  // {done}"
    if halves:
        signal = signal_to("r", 1)
        end = f"for (int p = 0; p < members.size; ++p) {{\n  {wait_for('members.ranks[p]', done, 1)}\n}}"
    here, there = ("received", "sent") if pull else ("sent", "received")
    ends = ("recv + received[p] * row", "send + starts[p] * row")
    if not pull:
        ends = ("recv + starts[p] * row", "send + sent[p] * row")
    size = f"({here}[p + 1] - {here}[p]) * row"
    return {
        "move": CPP_COPIES[knobs["copy"]],
        "scratch": scratch("int64_t", "starts", halves=halves),
        "start": f"{there}[p]",
        "meet": meet,
        "wait": wait,
        "copy": cpp_copy(knobs["direction"], knobs["copy"], *ends, size, "r"),
        "signal": signal,
        "end": end,
    }


def _of_world(lines: str) -> str:
    return lines.replace("r < W", "r < comm.world_size")


# ---- CUDA -----------------------------------------------------------------------------------------------------------

CUDA = """
using tvm::ffi::TensorView;
using Sizes = tvm::ffi::Optional<tvm::ffi::Array<int64_t>>;

$constants

struct Pieces {
  int64_t sent[pkb::kMaxRanks + 1], received[pkb::kMaxRanks + 1];
};

__global__ void send_starts(const Pieces pieces, int64_t group, const __grid_constant__ pkb::Device comm) {
  int64_t* starts = comm.scratch<int64_t>();  // nobody ends a call before all have read theirs
  const int p = threadIdx.x;
  if (p < comm.group_size(group)) {
    comm.peer(starts, comm.group_member(group, p))[comm.group_rank(group)] = pieces.$start[p];
  }
  $meet_in_kernel
}

__global__ void __launch_bounds__(kThreads)
exchange(const char* send, char* recv, uint64_t row, const Pieces pieces, int64_t group,
         const __grid_constant__ pkb::Device comm) {
  const int64_t* starts = comm.scratch<int64_t>();
  $pieces
}

void solution(TensorView local_tensor, Sizes input_split_sizes, Sizes output_split_sizes, int64_t group,
              TensorView out, pkb::Comm comm) {
  const pkb::Group members = comm.group(group);
  const uint64_t row = uint64_t(local_tensor.size(1)) * local_tensor.dtype().bits / 8;
  const int64_t even = local_tensor.size(0) / members.size;
  Pieces pieces{};
  for (int p = 0; p < members.size; ++p) {
    const int64_t out_rows = input_split_sizes.has_value() ? input_split_sizes.value()[p] : even;
    const int64_t in_rows = output_split_sizes.has_value() ? output_split_sizes.value()[p] : even;
    pieces.sent[p + 1] = pieces.sent[p] + out_rows;
    pieces.received[p + 1] = pieces.received[p] + in_rows;
  }
  send_starts<<<1, 32, 0, comm.cuda_stream()>>>(pieces, group, comm.device());
  PKB_CUDA_LAUNCHED();
  $meet_on_host
  $blocks_line
  exchange<<<$grid, kThreads, 0, comm.cuda_stream()>>>(
      static_cast<const char*>(local_tensor.data_ptr()), static_cast<char*>(out.data_ptr()), row, pieces, group,
      comm.device());
  PKB_CUDA_LAUNCHED();
  comm.barrier();  // $done
}
"""

CUDA_PIECE = """
const int p = $order, r = comm.group_member(group, p);
const int64_t rows = pieces.$here[p + 1] - pieces.$here[p];
$copy
"""

CUDA_ROWS = """
for (int64_t k = blockIdx.x * $rows; k < rows; k += gridDim.x * $rows) {
  const uint64_t bytes = (rows - k < $rows ? rows - k : $rows) * row;
  comm.$put(recv + ($to + k) * row, send + ($lies + k) * row, bytes, r);
}
"""

CUDA_LOOP = """
for (int i = 0; i < comm.group_size(group); ++i) {
  $piece
}
"""

CUDA_CHOICES: Choices = {
    "direction": ("pull", "push"),
    "copy": ("pkb::copy", "rows 1", "rows 4", "rows 16", "rows 64"),
    "spread": ("grid", "loop"),
    "threads": (256, 64, 1024),
    "blocks": ("by size", 1, 16, 64, 132),
    "order": {
        "staggered": "(comm.group_rank(group) + $place) % comm.group_size(group)",
        "from 0": "$place",
    },
    "signalling": ("block barrier", "host barrier"),
}


def cuda_makes_sense(knobs: Knobs) -> bool:
    """Each choice varies around plain ones."""
    copy, threads = knobs["copy"], knobs["threads"]
    if copy == "pkb::copy" and threads != 256:
        return False
    if threads != 256 and (knobs["blocks"] not in (16, 64) or knobs["spread"] != "grid"):
        return False
    plain = copy in ("rows 4", "pkb::copy") and threads == 256
    return plain or (knobs["order"] == "staggered" and knobs["signalling"] == "block barrier")


def cuda_pieces(knobs: Knobs) -> Pieces:
    """A block sends the others the offsets of their pieces, then all blocks copy."""
    pull, grid = knobs["direction"] == "pull", knobs["spread"] == "grid"
    in_kernel = knobs["signalling"] == "block barrier"
    access: Access = "read" if pull else "write"
    here, there = ("received", "sent") if pull else ("sent", "received")
    to, lies = ("pieces.received[p]", "starts[p]") if pull else ("starts[p]", "pieces.sent[p]")
    if knobs["copy"] == "pkb::copy":
        peer_to, peer_lies = ("recv", "comm.peer(send, r)") if pull else ("comm.peer(recv, r)", "send")
        copy = cuda_copy("pkb::copy", f"{peer_to} + {to} * row", f"{peer_lies} + {lies} * row", "rows * row")
    else:
        copy = CUDA_ROWS
    constants, line, blocks = cuda_geometry(knobs["threads"], knobs["blocks"], "uint64_t(even) * row")
    return {
        "constants": constants,
        "start": there,
        "here": here,
        "meet_in_kernel": f"comm.barrier_blocks();  // {BEGUN[access]}" if in_kernel else "",
        "pieces": CUDA_PIECE if grid else CUDA_LOOP,
        "piece": CUDA_PIECE,
        "place": "int(blockIdx.y)" if grid else "i",
        "copy": copy,
        "rows": str(knobs["copy"]).removeprefix("rows "),
        "put": "get" if pull else "put",
        "to": to,
        "lies": lies,
        "meet_on_host": "" if in_kernel else f"comm.barrier();  // {BEGUN[access]}",
        "done": DONE[access],
        "blocks_line": line,
        "grid": f"dim3({blocks}, members.size)" if grid else blocks,
    }


FAMILIES = (
    Family("MoEAllToAll", "cpp", CPP_CHOICES, CPP, cpp_pieces, cpp_makes_sense),
    Family("MoEAllToAll", "cuda", CUDA_CHOICES, CUDA, cuda_pieces, cuda_makes_sense),
)
