"""Wrong tensors as `.npy` files, which a reference rank writes while they lie in the candidate's heap.

NumPy has no bfloat16 and no 8-bit floats: such tensors are written as float32, which holds every one of their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pkb_gym.engine.compare.layout import PlacedLeaf
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.reference.dumped_tensor import Dumped

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap


def dump(
    folder: Path, block: BoundBlock, heap: AnyHeap, expected: Mapping[str, torch.Tensor], call: int, wanted: Dumped
) -> None:
    """Writes what the candidate has and what it should have, where this rank has that tensor.

    Args:
        folder: Folder that holds the files.
        block: Block that the call belongs to.
        heap: Heap of the candidate.
        expected: The baseline's results of the call.
        call: Number within the block.
        wanted: The tensor.

    Raises:
        OSError: a file cannot be written.
    """
    placed = block.plan.sets[call].leaves[block.rank].get(wanted.name)
    if placed is None:
        return
    right = expected.get(wanted.name)
    if right is None:
        right = block.heap.tensor(placed.slot)
    np.save(wanted.path(folder, block.rank, "expected"), _as_numpy(right), allow_pickle=False)
    np.save(wanted.path(folder, block.rank, "got"), _as_numpy(_held(heap, placed, right)), allow_pickle=False)


def _held(heap: AnyHeap, placed: PlacedLeaf, right: torch.Tensor) -> torch.Tensor:
    """The tensor where it lies; one whose size depends on the data is taken to have the right one."""
    return heap.tensor(placed.slot if placed.slot.shape is not None else placed.slot.shaped(tuple(right.shape)))


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    import torch

    has_numpy_dtype = tensor.dtype not in (torch.bfloat16, torch.float8_e4m3fn)
    return (tensor if has_numpy_dtype else tensor.float()).detach().cpu().numpy()
