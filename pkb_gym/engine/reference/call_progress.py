"""Progress of the ranks in a conducted block, and the time that one stands still while the others go ahead."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pkb_gym.engine.reference.orders import CheckedCall
from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.frames import Wire

if TYPE_CHECKING:
    from pkb_gym.engine.rankside.devices import AnyHeap

SETTLED_S = 300e-6
"""Ranks that have gone no further for so long do not without the one that stands still."""

MIN_HOLD_S = 1e-3
"""The least hold of a rank, whatever the progress of the others: a kernel may have threads of its own."""

POLL_S = 20e-6


@dataclass
class _Hold:
    """A hold of the candidate's rank, as it was seen first."""

    number: int = 0
    began: float = 0.0
    settled_since: float | None = None


class CallProgress:
    """One rank's view of all ranks, which the conductors of the reference gang share in their own heap.

    Crossing k lies between call k - 1 and call k. A rank has reached it when it has finished the call before, and has
    arrived when the arguments of the call after are in place.

    Args:
        calls: Conduct of each call.
        rank: This one.
        world_size: Number of ranks.
        mine: The heap of the reference gang.
        theirs: The heap of the candidate.
    """

    def __init__(
        self, calls: Sequence[CheckedCall], rank: int, world_size: int, mine: AnyHeap, theirs: AnyHeap
    ) -> None:
        self._calls, self._rank, self._mine, self._theirs = calls, rank, mine, theirs
        self._ranks = range(world_size)
        progress = mine.progress(rank)
        progress.reached = progress.arrived = progress.waits_for_all = 0
        progress.stood_still = progress.gives_way = 0

    def reach(self, crossing: int) -> None:
        """Notes that this rank has reached a crossing."""
        self._mine.progress(self._rank).reached = crossing + 1

    def arrive(self, crossing: int) -> None:
        """Notes that its arguments are in place there."""
        self._mine.progress(self._rank).arrived = crossing + 1

    @property
    def others(self) -> tuple[int, ...]:
        """Numbers of the other ranks."""
        return tuple(rank for rank in self._ranks if rank != self._rank)

    def stand_still(self, call: int) -> None:
        """Notes that the candidate's rank stands still in a call."""
        self._mine.progress(self._rank).stood_still = call + 1

    def wait_until_still(self, call: int, ranks: Sequence[int], most_s: float) -> None:
        """Waits until other ranks have stood still in a call, or have finished it, at most for that long."""
        deadline = time.monotonic() + most_s
        while time.monotonic() < deadline and not all(self._has_stood_still(rank, call) for rank in ranks):
            time.sleep(POLL_S)

    def _has_stood_still(self, rank: int, call: int) -> bool:
        progress = self._mine.progress(rank)
        return bool(progress.stood_still > call or progress.reached > call + 1)

    def give_way(self, call: int) -> None:
        """Notes that others are to stand still in a call before the candidate's rank goes on."""
        self._mine.progress(self._rank).gives_way = call + 1

    def gives_way(self, call: int, rank: int) -> bool:
        """Whether it is for this rank to stand still in a call before another goes on."""
        return bool(self._mine.progress(rank).gives_way > call)

    def words_of_others(self) -> list[int]:
        """Addresses of the words in which `reach` notes the progress of each other rank."""
        offset = abi.Progress.reached.offset
        return [ctypes.addressof(self._mine.progress(rank)) + offset for rank in self.others]

    def place_word(self) -> int:
        """Address of the word in which the candidate's rank reports the number of its call."""
        return ctypes.addressof(self._theirs.place(self._rank)) + abi.Place.call.offset

    def wait_for_request(self, wire: Wire, request_fd: int, crossing: int) -> bool:
        """Waits until the candidate's rank has reached a crossing, and ends its holds on the way there.

        Args:
            wire: Connection to the evaluator.
            request_fd: An eventfd that the candidate's rank writes to.
            crossing: Number of the crossing that the rank reaches.

        Returns:
            False where the evaluator orders something first.
        """
        is_held = crossing > 0 and self._calls[crossing - 1].is_held
        hold = _Hold()
        while True:
            ready = select.select([request_fd, wire.fileno()], [], [], POLL_S if is_held else None)[0]
            if request_fd in ready and _take_request(request_fd):
                return True
            if wire.fileno() in ready:
                return False
            if is_held:
                self._release(hold, crossing - 1)

    def reply(self, wire: Wire, reply_fd: int) -> bool:
        """Lets the candidate's rank go on; False as `wait_for_request`.

        Args:
            wire: Connection to the evaluator.
            reply_fd: An eventfd that the candidate's rank reads. It may have filled it up: the write then blocks until
                `HandoverEnds.drain`, or fails where the rank has made that so.
        """
        while True:
            try:
                os.eventfd_write(reply_fd, 1)
                return True
            except BlockingIOError:
                if wire.pending():
                    return False
                time.sleep(POLL_S)

    def wait_until_all(self, wire: Wire, crossing: int, arrived: bool) -> bool:
        """Waits until all ranks have reached a crossing, or have arrived there; False as `wait_for_request`."""
        progress = self._mine.progress(self._rank)
        progress.waits_for_all = True
        try:
            while not all(self._is_at(rank, crossing, arrived) for rank in self._ranks):
                if wire.pending():
                    return False
                time.sleep(POLL_S)
            return True
        finally:
            progress.waits_for_all = False

    def be_late(self, crossing: int, delay_s: float) -> None:
        """Stands still until the other ranks have gone as far as they do without this one, at most for that long."""
        deadline = time.monotonic() + delay_s
        settled_since: float | None = None
        while (now := time.monotonic()) < deadline:
            settled_since = (settled_since or now) if self._others_go_no_further(crossing) else None
            if settled_since is not None and now - settled_since > SETTLED_S:
                return
            time.sleep(POLL_S)

    def _release(self, hold: _Hold, call: int) -> None:
        """Ends the hold of the candidate's rank once the others have gone as far as they do without it."""
        theirs, now = self._theirs.hold(self._rank), time.monotonic()
        if not theirs.is_on or theirs.number != hold.number:
            hold.number, hold.began, hold.settled_since = theirs.number, now, None
            return
        hold.settled_since = (hold.settled_since or now) if self._others_go_no_further(call) else None
        settled = hold.settled_since is not None and now - hold.settled_since > SETTLED_S
        if settled and now - hold.began > MIN_HOLD_S:
            theirs.released = hold.number

    def _is_at(self, rank: int, crossing: int, arrived: bool) -> bool:
        progress = self._mine.progress(rank)
        return bool((progress.arrived if arrived else progress.reached) > crossing)

    def _others_go_no_further(self, crossing: int) -> bool:
        return all(self._goes_no_further(rank, crossing) for rank in self.others)

    def _goes_no_further(self, rank: int, crossing: int) -> bool:
        """Whether another rank goes no further before this one, which stands still at a crossing, goes on.

        It has finished all calls, or reports that it waits for a signal; or it has reached a call that all begin
        together; or it stands still itself, in an earlier call: of two such ranks the one that is ahead goes on first.
        """
        progress = self._mine.progress(rank)
        at = int(progress.reached) - 1
        if at == len(self._calls) or self._theirs.place(rank).state == abi.State.WAITING:
            return True
        if at > crossing:
            return self._calls[at].together
        if not 0 <= at <= crossing:
            return False
        if self._theirs.hold(rank).is_on:
            return True
        return bool(at < crossing and progress.arrived == at and self._calls[at].late_rank == rank)


def _take_request(request_fd: int) -> bool:
    """Reads an eventfd that was readable; False where the candidate's rank, which holds it too, was faster."""
    try:
        return os.preadv(request_fd, [bytearray(8)], -1, os.RWF_NOWAIT) == 8
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # before Linux 5.12
            raise
        return os.eventfd_read(request_fd) > 0
