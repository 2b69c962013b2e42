"""The messages between the evaluator, a zygote and a gang's leader.

ZygoteReady                  the zygote has torch loaded
GangRequest -> GangStarted   with a pidfd of the leader, or ForkFailed
RanksStarted                 of the leader, with a pidfd of each rank; then RankEnded, once for each rank that ends
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import WireMessage

PRELOADED = "/proc/self/./fd/"
"""The library that a zygote is started with stands first in LD_PRELOAD, behind this its descriptor. The dynamic linker
takes a name that it knows for the library that it knows: no other library is loaded by a name of this form."""

NO_CORE_BYTES = 1
"""The limit of core dumps by which there are none. One of 0 does not count where they are piped to a program (core(5)),
which would then write a crashed rank's memory to the machine's disk; 1 is the kernel's own mark of such a program."""


@dataclass(frozen=True)
class ZygoteReady(WireMessage):
    """It has loaded torch."""


@dataclass(frozen=True)
class GangRequest(WireMessage):
    """The settings of a gang to be started.

    Attributes:
        entry: Module whose `main(wire, rank, world_size)` each rank runs; with a leading dot, one of this folder.
        world_size: Number of ranks.
        isolate: Whether the leader is process 1 of its own namespaces.
        confined: Whether ranks give up processes and privileges (they run candidate code).
        allow_processes: Whether confined ranks may start processes (a build needs compilers).
        pins_memory: Whether confined ranks may map shared memory without a name.
        limits: Resource limits of each rank.
        scratch: Working folder of the ranks.
        temporary_bytes: Size of /tmp and of /dev/shm where isolated.
        max_threads: Number of threads of all ranks together, at most, where isolated on a kernel that can limit them.
    """

    entry: str
    world_size: int
    isolate: bool
    confined: bool
    allow_processes: bool
    pins_memory: bool
    limits: dict[str, int]
    scratch: str
    temporary_bytes: int
    max_threads: int


@dataclass(frozen=True)
class GangStarted(WireMessage):
    """The leader of a gang was forked."""


@dataclass(frozen=True)
class ForkFailed(WireMessage):
    """No gang could be forked.

    Attributes:
        text: Why.
    """

    text: str


@dataclass(frozen=True)
class RanksStarted(WireMessage):
    """All ranks of a gang run."""


@dataclass(frozen=True)
class RankEnded(WireMessage):
    """A rank has ended.

    Attributes:
        rank: Number of the rank.
        status: Exit status, or minus the signal that ended it.
    """

    rank: int
    status: int
