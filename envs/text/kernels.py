"""The CUDA compiler's report on each kernel, as a small table and a line on how data moves."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources
from pkb_gym.engine.records.feedback import CompileReport
from pkb_gym.envs.text.formatting import size_text, without_unnamed

MAX_KERNELS = 12
MAX_NAME_CHARS = 32
COLUMNS = ("kernel", "registers", "shared", "stack", "spill st", "spill ld")

INSTRUCTIONS: dict[str, str] = {
    "loads": "loads",
    "stores": "stores",
    "system_loads": "system-scope loads",
    "system_stores": "system-scope stores",
    "atomics": "atomics",
    "async_copies": "cp.async",
    "bulk_copies": "bulk copies (cp.async.bulk)",
    "bulk_reductions": "bulk reductions (cp.reduce.async.bulk)",
    "tensor_loads": "TMA tensor loads",
    "tensor_stores": "TMA tensor stores",
    "tensor_reductions": "TMA tensor reductions",
    "multimem": "multicast operations (multimem)",
    "local_loads": "local-memory loads",
    "local_stores": "local-memory stores",
    "matrix": "matrix operations",
}
"""Field of `InstructionCounts` -> what an agent calls it."""


def kernels_text(report: CompileReport) -> str:
    """The table and the line; empty where there are no GPU kernels."""
    if not report.kernels:
        return ""
    return f"{kernel_table(report.kernels)}\n{transfers_text(report.transfers)}"


def kernel_table(kernels: Sequence[KernelResources]) -> str:
    """One line for each kernel, under a head, narrow enough for a card.

    Registers, stack and spills (stores and loads) are those of one thread; shared memory is the static part.
    """
    rows = [COLUMNS, *kernel_rows(kernels)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join([*lines, *kernels_left_out(kernels)])


def kernel_rows(kernels: Sequence[KernelResources]) -> list[tuple[str, ...]]:
    """The cells of `kernel_table` under `COLUMNS`."""
    return [_cells(kernel) for kernel in kernels[:MAX_KERNELS]]


def kernels_left_out(kernels: Sequence[KernelResources]) -> list[str]:
    """The line on kernels that have no row, if there are any."""
    left_out = len(kernels) - MAX_KERNELS
    return [f"and {left_out} more kernels"] if left_out > 0 else []


def transfers_text(counts: InstructionCounts | None) -> str:
    """The instructions that move data through global memory and links, as found in the machine code."""
    if counts is None:
        return "Instructions: not read; cuobjdump is missing (pip install 'pkb-gym[cuda]') or failed."
    found = [f"{INSTRUCTIONS[name]} {count}" for name, count in counts.model_dump().items() if count]
    return f"Instructions in the machine code: {', '.join(found) or 'none that move data'}."


def _cells(kernel: KernelResources) -> tuple[str, ...]:
    name = without_unnamed(kernel.name)
    name = name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 3]}..."
    sizes = (kernel.shared_bytes, kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes)
    return (name, str(kernel.registers), *(size_text(size) if size else "0" for size in sizes))
