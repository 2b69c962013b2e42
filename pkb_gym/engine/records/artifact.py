"""The product of a compile."""

from __future__ import annotations

from dataclasses import dataclass, field

from pkb_gym.engine.records.compiler_report import InstructionCounts, KernelResources


@dataclass(frozen=True)
class Artifact:
    """The result of one compile, good or bad.

    Attributes:
        ok: whether there is something to load.
        log: the output of the compiler or the first import.
        duration_s: wall time of the compile (of the original one where it came from the cache).
        binary: the shared object of a native source; None otherwise.
        extensions: C++ extensions that a Python module built when it was imported, by name.
        kernels: the resources of each GPU kernel, from the CUDA compiler's report.
        transfers: instructions of all GPU kernels together; None where they were not read.
        cached: whether it came from the cache.
    """

    ok: bool
    log: str
    duration_s: float
    binary: bytes | None = None
    extensions: dict[str, bytes] = field(default_factory=dict)
    kernels: tuple[KernelResources, ...] = ()
    transfers: InstructionCounts | None = None
    cached: bool = False
