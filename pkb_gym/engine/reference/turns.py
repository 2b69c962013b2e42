"""The turns that the ranks of a checked call take, where one of them is preempted.

That one goes first, and stands still once it had time to begin the call. Then its peers go as far as they do without
it; those that depart begin the next call. Those that wait for it stand still where that can be at once, and it goes on
as far as it does without them.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator, Sequence

from pkb_gym.engine.reference.call_progress import POLL_S, CallProgress
from pkb_gym.engine.reference.orders import CheckedCall
from pkb_gym.engine.reference.preemption import MAX_PREEMPTION_S, Preemption
from pkb_gym.engine.wire.frames import Wire

BEGUN_S = 0.3e-3
"""Time in seconds in which a rank that may go on has begun to wait for its peers, as a rule."""


class Turns:
    """One rank's turns.

    Args:
        calls: Conduct of each call.
        rank: This one.
        progress: Progress of all ranks.
        preemption: Preemption of the candidate's rank; None where it has neither a process nor a GPU of its own.
        request_fd: The eventfd that the candidate's rank writes to when it has finished a call.
    """

    def __init__(
        self,
        calls: Sequence[CheckedCall],
        rank: int,
        progress: CallProgress,
        preemption: Preemption | None,
        request_fd: int,
    ) -> None:
        self._calls, self._rank, self._progress = calls, rank, progress
        self._preemption, self._request_fd = preemption, request_fd

    def wait(self, call: int) -> None:
        """Waits before the candidate's rank may begin a call, for one that goes first."""
        first = self._first(call)
        if first not in (None, self._rank):
            self._progress.wait_until_still(call, (first,), MAX_PREEMPTION_S)

    def take(self, wire: Wire, call: int) -> None:
        """Has the candidate's rank stand still in its turn, in a call that it may begin.

        Args:
            wire: Connection to the evaluator.
            call: Number of the call within the block.
        """
        first, preemption = self._first(call), self._preemption
        if preemption is None or first is None:
            return
        if first == self._rank:
            self._go_first(preemption, call)
        elif preemption.is_immediate and self._waits_for(wire, call, first):
            with self._standing_still(preemption, call):
                pass

    def _first(self, call: int) -> int | None:
        return self._calls[call].preempted_rank if call < len(self._calls) else None

    def _go_first(self, preemption: Preemption, call: int) -> None:
        time.sleep(BEGUN_S)
        with self._standing_still(preemption, call):
            if preemption.is_immediate:
                self._progress.give_way(call)
                self._progress.wait_until_still(call, self._progress.others, MAX_PREEMPTION_S)

    def _waits_for(self, wire: Wire, call: int, first: int) -> bool:
        """Whether the candidate's rank is still in a call when it is the turn of the first one again."""
        deadline = time.monotonic() + MAX_PREEMPTION_S + self._calls[call].preempted_s
        while not self._progress.gives_way(call, first):
            if select.select([self._request_fd, wire.fileno()], [], [], POLL_S)[0] or time.monotonic() > deadline:
                return False
        return True

    @contextlib.contextmanager
    def _standing_still(self, preemption: Preemption, call: int) -> Iterator[None]:
        """Has the candidate's rank stand still until the others go no further, and for what is done then."""
        preempted_s = self._calls[call].preempted_s
        preemption.begin(preempted_s)
        try:
            deadline = time.monotonic() + MAX_PREEMPTION_S
            while not preemption.has_begun() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            self._progress.stand_still(call)
            self._progress.be_late(call, preempted_s)
            yield
        finally:
            preemption.end()
