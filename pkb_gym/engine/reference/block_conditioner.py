"""Brings a rank's device and host into the same state before every timed block, of either side."""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pkb_gym.engine.support.processors import FEWEST, find_fastest, move_to
from pkb_gym.engine.wire.orders import DeviceName

if TYPE_CHECKING:
    import torch

PROBES = 5
BUSY_GPU_US = 500.0
"""An idle GPU answers in some tens of microseconds; one that is shared gives each process slices of milliseconds."""

BUSY_FOR_S = 0.25
"""Time in seconds that a GPU may stay busy before that is held against the candidate: processes of other evaluators
that start and end are done by then, and a block begins when the GPU is idle."""

SPIN_CYCLES = 1000
CACHE_LINE_BYTES = 64


class BlockConditioner(Protocol):
    """The conditioning of every rank just before a block is timed.

    Attributes:
        server_processor: Processor that serves handovers, none of those that were chosen; -1 for any.
    """

    server_processor: int

    def answer_us(self) -> float | None:
        """The time in which the device answers, in microseconds: long, if it is busy with another process's work."""

    def flush_cache(self) -> None:
        """Fills the device's last cache with nothing that a block reads, where that takes no time."""

    def bring_into_cache(self, memory: torch.Tensor) -> None:
        """Reads what a block of the baseline reads, where caches are not flushed: a candidate's has just been written.

        Args:
            memory: Uint8, of one dimension.
        """

    def reserve(self, sizes: Sequence[int]) -> None:
        """Makes sure that results of these sizes in bytes can be kept without asking the driver for memory."""

    def choose_processors(self) -> tuple[int, ...] | None:
        """Moves to those of this rank's processors that run at full speed; None where all are needed."""

    def release(self) -> None:
        """Lets go of memory, between evaluations."""


class CpuConditioner:
    """The conditioner of the CPU, which does nothing: a frozen gang's processor time is read from outside."""

    server_processor = -1

    def answer_us(self) -> float | None:
        """None."""
        return None

    def flush_cache(self) -> None:
        """Nothing: the last cache may be as large as all heaps together."""

    def bring_into_cache(self, memory: torch.Tensor) -> None:
        """Reads a byte of each line."""
        memory[::CACHE_LINE_BYTES].sum()

    def reserve(self, sizes: Sequence[int]) -> None:
        """Nothing."""

    def choose_processors(self) -> tuple[int, ...] | None:
        """None."""
        return None

    def release(self) -> None:
        """Nothing."""


class CudaConditioner:
    """The conditioner of a GPU, whose kernels run on when the process that launched them is frozen.

    Args:
        processors: Processors of this rank; only its launches depend on them.
    """

    def __init__(self, processors: Sequence[int]) -> None:
        self._processors = processors
        self.server_processor = processors[-1]
        self._chosen: tuple[int, ...] = ()
        self._filler: torch.Tensor | None = None
        self._reserved: Counter[int] = Counter()

    def answer_us(self) -> float | None:
        """The median over a few short kernels, of the last try: a busy GPU is waited for.

        While another process's kernel runs, a GPU switches between both in slices of milliseconds.
        """
        deadline = time.monotonic() + BUSY_FOR_S
        while (answer_us := self._median_answer_us()) > BUSY_GPU_US and time.monotonic() < deadline:
            pass
        return answer_us

    def _median_answer_us(self) -> float:
        import torch

        torch.cuda.synchronize()
        times = []
        for _ in range(PROBES):
            began = time.perf_counter_ns()
            torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]  # unannotated
            torch.cuda.synchronize()
            times.append((time.perf_counter_ns() - began) / 1e3)
        return statistics.median(times)

    def flush_cache(self) -> None:
        """Overwrites twice the size of the L2 cache."""
        import torch

        if self._filler is None:
            nbytes = 2 * torch.cuda.get_device_properties().L2_cache_size
            self._filler = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        self._filler.zero_()

    def bring_into_cache(self, memory: torch.Tensor) -> None:
        """Nothing: `flush_cache` leaves nothing of either side."""

    def reserve(self, sizes: Sequence[int]) -> None:
        """Allocates them all at once and lets go again, so that torch's allocator has them."""
        import torch

        wanted = Counter(size for size in sizes if size)
        if wanted - self._reserved:
            held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in wanted.elements()]
            self._reserved |= wanted
            del held

    def choose_processors(self) -> tuple[int, ...] | None:
        """Tries them; one of the fastest is left to the server of handovers and one to its sampler of outputs.

        That is where there are enough.

        Where those that were chosen last are among the fastest still, they remain: moving every thread of the process
        takes longer than trying the processors.
        """
        fastest = find_fastest(self._processors)
        if self._chosen and {*self._chosen, self.server_processor} <= set(fastest):
            os.sched_setaffinity(0, self._chosen)
            return self._chosen
        others = [processor for processor in self._processors if processor not in fastest]
        if len(fastest) > FEWEST:
            self.server_processor = fastest.pop()
        elif others:
            self.server_processor = others[-1]
        if len(fastest) > FEWEST and not others:
            fastest.pop()
        move_to(fastest)
        self._chosen = tuple(fastest)
        return self._chosen

    def release(self) -> None:
        """Gives back the memory that clears the cache."""
        self._filler = None
        self._reserved.clear()


def make_conditioner(device: DeviceName, processors: Sequence[int]) -> BlockConditioner:
    """The conditioner for the device, for a rank with these processors."""
    return CudaConditioner(processors) if device == "cuda" else CpuConditioner()
