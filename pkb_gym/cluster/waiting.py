"""Places for the steps of evaluations, in the order of `Turns`; for one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from pkb_gym.engine.evaluators.queue.entry import Entry
from pkb_gym.engine.evaluators.queue.turns import Turns

Place = TypeVar("Place")


class Waiters(Generic[Place]):
    """Steps that wait for a place."""

    def __init__(self) -> None:
        self._turns: Turns[asyncio.Future[Place]] = Turns()

    def __len__(self) -> int:
        return sum(not future.done() for future in self._turns)

    def add(self, entry: Entry[Any]) -> asyncio.Future[Place]:
        """Has a step of an evaluation wait, in the turns of the clients that want it."""
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._turns.push(future, +entry.interest, entry.priority)
        return future

    async def place(self, future: asyncio.Future[Place], hand_back: Callable[[Place], None]) -> Place:
        """The place of a step that waits; a place that comes together with a cancellation is handed back."""
        try:
            return await future
        except asyncio.CancelledError:
            self._turns.remove(future)
            if future.done() and not future.cancelled() and future.exception() is None:
                hand_back(future.result())
            raise

    def serve(self, place: Place) -> bool:
        """Gives a place to the first step; False where none waits."""
        while (following := self._turns.pop()) is not None:
            if not following[0].done():
                following[0].set_result(place)
                return True
        return False

    def fail(self, error: Exception) -> None:
        """Ends the waiting of all."""
        for future in self._turns:
            self._turns.remove(future)
            if not future.done():
                future.set_exception(error)


class Slots:
    """A semaphore whose size may change.

    Args:
        size: Number of holders at the same time, at least 1.

    Attributes:
        busy: Number of holders.
        waiting: Steps that wait for a slot.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.busy = 0
        self.waiting: Waiters[None] = Waiters()

    def resize(self, size: int) -> None:
        """Changes the number of slots; holders keep theirs."""
        self._size = size
        self._serve()

    @asynccontextmanager
    async def slot(self, entry: Entry[Any]) -> AsyncIterator[None]:
        """Holds a slot for a step of an evaluation while the block runs."""
        future = self.waiting.add(entry)
        self._serve()
        await self.waiting.place(future, self._release)
        try:
            yield
        finally:
            self._release()

    def _serve(self) -> None:
        while self.busy < self._size and self.waiting.serve(None):
            self.busy += 1

    def _release(self, _: None = None) -> None:
        self.busy -= 1
        self._serve()
