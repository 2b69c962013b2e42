"""The gangs of one device, world size and purpose: allocation of their slots, growth and shrinking."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pkb_gym.cluster.connection import in_one_line
from pkb_gym.cluster.evaluation import PoolEvaluation
from pkb_gym.cluster.placement import PlacedGang
from pkb_gym.cluster.records import GangSpec, LaneStatus
from pkb_gym.cluster.settings import PoolSettings
from pkb_gym.cluster.waiting import Waiters
from pkb_gym.engine.errors import InfrastructureError

logger = logging.getLogger(__name__)

CLOSE_S = 10.0
"""Time that a gang has to end its processes by itself."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 20.0
"""Before a gang that did not start is started anew; each pause is twice the one before."""


@dataclass(eq=False)
class ReadyGang:
    """A gang that takes steps.

    Attributes:
        placed: Actor of the gang and its room.
        free: Number of free slots.
        idle_since_s: End of the last step, by `time.monotonic`.
        faults: Infrastructure failures in a row.
        is_gone: Whether it takes no further step.
    """

    placed: PlacedGang
    free: int
    idle_since_s: float = field(default_factory=time.monotonic)
    faults: int = 0
    is_gone: bool = False


@dataclass
class GangCounts:
    """Counts over all lanes of a pool."""

    started: int = 0
    lost: int = 0


