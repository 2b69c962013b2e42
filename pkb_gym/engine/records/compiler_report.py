"""The CUDA compiler's report on each kernel: resources by ptxas, and counts of instructions in the machine code."""

from __future__ import annotations

from typing import Self

from pkb_gym.engine.records.base import Record


class InstructionCounts(Record):
    """Instructions that show how data moves, counted in the machine code; how often each one runs is not known."""

    loads: int = 0
    """Plain loads from global memory, the rank's own or a peer's (LD, LDG)."""
    stores: int = 0
    """Plain stores to global memory (ST, STG)."""
    system_loads: int = 0
    """Loads of system scope: acquiring signals of other GPUs, volatile reads (LD, LDG with .SYS)."""
    system_stores: int = 0
    """Stores of system scope: releasing signals to other GPUs, volatile writes (ST, STG with .SYS)."""
    atomics: int = 0
    """Atomic operations and reductions on global memory, of any scope (ATOM, ATOMG, RED, REDG)."""
    async_copies: int = 0
    """cp.async instructions, from global to shared memory (LDGSTS)."""
    bulk_copies: int = 0
    """cp.async.bulk instructions: the TMA unit copies plain ranges (UBLKCP)."""
    bulk_reductions: int = 0
    """cp.reduce.async.bulk instructions: the TMA unit adds to plain ranges (UBLKRED)."""
    tensor_loads: int = 0
    """Loads of tiles through tensor maps by the TMA unit (UTMALDG)."""
    tensor_stores: int = 0
    """Stores of tiles through tensor maps by the TMA unit (UTMASTG)."""
    tensor_reductions: int = 0
    """Reductions into tiles through tensor maps by the TMA unit (UTMAREDG)."""
    multimem: int = 0
    """NVLink multicast: multimem.ld_reduce (LDGMC). multimem.st and .red look like stores and atomics."""
    local_loads: int = 0
    """Loads from local memory: spilled registers, arrays with computed indices, the stack (LDL)."""
    local_stores: int = 0
    """Stores to local memory (STL)."""
    matrix: int = 0
    """Operations of the matrix units (HMMA, HGMMA, QGMMA, IMMA, DMMA and similar)."""

    def __add__(self, other: Self) -> InstructionCounts:
        """The counts of both together."""
        return InstructionCounts(
            **{name: getattr(self, name) + getattr(other, name) for name in InstructionCounts.model_fields}
        )


class KernelResources(Record):
    """Resources of an SM that one kernel needs, as ptxas reports them."""

    name: str
    """Demangled, without parameters."""
    registers: int
    """Registers per thread."""
    shared_bytes: int
    """Static shared memory per block; the dynamic part of a launch comes on top."""
    stack_bytes: int
    """Local memory per thread, in bytes."""
    spill_store_bytes: int
    """Registers written to local memory for want of room, in bytes per thread."""
    spill_load_bytes: int
    """Registers read back from local memory, in bytes per thread."""
    barriers: int
    """Named barriers of a block, at most 16."""
    instructions: InstructionCounts | None
    """Instruction counts; None where the machine code was not read."""
