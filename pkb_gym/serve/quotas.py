"""Limits of waiting and running evaluations, of each client and of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pkb_gym.engine.errors import ServiceBusy
from pkb_gym.serve.clients import Client
from pkb_gym.serve.fair_queue import FairQueue


class Quotas:
    """Counts what each client has begun; the service's lock guards it.

    Args:
        clients: those with quotas.
        max_queued: evaluations of all clients that may wait to begin.
        max_begun: evaluations of all clients that may have begun and not finished.
    """

    def __init__(self, clients: Sequence[Client], max_queued: int, max_begun: int) -> None:
        self._max_queued, self._max_begun = max_queued, max_begun
        self._max_running = {client.name: client.max_running for client in clients}
        self._begun: Counter[str] = Counter()

    def check_room(self, queue: FairQueue, client: Client) -> None:
        """Returns if one more evaluation of a client may wait.

        Raises:
            ServiceBusy: it may not.
        """
        if len(queue) >= self._max_queued:
            raise ServiceBusy(f"{len(queue)} evaluations wait already, no more are taken; ask again later")
        if client.max_queued is not None and queue.waiting(client.name) >= client.max_queued:
            raise ServiceBusy(
                f"{client.max_queued} evaluations of {client.name} wait already, its quota; ask again later"
            )

    def may_begin(self, client: str) -> bool:
        """Whether one more evaluation of a client may begin."""
        quota = self._max_running.get(client)
        return self._begun.total() < self._max_begun and (quota is None or self._begun[client] < quota)

    def begin(self, client: str) -> None:
        """Counts an evaluation."""
        self._begun[client] += 1

    def end(self, client: str) -> None:
        """Counts it no more."""
        self._begun[client] -= 1

    def begun(self) -> dict[str, int]:
        """Evaluations of each client that have begun and not finished."""
        return dict(self._begun)