class Lane:
    """Hands slots of gangs to steps by priority; for one event loop.

    Args:
        spec: Specification of each gang.
        settings: Settings of the pool.
        least: Number of gangs that are kept when nothing waits.
        most: Returns the limit of the number of gangs at this moment.
        place: Requests a gang from the cluster.
        make_room: Ends idle gangs of other lanes, so that one of this lane finds room.
        counts: Counts of all lanes of the pool.
    """

    def __init__(
        self,
        spec: GangSpec,
        settings: PoolSettings,
        *,
        least: int,
        most: Callable[[], int],
        place: Callable[[GangSpec], PlacedGang],
        make_room: Callable[[Lane], Awaitable[None]],
        counts: GangCounts,
    ) -> None:
        self.spec, self._settings, self._least, self._most = spec, settings, least, most
        self._place, self._make_room, self._counts = place, make_room, counts
        self._gangs: list[ReadyGang] = []
        self._waiters: Waiters[ReadyGang] = Waiters()
        self._starting: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._placing: dict[asyncio.Task[None] | None, PlacedGang] = {}
        self._closed = False
        self._grow()

    @asynccontextmanager
    async def slot(self, evaluation: PoolEvaluation) -> AsyncIterator[ReadyGang]:
        """Holds a slot of a gang for a step of an evaluation while the block runs.

        Raises:
            InfrastructureError: The cluster finds no room for a gang, or gangs do not start.
        """
        future = self._waiters.add(evaluation)
        self._serve()
        self._grow()
        gang = await self._waiters.place(future, self._release)
        try:
            yield gang
        finally:
            self._release(gang)

    def discard(self, gang: ReadyGang, *, lost: bool) -> None:
        """Ends a gang, whatever runs on it.

        Args:
            gang: Gang of this lane.
            lost: Whether it ended by itself, or had to be ended.
        """
        if gang.is_gone:
            return
        gang.is_gone = True
        self._gangs.remove(gang)
        self._counts.lost += lost
        self._in_background(_end(gang, gently=not lost), self._ending)
        self._grow()

    async def tick(self) -> None:
        """Ends gangs that were idle long enough; called now and then."""
        now = time.monotonic()
        for gang in list(self._gangs):
            idle = gang.free == self.spec.slots and now - gang.idle_since_s > self._settings.shrink_s
            if idle and len(self._gangs) > self._least:
                self.discard(gang, lost=False)
        if not self._gangs and len(self._waiters) and await self._has_no_room():
            await self._make_room(self)

    async def _has_no_room(self) -> bool:
        """Whether gangs are to be started, and the cluster has room for none of them."""
        placing = list(self._placing.values())
        return bool(placing) and not await asyncio.to_thread(lambda: any(placed.has_room() for placed in placing))

    async def give_room(self) -> None:
        """Ends the gangs that do nothing, to leave their room to another lane."""
        for gang in list(self._gangs):
            if gang.free == self.spec.slots and len(self._gangs) > self._least:
                self.discard(gang, lost=False)
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def close(self) -> None:
        """Ends all gangs and waits until they have ended."""
        self._closed = True
        self._waiters.fail(InfrastructureError("the pool was closed"))
        for task in list(self._starting):
            task.cancel()
        for gang in list(self._gangs):
            self.discard(gang, lost=False)
        remaining = self._starting | self._ending
        if remaining:
            await asyncio.wait(remaining)

    def status(self) -> LaneStatus:
        """State of the lane."""
        slots = len(self._gangs) * self.spec.slots
        return LaneStatus(
            device=self.spec.device,
            world_size=self.spec.world_size,
            purpose=self.spec.purpose,
            gangs=len(self._gangs),
            starting=len(self._starting),
            busy=slots - sum(gang.free for gang in self._gangs),
            slots=slots,
            waiting=len(self._waiters),
            most=self._most(),
        )

    def _release(self, gang: ReadyGang) -> None:
        gang.free += 1
        gang.idle_since_s = time.monotonic()
        self._serve()

    def _serve(self) -> None:
        """Hands out free slots, those of the gang with the most free ones first."""
        while free := [gang for gang in self._gangs if gang.free]:
            gang = max(free, key=lambda each: each.free)
            gang.free -= 1
            if not self._waiters.serve(gang):
                gang.free += 1
                return

    def _grow(self) -> None:
        """Starts as many gangs as are missing, within the limit."""
        if self._closed:
            return
        wanted = max(self._least, len(self._gangs) + math.ceil(len(self._waiters) / self.spec.slots))
        missing = min(wanted, self._most()) - len(self._gangs) - len(self._starting)
        for _ in range(missing):
            self._in_background(self._start(), self._starting)

    async def _start(self) -> None:
        from ray.exceptions import RayError

        pause_s = FIRST_PAUSE_S
        began_s = time.monotonic()
        while True:
            placed = self._place(self.spec)
            self._placing[asyncio.current_task()] = placed
            left_s = self._settings.place_s - (time.monotonic() - began_s)
            try:
                await asyncio.wait_for(placed.actor.ready.remote(), max(left_s, 0.001))
            except asyncio.CancelledError:
                placed.remove()
                raise
            except (RayError, TimeoutError) as error:  # of the actor's constructor, too
                placed.remove()
                why = in_one_line(error)
                logger.warning("a gang does not start: %s", why)
                if time.monotonic() - began_s + pause_s > self._settings.place_s:
                    self._give_up(why)
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                continue
            finally:
                self._placing.pop(asyncio.current_task(), None)
            break
        self._counts.started += 1
        self._gangs.append(ReadyGang(placed, self.spec.slots))
        self._serve()

    def _give_up(self, why: str) -> None:
        """Fails the waiting steps, where there is no gang and none is being started."""
        others = [task for task in self._starting if task is not asyncio.current_task()]
        if not self._gangs and not others:
            spec = self.spec
            self._waiters.fail(
                InfrastructureError(
                    f"no {spec.purpose} gang of {spec.world_size} ranks on device {spec.device!r} started within "
                    f"{self._settings.place_s:g} s ({why}); `pkb doctor --ray` shows what the nodes have"
                )
            )

    def _in_background(self, work: Awaitable[None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.ensure_future(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _end(gang: ReadyGang, *, gently: bool) -> None:
    if gently:
        with contextlib.suppress(Exception):  # it is killed all the same
            await asyncio.wait_for(gang.placed.actor.close.remote(), CLOSE_S)
    gang.placed.remove()
