"""The binding of a rank to its share of the processors."""

from __future__ import annotations

import os


def bind_rank(rank: int, world_size: int) -> int:
    """Keeps this process, and every thread that it will start, on its share of the processors.

    As launchers of parallel programs bind ranks to cores: ranks that wander between processors, and pile up on one
    while another idles, make times scatter. Each rank has a run of neighbouring processors, which share cores and
    caches with each other rather than with another rank's; where there are more ranks than processors, they take turns.

    Returns:
        Number of processors.
    """
    processors = sorted(os.sched_getaffinity(0))
    share = len(processors) // world_size
    own = processors[rank * share : (rank + 1) * share] or [processors[rank % len(processors)]]
    os.sched_setaffinity(0, own)
    return len(own)
