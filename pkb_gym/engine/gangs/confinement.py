"""The limits of the ranks that run candidate code."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.wire.forking import NO_CORE_BYTES


@dataclass(frozen=True)
class Confinement:
    """The limits of candidate ranks; None in its place means a trusted gang.

    Attributes:
        memory_bytes: Address space beyond what a fresh rank maps; None where ranks limit themselves later.
        file_bytes: Size of the largest file that a rank may write.
        allow_processes: Whether ranks may start programs (a build needs compilers).
        pins_memory: Whether ranks may map shared memory without a name, as CUDA's driver does. Address space that a
            rank has given up still holds such memory, as long as a page of it is mapped.
        open_files: Number of descriptors of a rank, at most. A user's descriptors that are under way between processes
            are counted together: ranks that may hold fewer leave others room to send some (unix(7), ETOOMANYREFS).
    """

    memory_bytes: int | None
    file_bytes: int = 128 << 20
    allow_processes: bool = False
    pins_memory: bool = False
    open_files: int = 1024

    def limits(self) -> dict[str, int]:
        """Resource limits by name, in the form that `rankside.confine.limit_resources` takes."""
        memory = {} if self.memory_bytes is None else {"RLIMIT_AS": self.memory_bytes}
        return memory | {
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CORE": NO_CORE_BYTES,
            "RLIMIT_NOFILE": self.open_files,
        }
