"""Events and counts of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pkb_gym.engine.errors import PkbError
from pkb_gym.engine.evaluators.queue.entry import AnswerT, Entry

EntryT = TypeVar("EntryT", bound=Entry[Any])

EventName: TypeAlias = Literal["accepted", "joined", "recovered", "refused", "gave_up", "begun", "finished"]


@dataclass(frozen=True)
class QueueEvent(Generic[EntryT, AnswerT]):
    """Something that happened in a queue.

    Attributes:
        name: `accepted` and `joined` requests, `recovered` evaluations of an earlier process, `refused` requests,
            requests that a client `gave_up`, and evaluations that have `begun` or `finished`.
        client: Client of the request; for evaluations, the client in whose turn it began.
        entry: The evaluation; None for a refused request.
        answer: Answer of a finished evaluation, or the error of a refused request.
    """

    name: EventName
    client: str
    entry: EntryT | None = None
    answer: AnswerT | PkbError | None = None


@dataclass
class Counts:
    """Counts of a queue since it was made.

    Attributes:
        submitted: Requests that became an evaluation.
        joined: Requests that are answered by the evaluation of an equal request.
        refused: Requests without a place.
        finished: Evaluations that were answered.
        cancelled: Evaluations that ended before their answer, as no client waited for them.
    """

    submitted: int = 0
    joined: int = 0
    refused: int = 0
    finished: int = 0
    cancelled: int = 0
