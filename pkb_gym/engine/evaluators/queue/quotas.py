"""Limits of waiting and running evaluations, of each client and of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkb_gym.engine.errors import ServiceBusy


@dataclass(frozen=True)
class Quota:
    """Limits of one client.

    Attributes:
        name: Name of the client.
        max_queued: Evaluations that may wait to begin; None for no limit of its own.
        max_running: Evaluations that may have begun and not finished; None for no limit of its own.
    """

    name: str
    max_queued: int | None = None
    max_running: int | None = None


class Quotas:
    """Counts of begun evaluations and their limits; the queue's lock guards them.

    Args:
        clients: Limits of single clients.
        max_queued: Evaluations of all clients that may wait to begin; None for any number.
        max_begun: Evaluations of all clients that may have begun and not finished; None for any number.
        max_unfinished: Evaluations of all clients that may wait or run; None for any number.
    """

    def __init__(
        self,
        clients: Sequence[Quota] = (),
        *,
        max_queued: int | None = None,
        max_begun: int | None = None,
        max_unfinished: int | None = None,
    ) -> None:
        self._max_queued, self._max_begun, self._max_unfinished = max_queued, max_begun, max_unfinished
        self._clients = {client.name: client for client in clients}
        self.begun: Counter[str] = Counter()
        """Evaluations of each client that have begun and not finished."""

    def check_room(self, client: str, queued: int, waiting: Mapping[str, int]) -> None:
        """Returns if one more evaluation of a client may wait.

        Args:
            client: Name of the client.
            queued: Evaluations that wait to begin.
            waiting: Waiting evaluations of each client.

        Raises:
            ServiceBusy: There are as many as the client, or all clients together, may have.
        """
        unfinished = queued + self.begun.total()
        if self._max_unfinished is not None and unfinished >= self._max_unfinished:
            raise ServiceBusy(f"{unfinished} evaluations wait or run already; submit again later")
        if self._max_queued is not None and queued >= self._max_queued:
            raise ServiceBusy(f"{queued} evaluations wait already, no more are taken; ask again later")
        most = self._clients[client].max_queued if client in self._clients else None
        if most is not None and waiting.get(client, 0) >= most:
            raise ServiceBusy(f"{most} evaluations of {client} wait already, its quota; ask again later")

    def may_begin(self, client: str) -> bool:
        """Whether one more evaluation of a client may begin."""
        most = self._clients[client].max_running if client in self._clients else None
        has_place = self._max_begun is None or self.begun.total() < self._max_begun
        return has_place and (most is None or self.begun[client] < most)

    def begin(self, client: str) -> None:
        """Counts an evaluation that begins in the turn of a client."""
        self.begun[client] += 1

    def end(self, client: str) -> None:
        """Counts it no more."""
        self.begun[client] -= 1
        if not self.begun[client]:
            del self.begun[client]
