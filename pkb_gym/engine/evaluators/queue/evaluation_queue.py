"""The queue of evaluations.

submit ─> equal to one that is known? ─ yes ─> join it
                      │ no
                      v
          Turns, bounded by Quotas ─> begin ─> finish ─> the last answers, kept for equal requests
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Generic

from pkb_gym.engine.errors import EvaluationNotFound, InfrastructureError, PkbError, ServiceBusy
from pkb_gym.engine.evaluators.queue.entry import AnswerT
from pkb_gym.engine.evaluators.queue.events import Counts, EntryT, EventName, QueueEvent
from pkb_gym.engine.evaluators.queue.quotas import Quotas
from pkb_gym.engine.evaluators.queue.turns import Turns
from pkb_gym.engine.records.service import FINISHED


class EvaluationQueue(Generic[EntryT, AnswerT]):
    """Evaluations from their request to their answer; safe in several threads.

    Args:
        begin: Starts an evaluation and returns at once; called with the lock held.
        quotas: Limits of what waits and runs.
        max_answers: Answers that are kept; the least recently requested ones are forgotten first.
        on_event: Function called with each event. A future that it returns for an accepted or joined request is waited
            for before `submit` and `join` return; an error that it raises for an accepted request refuses it. The
            answer of a finished evaluation is given when it returns. All events but `finished` come with the lock held.

    Attributes:
        changed: Condition of the queue's lock, notified when the clock of an evaluation may have changed.
        counts: Counts since the queue was made.
    """

    def __init__(
        self,
        begin: Callable[[EntryT], None],
        quotas: Quotas,
        *,
        max_answers: int,
        on_event: Callable[[QueueEvent[EntryT, AnswerT]], Future[None] | None] = lambda _: None,
    ) -> None:
        self._begin, self._quotas, self._max_answers, self._on_event = begin, quotas, max_answers, on_event
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self.counts = Counts()
        self._turns: Turns[EntryT] = Turns()
        self._begun: dict[EntryT, None] = {}
        self._by_id: dict[str, EntryT] = {}
        self._by_key: dict[str, EntryT] = {}
        self._answered: OrderedDict[EntryT, None] = OrderedDict()
        self._active_s = time.monotonic()
        self._closed = False

    def join(self, key: str, client: str, priority: int = 0, timeout_s: float = math.inf) -> EntryT | None:
        """Has a client wait for the evaluation of an equal request; None where none is known.

        Args:
            key: Digest of the request.
            client: Name of the client.
            priority: Priority of the request; higher ones begin first.
            timeout_s: Seconds for which the client waits.

        Raises:
            InfrastructureError: The request cannot be recorded.
        """
        with self._lock:
            joined = self._joined(key, client, priority, timeout_s)
        if joined is None:
            return None
        _keep(joined[1])
        return joined[0]

    def submit(self, entry: EntryT, client: str, priority: int = 0, timeout_s: float = math.inf) -> EntryT:
        """Has an evaluation wait for its turn, or joins that of an equal request; see `join`.

        Returns:
            The evaluation that answers the request.

        Raises:
            ServiceBusy: Too many evaluations wait, of this client or of all.
            InfrastructureError: The queue was closed, or the request cannot be recorded.
        """
        with self._lock:
            joined = self._joined(entry.key, client, priority, timeout_s) if entry.joinable else None
            if joined is not None:
                entry, promise = joined
            else:
                self.touch()
                self._check_room(client)
                entry.want(client, priority, timeout_s)
                promise = self._tell("accepted", client, entry)
                self.counts.submitted += 1
                self._add(entry, [client])
        try:
            _keep(promise)
        except InfrastructureError:
            self.give_up(entry, client)
            raise
        return entry

    def restore(self, entry: EntryT, answer: AnswerT | None = None, *, keep: bool = True) -> None:
        """Takes up an evaluation of an earlier process again.

        Args:
            entry: The evaluation, with its id and its clients.
            answer: Answer of the evaluation; None for one that waits again.
            keep: Whether equal requests are answered by the answer.
        """
        with self._lock:
            if answer is None:
                self._tell("recovered", "", entry)
                self._add(entry, +entry.interest)
                return
            self._index(entry)
            self._conclude(entry, keep=keep)
        entry.give(answer)

    def find(self, evaluation_id: str, client: str | None = None) -> EntryT:
        """The evaluation of an id.

        Args:
            evaluation_id: Id of the evaluation.
            client: Name of a client, which finds evaluations that it asked for alone; None for any client.

        Raises:
            EvaluationNotFound: There is none, or it was forgotten.
        """
        with self._lock:
            found = self._by_id.get(evaluation_id)
            if found is None or (client is not None and client not in found.interest):
                raise EvaluationNotFound(f"no evaluation {evaluation_id!r} is known; submit the request again")
            self._used(found)
            return found

    def give_up(self, entry: EntryT, client: str, *, entirely: bool = False) -> bool:
        """Takes back one request of a client; an evaluation that waits to begin and that no client wants any more ends.

        Args:
            entry: The evaluation.
            client: Name of the client.
            entirely: Whether to take back all requests of the client.

        Returns:
            Whether the evaluation has begun and no client wants it any more: equal requests do not join it.
        """
        with self._lock:
            if not entry.interest[client] or entry.state == FINISHED:
                return False
            entry.interest[client] = 0 if entirely else entry.interest[client] - 1
            self._tell("gave_up", client, entry)
            if not entry.interest[client]:
                self._turns.remove(entry, client)
            if entry.is_wanted:
                return False
            if entry in self._begun:
                entry.unwanted_since_s = time.monotonic()
                self._join_no_more(entry)
                self.changed.notify_all()
                return True
            self.cancel(entry, EvaluationNotFound(f"evaluation {entry.id} was given up"))
            return False

    def enter(self, entry: EntryT, state: str) -> bool:
        """Sets the state of an evaluation that has begun; whether it is to go on."""
        with self._lock:
            if entry not in self._begun or entry.unwanted_since_s is not None:
                return False
            entry.enter(state)
            self.changed.notify_all()
            return True

    def finish(self, entry: EntryT, answer: AnswerT | PkbError, *, keep: bool, report: bool = True) -> bool:
        """Answers an evaluation that has begun; only the first answer counts.

        Args:
            entry: The evaluation.
            answer: Answer of the evaluation.
            keep: Whether equal requests are answered by it, too.
            report: Whether there is an event.

        Returns:
            Whether the answer is the first one.
        """
        with self._lock:
            if entry not in self._begun:
                return False
            self.counts.finished += 1
            self._end(entry)
            self._conclude(entry, keep=keep)
            self._begin_next()
        self._give(entry, answer, report=report)
        return True

    def cancel(self, entry: EntryT, error: PkbError) -> bool:
        """Ends an evaluation without an answer, wherever it is; whether it had not finished."""
        with self._lock:
            if entry not in self._begun and entry.state == FINISHED:
                return False
            self.counts.cancelled += 1
            self._turns.remove(entry)
            if entry in self._begun:
                self._end(entry)
            entry.enter(FINISHED)
            self._forget(entry)
            self._begin_next()
        self._give(entry, error, report=True)
        return True

    def begun(self) -> list[EntryT]:
        """The evaluations that have begun and not finished."""
        with self._lock:
            return list(self._begun)

    def unfinished(self) -> list[EntryT]:
        """The evaluations that wait or have begun."""
        with self._lock:
            return [*self._turns, *self._begun]

    def load(self) -> tuple[dict[str, int], dict[str, int]]:
        """Evaluations of each client that wait to begin, and that have begun and not finished."""
        with self._lock:
            return self._turns.counts(), dict(self._quotas.begun)

    def touch(self) -> None:
        """Counts as a request for `idle_s`."""
        self._active_s = time.monotonic()

    def idle_s(self) -> float:
        """Seconds since the last request or answer; 0 while an evaluation waits or runs."""
        with self._lock:
            return 0.0 if self._turns or self._begun else time.monotonic() - self._active_s

    @property
    def is_closed(self) -> bool:
        """Whether evaluations are accepted and begun no more."""
        return self._closed

    def close(self) -> list[EntryT]:
        """Accepts and begins no evaluation any more.

        Returns:
            The evaluations that waited to begin; they count as begun and are the caller's to finish.
        """
        with self._lock:
            self._closed = True
            waiting = list(self._turns)
            for entry in waiting:
                self._turns.remove(entry)
                self._start(entry, "")
            self.changed.notify_all()
            return waiting

    # The rest is called with the lock held, but for `_give`.

    def _joined(
        self, key: str, client: str, priority: int, timeout_s: float
    ) -> tuple[EntryT, Future[None] | None] | None:
        self.touch()
        if (found := self._by_key.get(key)) is None:
            return None
        self._used(found)
        found.want(client, priority, timeout_s)
        self.counts.joined += 1
        if found in self._turns:
            self._turns.push(found, [client], found.priority)
        return found, self._tell("joined", client, found)

    def _check_room(self, client: str) -> None:
        if self._closed:
            raise InfrastructureError("this service has been closed")
        try:
            self._quotas.check_room(client, len(self._turns), self._turns.counts())
        except ServiceBusy as busy:
            self.counts.refused += 1
            self._tell("refused", client, answer=busy)
            raise

    def _add(self, entry: EntryT, clients: Iterable[str]) -> None:
        self._index(entry)
        self._turns.push(entry, clients, entry.priority)
        self._begin_next()

    def _begin_next(self) -> None:
        while not self._closed and (following := self._turns.pop(self._quotas.may_begin)) is not None:
            entry, client = following
            self._start(entry, client)
            self._tell("begun", client, entry)
            self.changed.notify_all()
            self._begin(entry)

    def _start(self, entry: EntryT, client: str) -> None:
        entry.client = client
        self._begun[entry] = None
        self._quotas.begin(client)

    def _end(self, entry: EntryT) -> None:
        del self._begun[entry]
        self._quotas.end(entry.client)
        self.touch()

    def _conclude(self, entry: EntryT, *, keep: bool) -> None:
        entry.enter(FINISHED)
        if not keep:
            self._join_no_more(entry)
        self._answered[entry] = None
        while len(self._answered) > self._max_answers:
            self._forget(self._answered.popitem(last=False)[0])

    def _give(self, entry: EntryT, answer: AnswerT | PkbError, *, report: bool) -> None:
        if report:
            self._tell("finished", entry.client, entry, answer)
        entry.give(answer)

    def _index(self, entry: EntryT) -> None:
        self._by_id[entry.id] = entry
        if entry.joinable:
            self._by_key[entry.key] = entry

    def _used(self, entry: EntryT) -> None:
        if entry in self._answered:
            self._answered.move_to_end(entry)

    def _join_no_more(self, entry: EntryT) -> None:
        if self._by_key.get(entry.key) is entry:
            del self._by_key[entry.key]

    def _forget(self, entry: EntryT) -> None:
        if self._by_id.get(entry.id) is entry:
            del self._by_id[entry.id]
        self._join_no_more(entry)

    def _tell(
        self, name: EventName, client: str, entry: EntryT | None = None, answer: AnswerT | PkbError | None = None
    ) -> Future[None] | None:
        return self._on_event(QueueEvent(name, client, entry, answer))


def _keep(promise: Future[None] | None) -> None:
    """Returns when a request is recorded."""
    if promise is not None:
        promise.result()
