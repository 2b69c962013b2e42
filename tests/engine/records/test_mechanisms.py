"""The mechanisms that moved data, found in code, trace and counters."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.records.mechanisms import transfer_mechanisms

CODE = InstructionCounts(loads=8, stores=2)
BYTES = {"peer_copied_bytes": 0.0, "own_copied_bytes": 0.0, "nccl": False, "moved_bytes": None}


@pytest.mark.parametrize(
    ("code", "changes", "found"),
    [
        (None, {}, ()),
        (None, {"nccl": True, "moved_bytes": 1000}, ("NCCL",)),
        (None, {"moved_bytes": 1000}, ("kernels",)),
        (None, {"moved_bytes": 1000, "peer_copied_bytes": 1000}, ("copy engine",)),
        (CODE, {}, ("SM load/store",)),
        (CODE, {"peer_copied_bytes": 1000}, ("copy engine", "SM load/store")),
        (CODE, {"peer_copied_bytes": 1000, "moved_bytes": 1010}, ("copy engine",)),
        (CODE, {"peer_copied_bytes": 500, "moved_bytes": 1000}, ("copy engine", "SM load/store")),
        (CODE, {"own_copied_bytes": 990, "moved_bytes": 1000}, ("copy engine",)),
        (CODE, {"own_copied_bytes": 5000, "moved_bytes": 1000}, ("SM load/store",)),
        (CODE, {"moved_bytes": 0}, ("SM load/store",)),
        (InstructionCounts(bulk_copies=1), {}, ("TMA",)),
        (InstructionCounts(loads=1, tensor_loads=2, multimem=1), {}, ("SM load/store", "TMA", "multicast")),
        (InstructionCounts(matrix=4), {}, ()),
    ],
)
def test_mechanisms(code: InstructionCounts | None, changes: dict[str, object], found: tuple[str, ...]) -> None:
    assert transfer_mechanisms(code, **(BYTES | changes)) == found
