"""The evaluator's part in handovers: it hands the compiled libraries and the ends of the channels to the ranks."""

from __future__ import annotations

import contextlib
import os
from typing import Self

from pkb_gym.engine.gangs.heaps import memory_file
from pkb_gym.engine.support.eventfds import drain


class HandoverLibraries:
    """The compiled handovers, as files that ranks can load.

    Args:
        server: The library of the trusted side.
        rank: Library of the rank's side, on GPUs; None on the CPU.
        sampler: Library of `reference/output_sampler.cpp`, on GPUs; None on the CPU.
    """

    def __init__(self, server: bytes, rank: bytes | None = None, sampler: bytes | None = None) -> None:
        self._server_fd = memory_file("pkb-handover-server", server)
        self._rank_fds = () if rank is None else (memory_file("pkb-handover", rank),)
        self._sampler_fds = () if sampler is None else (memory_file("pkb-output-sampler", sampler),)

    @property
    def reference_fds(self) -> tuple[int, ...]:
        """Descriptors for ranks of reference gangs."""
        return (self._server_fd, *self._rank_fds, *self._sampler_fds)

    @property
    def candidate_fds(self) -> tuple[int, ...]:
        """Descriptors for ranks of candidates."""
        return self._rank_fds

    def close(self) -> None:
        """Closes them here."""
        for fd in self.reference_fds:
            os.close(fd)


class HandoverEnds:
    """The ends of the channel between each rank of a candidate and the reference rank of its number; a context manager.

    Args:
        world_size: Number of ranks.
        libraries: The compiled handovers.

    Attributes:
        libraries: Compiled handovers.
        eventfds: Two descriptors for each rank: written to by the candidate's rank, and read by it.
    """

    def __init__(self, world_size: int, libraries: HandoverLibraries) -> None:
        self.libraries = libraries
        self.eventfds: list[tuple[int, int]] = []
        with contextlib.ExitStack() as stack:
            for _ in range(world_size):
                self.eventfds.append((_new_eventfd(stack), _new_eventfd(stack)))
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def drain(self) -> None:
        """Empties the eventfds, once no rank of the candidate runs.

        A rank holds both of its own. One that it has filled up blocks whoever writes to it on the trusted side, until
        it is read.
        """
        for pair in self.eventfds:
            for fd in pair:
                drain(fd)


def _new_eventfd(stack: contextlib.ExitStack) -> int:
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    stack.callback(os.close, fd)
    return fd
