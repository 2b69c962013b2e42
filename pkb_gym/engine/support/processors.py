"""The choice of the processors that processes and threads run on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Sequence

SPINS, TRIES = 1000, 2
MAX_TRIED = 8
"""Number of processors that are tried, at most: to move to one takes a tenth of a millisecond, before every block."""

FEWEST = 2
"""A thread that waits by spinning, as CUDA's synchronisation does, must not keep others of its process from running."""
SLOWEST_RELATIVE = 1.2
"""The most by which one may be slower: a core that is shared with other work takes half as long again, or twice."""


def find_fastest(processors: Sequence[int]) -> list[int]:
    """The processors that run at full speed just now, the fastest first; this thread is on one of them then.

    On a core that also works for another program a process is slow, and everything that it launches is late. A virtual
    machine does not show on which cores its processors are, nor what its neighbours do there, and both change: what is
    found holds for milliseconds. So each processor is tried, of many some.
    """
    step = -(-len(processors) // MAX_TRIED)
    took_ns = {processor: _spin_ns(processor) for processor in processors[::step]}
    quickest = sorted(took_ns, key=lambda processor: took_ns[processor])
    limit_ns = SLOWEST_RELATIVE * took_ns[quickest[0]]
    return quickest[:FEWEST] + [processor for processor in quickest[FEWEST:] if took_ns[processor] <= limit_ns]


def _spin_ns(processor: int) -> int:
    os.sched_setaffinity(0, {processor})
    times = []
    for _ in range(TRIES):
        began = time.perf_counter_ns()
        for _ in range(SPINS):
            pass
        times.append(time.perf_counter_ns() - began)
    return min(times)


@contextlib.contextmanager
def on_processors(processors: Collection[int]) -> Iterator[None]:
    """Keeps this thread on some processors meanwhile; where it is for none."""
    before = os.sched_getaffinity(0)
    if processors:
        os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move_to(processors: Sequence[int], pid: int | None = None) -> None:
    """Keeps every thread of a process, by default of this one, and those that they will start, on some processors."""
    with os.scandir(f"/proc/{pid or 'self'}/task") as threads:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread.name), processors)
