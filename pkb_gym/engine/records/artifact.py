"""The product of a compile."""

from __future__ import annotations

from dataclasses import dataclass, field

from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources


@dataclass(frozen=True)
class Artifact:
    """The result of one compile, good or bad.

    Attributes:
        ok: Whether there is something to load.
        log: Output of the compiler or of the first import.
        duration_s: Wall time of the compile in seconds (of the original one where it came from the cache).
        binary: Shared object of a native source; None otherwise.
        object_file: Object that `binary` was linked of, where it is to be linked once more; None otherwise.
        extensions: C++ extensions that a Python module built when it was imported, by name.
        kernels: Resources of each GPU kernel, from the CUDA compiler's report.
        transfers: Instruction counts of all GPU kernels together; None where they were not read.
        cached: Whether it came from the cache.
    """

    ok: bool
    log: str
    duration_s: float
    binary: bytes | None = None
    object_file: bytes | None = None
    extensions: dict[str, bytes] = field(default_factory=dict)
    kernels: tuple[KernelResources, ...] = ()
    transfers: InstructionCounts | None = None
    cached: bool = False
