"""Pieces of text by which ranks wait for each other: at the beginning of a call, on its way, and at its end.

Comments give the purpose of each wait. `pkb_gym.corpus.breakages` finds the waits by these comments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pkb_gym.kernels.family import Knob

Access: TypeAlias = Literal["read", "write", "touch"]
"""The use that ranks make of each other's arguments and outputs: read arguments, write outputs, or both."""

BEGUN: dict[Access, str] = {
    "read": "peers' arguments are there: their calls have begun",
    "write": "peers' outputs may be written: their calls have begun",
    "touch": "peers' memory may be touched: their calls have begun",
}
"""Why ranks wait at the beginning."""

DONE: dict[Access, str] = {
    "read": "by now peers have read this rank's arguments",
    "write": "by now peers have written this rank's output",
    "touch": "by now peers are done with this rank's memory",
}
"""Why ranks wait at the end."""

SENT = "what peers have sent is there"
STAGED = "what peers have staged is there"
FREE = "comm.barrier();  // the next call overwrites the scratch"
HALF = "comm.epoch % 2 * (comm.scratch_bytes / 2)"
HALVES = "Two halves in turn: the last call's may still be in use."
"""Why scratch is addressed by the epoch's parity: a rank that waits for its peers is at most one call ahead of them."""


def scratch(kind: str, name: str, *, halves: bool) -> str:
    """A line that names scratch.

    Halves lie at fixed places, whatever a call needs: shapes may differ from call to call.

    Args:
        kind: Type of an element.
        name: Name of the pointer.
        halves: Whether calls use two halves in turn.
    """
    if not halves:
        return f"{kind}* {name} = comm.scratch<{kind}>();"
    return f"// {HALVES}\n{kind}* {name} = comm.scratch<{kind}>({HALF});"


# ---- on the CPU -----------------------------------------------------------------------------------------------------


def cpp_meet(kind: Knob, reason: str, phase: int = 0) -> str:
    """All ranks wait for all.

    Args:
        kind: "barrier", or "signals" with a word for each rank.
        reason: Text of the comment.
        phase: Number that distinguishes the signals of one call, from 0.
    """
    if kind == "barrier":
        return f"comm.barrier();  // {reason}"
    return f"{signal_all(phase)}\n{wait_for_all(reason, phase)}"


def signal_all(phase: int = 0) -> str:
    """A signal to every rank."""
    return f"for (int r = 0; r < W; ++r) {signal_to('r', phase)}"


def wait_for_all(reason: str, phase: int = 0) -> str:
    """Waits for a signal of every rank."""
    return f"for (int r = 0; r < W; ++r) {wait_for('r', reason, phase)}"


def signal_to(rank: str, phase: int = 0) -> str:
    """A signal to one rank, in the word of this rank."""
    return f"comm.signal({_slots(phase)}comm.rank, {rank});"


def wait_for(rank: str, reason: str, phase: int = 0) -> str:
    """Waits for a signal of one rank."""
    return f"comm.wait({_slots(phase)}{rank});  // {reason}"


def _slots(phase: int) -> str:
    return "" if phase == 0 else "pkb::kMaxRanks + " if phase == 1 else f"{phase} * pkb::kMaxRanks + "


# ---- on GPUs --------------------------------------------------------------------------------------------------------

_CUDA_SIGNALS = """
// Block b of this rank signals block b of each rank which phase it has reached, and waits until they have, too.
__device__ void meet(const pkb::Device& comm, uint64_t phase) {
  __syncthreads();
  if (threadIdx.x < comm.world_size) {
    comm.signal(blockIdx.x * pkb::kMaxRanks + comm.rank, threadIdx.x, 2 * comm.epoch + phase);
    comm.wait(blockIdx.x * pkb::kMaxRanks + threadIdx.x, 2 * comm.epoch + phase);
  }
  __syncthreads();
}
"""


@dataclass(frozen=True)
class CudaMeetings:
    """The meetings of ranks around and in a kernel.

    Attributes:
        function: Function that the kernel calls; may be empty.
        before: Lines of the host before the launch.
        enter: Lines of the kernel before it touches peers' memory.
        leave: Last lines of the kernel.
        after: Lines of the host after the launch.
    """

    function: str = ""
    before: str = ""
    enter: str = ""
    leave: str = ""
    after: str = ""


IN_KERNEL = ("block barrier", "split barrier", "signals")
"""Ways to wait for which all blocks must be resident, and at most 64."""


def cuda_meetings(kind: Knob, access: Access) -> CudaMeetings:
    """Ranks wait for each other at the beginning and at the end.

    Args:
        kind: "host barrier", "begun words" (in the kernel at its beginning, on the host at its end), or of blocks:
            "block barrier", "split barrier" (whose first half is for the caller to place, see `ARRIVE`), "signals".
        access: Use of each other's memory that the ranks wait for.
    """
    begun, done = BEGUN[access], DONE[access]
    if kind == "host barrier":
        return CudaMeetings(before=f"comm.barrier();  // {begun}", after=f"comm.barrier();  // {done}")
    if kind == "begun words":
        enter = f"comm.signal_begun();\ncomm.wait_all_begun();  // {begun}"
        return CudaMeetings(enter=enter, after=f"comm.barrier();  // {done}")
    if kind == "signals":
        return CudaMeetings(
            _CUDA_SIGNALS.strip("\n"), enter=f"meet(comm, 0);  // {begun}", leave=f"meet(comm, 1);  // {done}"
        )
    leave = f"comm.barrier_blocks(1);  // {done}"
    if kind == "split barrier":
        return CudaMeetings(enter=f"comm.wait_blocks(0);  // {begun}", leave=leave)
    return CudaMeetings(enter=f"comm.barrier_blocks(0);  // {begun}", leave=leave)


def cuda_meet(kind: Knob, reason: str) -> tuple[str, str]:
    """Blocks wait for each other once in a kernel.

    Args:
        kind: "block barrier" or "signals".
        reason: Text of the comment.

    Returns:
        A function that the kernel calls, or nothing, and the line of the kernel.
    """
    if kind == "signals":
        return _CUDA_SIGNALS.strip("\n"), f"meet(comm, 0);  // {reason}"
    return "", f"comm.barrier_blocks();  // {reason}"


ARRIVE = "comm.arrive_blocks(0);"
"""First half of a split barrier: what follows it, until the wait, must be this rank's own business."""
