"""Queues by priority: higher ones first, equal ones in order of arrival."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Place = TypeVar("Place")


class PriorityWaiters(Generic[Place]):
    """Futures of waiting tasks; for one event loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[Place]]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        self._drop_cancelled()
        return sum(not future.done() for _, _, future in self._heap)

    def add(self, priority: int) -> asyncio.Future[Place]:
        """Begins to wait; cancelling the future ends it."""
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (-priority, next(self._numbers), future))
        return future

    def serve(self, place: Place) -> bool:
        """Gives a place to the first one; False where nobody waits."""
        self._drop_cancelled()
        if not self._heap:
            return False
        heapq.heappop(self._heap)[2].set_result(place)
        return True

    def fail(self, error: Exception) -> None:
        """Ends the waiting of all."""
        waiting, self._heap = self._heap, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def _drop_cancelled(self) -> None:
        while self._heap and self._heap[0][2].done():
            heapq.heappop(self._heap)


class PrioritySlots:
    """A semaphore that serves by priority, and whose size may change.

    Args:
        size: holders at the same time.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.busy = 0
        self._waiters: PriorityWaiters[None] = PriorityWaiters()

    @property
    def waiting(self) -> int:
        """The number of waiters for a slot."""
        return len(self._waiters)

    def resize(self, size: int) -> None:
        """Changes the number of slots; holders keep theirs."""
        self._size = size
        self._serve()

    @asynccontextmanager
    async def slot(self, priority: int) -> AsyncIterator[None]:
        """Holds a slot while the block runs."""
        future = self._waiters.add(priority)
        self._serve()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release()  # the slot came together with the cancellation
            raise
        try:
            yield
        finally:
            self._release()

    def _serve(self) -> None:
        while self.busy < self._size and self._waiters.serve(None):
            self.busy += 1

    def _release(self) -> None:
        self.busy -= 1
        self._serve()
