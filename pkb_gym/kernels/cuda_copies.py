"""Pieces of CUDA sources that copy a block for each rank, or one block: kernels and their launches, or copy engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pkb_gym.kernels.family import ORDERS, Knobs
from pkb_gym.kernels.meetings import CudaMeetings
from pkb_gym.kernels.pieces import cuda_copy, cuda_geometry
from pkb_gym.kernels.text import fill

Ends: TypeAlias = Callable[[str, str], tuple[str, str]]
"""Function from the beginnings of sent and received blocks to the destination and place of rank r's block, as addresses
of this rank."""


@dataclass(frozen=True)
class Copies:
    """Text that makes copies.

    Attributes:
        constants: Constants of the kernel; empty without one.
        kernel: Text of the kernel; empty without one.
        blocks: Line of the host that counts the kernel's blocks; may be empty.
        launch: Lines of the host that make the copies.
    """

    constants: str
    kernel: str
    blocks: str
    launch: str


LOOP = """
$function

__global__ void __launch_bounds__(kThreads)
copy_blocks(const char* from, char* to, uint64_t block, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size;
  $enter
  for (int i = 0; i < W; ++i) {
    const int r = $order;
    $copy
  }
  $leave
}
"""

GRID = """
__global__ void __launch_bounds__(kThreads)
copy_blocks(const char* from, char* to, uint64_t block, const __grid_constant__ pkb::Device comm) {
  const int W = comm.world_size, i = blockIdx.y, r = $order;
  $enter
  $copy
}
"""

ONE = """
__global__ void __launch_bounds__(kThreads) copy_block(char* to, const char* from, uint64_t bytes) {
  $copy
}
"""

LAUNCH = """
copy_blocks<<<$grid, kThreads, 0, comm.cuda_stream()>>>($source, $target, block, comm.device());
PKB_CUDA_LAUNCHED();
"""

LAUNCH_ONE = """
copy_block<<<$grid, kThreads, 0, comm.cuda_stream()>>>($to, $from, block);
PKB_CUDA_LAUNCHED();
"""

FOR_EACH_RANK = """
for (int i = 0; i < W; ++i) {
  const int r = $order;
  $body
}
"""

SIDE_BY_SIDE = """
pkb::Move moves[pkb::kMaxRanks];
$loop
pkb::copy_side_by_side(moves, W, block, comm.cuda_stream());
"""


def copies_by_rank(knobs: Knobs, *, push: bool, ends: Ends, source: str, target: str, meetings: CudaMeetings) -> Copies:
    """One copy for each rank r of `block` bytes.

    Args:
        knobs: Values of "copy", "spread", "threads", "blocks" and "order".
        push: Whether rank r receives the copy, rather than sends it.
        ends: Function to the target and the source of the copy for rank r.
        source: Start of the sent blocks, as an expression of the host.
        target: Start of the received blocks, as an expression of the host.
        meetings: Waits of the kernel. Those of blocks need "loop", where block b copies the same part of
            what every rank receives.
    """
    copy, spread, order = knobs["copy"], knobs["spread"], ORDERS[knobs["order"]]
    to, lies = ends(source, target)
    if copy == "copy engine":
        body = f"comm.{'put' if push else 'get'}({to}, {lies}, block, r);"
        return Copies("", "", "", fill(FOR_EACH_RANK, order=order, body=body))
    there, here = _at_rank(push, to, lies)
    if copy == "copy engines":
        loop = fill(FOR_EACH_RANK, order=order, body=f"moves[i] = {{{there}, {here}}};")
        return Copies("", "", "", fill(SIDE_BY_SIDE, loop=loop))
    if spread == "launches":
        single = one_copy(knobs, there, here)
        loop = fill(FOR_EACH_RANK, order=order, body=single.launch)
        return Copies(single.constants, single.kernel, single.blocks, loop)
    constants, line, blocks = cuda_geometry(knobs["threads"], knobs["blocks"], "block")
    there, here = _at_rank(push, *ends("from", "to"))
    kernel = fill(
        LOOP if spread == "loop" else GRID,
        function=meetings.function,
        enter=meetings.enter,
        order=order,
        copy=cuda_copy(copy, there, here, "block"),
        leave=meetings.leave,
    )
    grid = blocks if spread == "loop" else f"dim3({blocks}, W)"
    return Copies(constants, kernel, line, fill(LAUNCH, grid=grid, source=source, target=target))


def one_copy(knobs: Knobs, to: str, lies: str) -> Copies:
    """One copy of `block` bytes by a kernel.

    Args:
        knobs: Values of "copy", "threads" and "blocks".
        to: Address of the target.
        lies: Address of the source.
    """
    constants, line, blocks = cuda_geometry(knobs["threads"], knobs["blocks"], "block")
    kernel = fill(ONE, copy=cuda_copy(knobs["copy"], "to", "from", "bytes"))
    return Copies(constants, kernel, line, fill(LAUNCH_ONE, grid=blocks, to=to, **{"from": lies}))


def _at_rank(push: bool, to: str, lies: str) -> tuple[str, str]:
    return (f"comm.peer({to}, r)", lies) if push else (to, f"comm.peer({lies}, r)")
