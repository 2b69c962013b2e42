"""The report of `ptxas -v` on each kernel, as records, and the log without it."""

from __future__ import annotations

import re
from dataclasses import dataclass

INFO = "ptxas info"
_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
_FUNCTION = re.compile(r"Function properties for '?([^'\s]+)'?")
# A source can have such lines written too (`#line`): numbers are no longer than any of ptxas.
_FRAME = re.compile(r"^\s+(\d{1,9}) bytes stack frame, (\d{1,9}) bytes spill stores, (\d{1,9}) bytes spill loads")
_USED = re.compile(r"Used (\d{1,9}) registers")
_BARRIERS = re.compile(r"used (\d{1,9}) barriers")
_SHARED = re.compile(r"(?<!\d)(\d{1,9}) bytes smem")
_STACK = re.compile(r"(?<!\d)(\d{1,9}) bytes cumulative stack size")
_PARSED = re.compile(
    r"\d+ bytes gmem|Compile time =|Function properties for|Compiling entry function|Used \d+ registers"
)


@dataclass
class KernelUsage:
    """The report of ptxas on one kernel; see `KernelResources`."""

    mangled: str
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    barriers: int = 0


def read_ptxas(log: str) -> tuple[list[KernelUsage], str]:
    """The kernels in order, and the log without what they hold.

    Other output of ptxas, such as a warning that wgmma instructions had to be serialized, stays in the log.
    """
    kernels: dict[str, KernelUsage] = {}
    rest = []
    kernel: KernelUsage | None = None
    described: KernelUsage | None = None
    for line in log.splitlines():
        if line.startswith(INFO):
            if found := _ENTRY.search(line):
                kernel = described = kernels.setdefault(found[1], KernelUsage(found[1]))
            elif found := _FUNCTION.search(line):
                # Functions that were not inlined have properties too; the lines of a kernel itself are kept apart.
                described = kernels.get(found[1])
            elif kernel is not None and (found := _USED.search(line)):
                _note_usage(kernel, line, int(found[1]))
            if _PARSED.search(line):
                continue
        elif found := _FRAME.search(line):
            if described is not None:
                stack, stores, loads = map(int, found.groups())
                described.stack_bytes, described.spill_store_bytes, described.spill_load_bytes = stack, stores, loads
            continue
        rest.append(line)
    return list(kernels.values()), "\n".join(rest).strip()


def _note_usage(kernel: KernelUsage, line: str, registers: int) -> None:
    kernel.registers = registers
    kernel.barriers = _number(_BARRIERS, line)
    kernel.shared_bytes = _number(_SHARED, line)
    # The frames of the functions it calls included, where there are any.
    kernel.stack_bytes = max(kernel.stack_bytes, _number(_STACK, line))


def _number(pattern: re.Pattern[str], line: str) -> int:
    found = pattern.search(line)
    return int(found[1]) if found else 0
