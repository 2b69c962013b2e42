"""The mechanisms that move data between GPUs, found in a trace, in machine code and in the links' counters."""

from __future__ import annotations

from typing import Literal

from pkb_gym.engine.records.compiler_report import InstructionCounts

Mechanism = Literal["copy engine", "NCCL", "SM load/store", "TMA", "multicast", "kernels"]
"""How data moves: by copy engines, by NCCL, by plain loads and stores of the SMs, by their TMA unit, through NVLink's
multicast, or by kernels whose machine code was not read."""

EXPLAINED = 0.9
"""Copies that make up this share of what crossed the links leave nothing for kernels to have moved."""


def transfer_mechanisms(
    code: InstructionCounts | None,
    *,
    peer_copied_bytes: float,
    own_copied_bytes: float,
    nccl: bool,
    moved_bytes: float | None,
) -> tuple[Mechanism, ...]:
    """The mechanisms in use.

    The memory that an instruction accesses is unknown: a kernel with TMA for its own memory alone is listed with it.
    Counts of bytes are sums over ranks and calls.

    Args:
        code: Instruction counts of the candidate's kernels; None where they were not read.
        peer_copied_bytes: Bytes that copy engines moved between GPUs.
        own_copied_bytes: Bytes that they moved from device to device without the trace saying that these are two.
        nccl: Whether NCCL's kernels ran.
        moved_bytes: Bytes that left GPUs by NVLink; None or 0 where its counters, which go by KiB, show nothing.
    """
    moved = moved_bytes or None
    copied = peer_copied_bytes
    if not copied and moved and EXPLAINED * moved <= own_copied_bytes <= moved / EXPLAINED:
        copied = own_copied_bytes
    found: list[Mechanism] = ["copy engine"] if copied else []
    if nccl:
        found.append("NCCL")
    if moved and copied >= EXPLAINED * moved:
        return tuple(found)
    if code is None:
        return tuple(found) if found or not moved else ("kernels",)
    if code.loads + code.stores + code.system_loads + code.system_stores + code.atomics + code.async_copies:
        found.append("SM load/store")
    if code.bulk_copies + code.bulk_reductions + code.tensor_loads + code.tensor_stores + code.tensor_reductions:
        found.append("TMA")
    if code.multimem:
        found.append("multicast")
    return tuple(found)
