"""The calls of a block as files that `debugging/harness.cpp` reads: what one rank is called with, and should return.

Blanks separate fields. `calls.txt`, which the evaluator writes:

    pkb-calls 1 WORLD_SIZE SEGMENT_BYTES SCRATCH_OFFSET SCRATCH_BYTES SIGNAL_OFFSET CALLS
    TRIAL TOGETHER LATE_RANK DELAY_US HOLD_NS...                                   of each call; a hold of each rank

`rankR.txt`, which each reference rank writes, names tensors whose bytes follow each other in `rankR.bin`:

    groups COUNT {SIZE RANK RANKS...}
    call OUTPUTS_OFFSET END ARGUMENTS {argument} INPUTS {slot} OUTPUTS {slot}      of each call
    slot:     NAME OFFSET BYTES CODE BITS DIMENSIONS {LENGTH}
    argument: none | int N | bool 0 | float X | text LENGTH TEXT | tensor slot | list LENGTH {argument}

Offsets are those of the segment; RETURNED stands for an output that the kernel returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pkb_gym.engine.compare.call_specs import call_spec
from pkb_gym.engine.compare.layout import PlacedLeaf, SetPlan, placed_results
from pkb_gym.engine.compare.stacked import byte_slot
from pkb_gym.engine.problem import ITEMSIZE, Output
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.rankside.dlpack import DTYPE_CODES
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.wire.arguments import Argument, GroupArgument, ScalarArgument, TensorSlot

if TYPE_CHECKING:
    import torch

RETURNED = 2**64 - 1


def rank_files(folder: Path, rank: int) -> tuple[Path, Path]:
    """The two files of a rank."""
    return folder / f"rank{rank}.txt", folder / f"rank{rank}.bin"


def keep_rank(folder: Path, block: BoundBlock, expected: Sequence[Mapping[str, torch.Tensor]], calls: int) -> None:
    """Writes a rank's files.

    Args:
        folder: Folder that holds them.
        block: The calls.
        expected: The baseline's results of each call.
        calls: Number of calls, counted from the first.

    Raises:
        OSError: they cannot be written.
    """
    text_file, bytes_file = rank_files(folder, block.rank)
    with text_file.open("w", encoding="utf-8") as text, bytes_file.open("wb") as data:
        print("groups", len(block.plan.partitions), file=text)
        for partition in block.plan.partitions:
            print(*_group_fields(partition, block.rank), file=text)
        for planned, results in zip(block.plan.sets[:calls], expected, strict=False):
            print(*_call_fields(block, planned, results, data), file=text)


def _group_fields(partition: Sequence[Sequence[int]], rank: int) -> tuple[int, ...]:
    own = next((ranks for ranks in partition if rank in ranks), ())
    return len(own), (own.index(rank) if own else -1), *own


def _call_fields(
    block: BoundBlock, planned: SetPlan, results: Mapping[str, torch.Tensor], data: BinaryIO
) -> Iterator[object]:
    """The line of a call; the bytes of its tensors go to `data` on the way."""
    problem, rank = block.problem, block.rank
    names = {placed.offset: name for name, placed in planned.leaves[rank].items()}
    spec = call_spec(problem, replace(block.plan, sets=(planned,)), planned, rank, "native")
    parameters = [part for argument in spec.arguments for part in _parameters(argument, names)]
    yield from ("call", planned.outputs_offset, planned.offset + planned.nbytes, len(parameters), *parameters)
    leaves = [leaf.name for arg in problem.data_args for leaf in argument_leaves(arg, planned.axes[rank])]
    yield len(leaves)
    for name in leaves:
        placed = planned.leaves[rank][name]
        data.write(_bytes_of(block.heap.tensor(byte_slot(placed.offset, placed.leaf.capacity_bytes))))
        yield _slot_text(name, placed.slot)
    outputs = placed_results(problem, planned, rank)
    yield len(outputs)
    for out, placed in outputs:
        data.write(_bytes_of(results[placed.leaf.name]))
        is_returned = isinstance(out, Output) and out.is_returned
        yield _output_text(placed, tuple(results[placed.leaf.name].shape), is_returned=is_returned)


def _parameters(argument: Argument, names: Mapping[int, str]) -> list[str]:
    """The parameters of a native kernel that one argument becomes, as `rankside.native` makes them."""
    if isinstance(argument, ScalarArgument):
        return [_scalar_text(argument.value)]
    if isinstance(argument, GroupArgument):
        return [f"int {-1 if argument.partition is None else argument.partition}"]
    tensors = ["none" if slot is None else f"tensor {_slot_text(names[slot.offset], slot)}" for slot in argument.slots]
    return [" ".join(["list", str(len(tensors)), *tensors])] if argument.kind in ("list", "bare") else tensors


def _scalar_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"bool {int(value)}"
    if isinstance(value, int):
        return f"int {value}"
    if isinstance(value, float):
        return f"float {value.hex()}"
    if isinstance(value, str):
        return f"text {len(value.encode())} {value}"
    assert isinstance(value, tuple)
    return " ".join(["list", str(len(value)), *map(_scalar_text, value)])


def _slot_text(name: str, slot: TensorSlot) -> str:
    assert slot.shape is not None
    return _tensor_text(name, slot.offset, slot.shape, slot.dtype)


def _output_text(placed: PlacedLeaf, shape: tuple[int, ...], *, is_returned: bool) -> str:
    return _tensor_text(placed.leaf.name, RETURNED if is_returned else placed.offset, shape, placed.leaf.dtype)


def _tensor_text(name: str, offset: int, shape: tuple[int, ...], dtype: str) -> str:
    elements = 1
    for length in shape:
        elements *= length
    code, bits = DTYPE_CODES[dtype]
    return " ".join(map(str, (name, offset, elements * ITEMSIZE[dtype], code, bits, len(shape), *shape)))


def _bytes_of(tensor: torch.Tensor) -> bytes:
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes() if tensor.numel() else b""
