"""The evaluations that wait to begin: clients in turn, each client's own in the order of their arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from pkb_gym.serve.evaluation import Evaluation


class FairQueue:
    """A queue for each client, served round-robin; the service's lock guards it.

    An evaluation that several clients ask for waits in the queue of each, and leaves all with the first that has its
    turn. So a client with a thousand evaluations delays another's by one at a time, and nobody is served later for
    asking for the same as others.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, OrderedDict[Evaluation, None]] = OrderedDict()
        self._clients: dict[Evaluation, set[str]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Evaluation]:
        return iter(list(self._clients))

    def __contains__(self, evaluation: Evaluation) -> bool:
        return evaluation in self._clients

    def push(self, evaluation: Evaluation, client: str) -> None:
        """Adds an evaluation at the end of a client's queue; again, it changes nothing."""
        self._queues.setdefault(client, OrderedDict()).setdefault(evaluation)
        self._clients.setdefault(evaluation, set()).add(client)

    def pop(self, may_begin: Callable[[str], bool]) -> tuple[Evaluation, str] | None:
        """Takes the next evaluation out.

        Args:
            may_begin: whether a client may have one more begun.

        Returns:
            The evaluation, and the client whose turn it was; None where no client may.
        """
        for client, queue in self._queues.items():
            if may_begin(client):
                evaluation = next(iter(queue))
                self.remove(evaluation)
                if client in self._queues:
                    self._queues.move_to_end(client)
                return evaluation, client
        return None

    def remove(self, evaluation: Evaluation, client: str | None = None) -> None:
        """Takes an evaluation out of one client's queue, by default out of all."""
        for name in [client] if client is not None else list(self._clients.get(evaluation, ())):
            if (queue := self._queues.get(name)) is not None:
                queue.pop(evaluation, None)
                if not queue:
                    del self._queues[name]
            if (names := self._clients.get(evaluation)) is not None:
                names.discard(name)
                if not names:
                    del self._clients[evaluation]

    def waiting(self, client: str) -> int:
        """The number of evaluations that wait in a client's queue."""
        return len(self._queues.get(client, ()))

    def counts(self) -> dict[str, int]:
        """`waiting` of each client that has any."""
        return {client: len(queue) for client, queue in self._queues.items()}
