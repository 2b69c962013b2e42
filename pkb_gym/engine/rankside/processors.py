"""The choice of a rank's processors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

SPINS, TRIES = 1000, 2
MOST_TRIED = 16
ENOUGH = 6
"""For a rank's threads and the server of its handovers."""

FEWEST = 2
"""A thread that waits by spinning, as CUDA's synchronisation does, must not keep others of its process from running."""
SLOWEST_RELATIVE = 1.2
"""The most by which one may be slower: a core that is shared with other work takes half as long again, or twice."""


def bind_rank(rank: int, world_size: int) -> int:
    """Keeps this process, and every thread that it will start, on its share of the processors.

    As launchers of parallel programs bind ranks to cores: ranks that wander between processors, and pile up on one
    while another idles, make times scatter. Each rank has a run of neighbouring processors, which share cores and
    caches with each other rather than with another rank's; where there are more ranks than processors, they take turns.

    Returns:
        How many processors that is.
    """
    processors = sorted(os.sched_getaffinity(0))
    share = len(processors) // world_size
    own = processors[rank * share : (rank + 1) * share] or [processors[rank % len(processors)]]
    os.sched_setaffinity(0, own)
    return len(own)


class FastProcessors:
    """The search for those of a rank's processors that run at full speed just now.

    On a core that also works for another program a process is slow, and everything that it launches is late. A virtual
    machine does not show on which cores its processors are, nor what its neighbours do there, and both change: what is
    found holds for milliseconds. So each processor is tried, of many some, until enough of them are about as fast as
    any has ever been; those of the last search, whose caches are warm, come first.

    Args:
        processors: of the rank.
    """

    def __init__(self, processors: Sequence[int]) -> None:
        step = -(-len(processors) // MOST_TRIED)
        self._order = list(processors[::step])
        self._full_speed_ns = 0  # that the first search, which tries all, has yet to find

    def find(self) -> list[int]:
        """The fastest first; this thread is on one of those that were tried then."""
        took_ns: dict[int, int] = {}
        for processor in self._order:
            took_ns[processor] = _spin_ns(processor)
            if sum(each <= SLOWEST_RELATIVE * self._full_speed_ns for each in took_ns.values()) >= ENOUGH:
                break
        quickest = sorted(took_ns, key=lambda processor: took_ns[processor])
        best_ns = took_ns[quickest[0]]
        limit_ns = SLOWEST_RELATIVE * best_ns
        found = quickest[:FEWEST] + [processor for processor in quickest[FEWEST:] if took_ns[processor] <= limit_ns]
        self._full_speed_ns = min(self._full_speed_ns or best_ns, best_ns)
        self._order = found + [processor for processor in self._order if processor not in found]
        return found


def _spin_ns(processor: int) -> int:
    os.sched_setaffinity(0, {processor})
    times = []
    for _ in range(TRIES):
        began = time.perf_counter_ns()
        for _ in range(SPINS):
            pass
        times.append(time.perf_counter_ns() - began)
    return min(times)


def move_to(processors: Sequence[int], pid: int | None = None) -> None:
    """Keeps every thread of a process, by default of this one, and those that they will start, on some processors."""
    for thread in os.listdir(f"/proc/{pid or 'self'}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), processors)
