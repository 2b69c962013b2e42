"""Sees that ranks wait for each other for good, long before their deadline."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from pkb_gym.engine.gangs.heaps import SymmetricHeap, UnmetWait
from pkb_gym.engine.gangs.rank_threads import AT_WORK, STOPPED, WATCH_S, thread_states

SETTLED_S = 1.0
"""Ranks that have waited for the same for so long, while no thread of theirs ran, wait for good."""

LOOKS, LOOK_S = 3, 0.001
"""Looks at the threads of a rank, each of which must find one at work: one that waits wakes for an instant at times."""


class DeadlockWatch:
    """Watches a gang that runs a block.

    The signal that a rank waits for is not there, or it has to meet the others between two calls. All that could still
    send the signal, or come there, are threads of ranks that wait likewise, and sleep. One that is ready to run, in a
    call of the kernel or stopped counts as at work: a busy machine, or whoever stops ranks, delays the finding and
    never makes one.

    Args:
        pidfds: Descriptors of the ranks' processes.
        heap: Heap in which the ranks report their waits.
    """

    def __init__(self, pidfds: Sequence[int], heap: SymmetricHeap) -> None:
        self._pidfds, self._heap = pidfds, heap
        self._next = time.monotonic() + WATCH_S
        self._waits: list[UnmetWait | None] = []
        self._since = 0.0

    def sees_deadlock(self, unfinished: Collection[int]) -> bool:
        """Looks, if it is time; whether these ranks, the only ones that still run, wait for each other for good."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + WATCH_S
        waits = [self._heap.unmet_wait(rank) for rank in sorted(unfinished)]
        if None in waits or any(self._is_at_work(rank) for rank in unfinished):
            self._waits = []
        elif waits != self._waits:
            self._waits, self._since = waits, now
        return bool(self._waits) and now - self._since >= SETTLED_S

    def _is_at_work(self, rank: int) -> bool:
        for _ in range(LOOKS):
            if not set(thread_states(self._pidfds[rank])) & (AT_WORK | STOPPED):
                return False
            time.sleep(LOOK_S)
        return True
