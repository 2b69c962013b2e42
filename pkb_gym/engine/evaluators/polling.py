"""The waiting of an evaluator that has sources judged elsewhere: for an answer, for a place in a queue."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pkb_gym.engine.errors import EvaluationNotFound, InfrastructureError, ServiceBusy
from pkb_gym.engine.stages.progress import Progress

Answer = TypeVar("Answer")

FIRST_PAUSE_S = 0.1
"""Between the first attempts; each further pause is twice the one before."""

PROGRESS_S = 1.0
"""Longest that one call waits where states are reported, as a state that changes need not end its wait."""


class PolledState(Protocol):
    """The state of an evaluation elsewhere."""

    @property
    def state(self) -> str:
        """The state of the evaluation in a few words."""

    @property
    def feedback(self) -> object | None:
        """Present exactly when it has finished."""


StateT = TypeVar("StateT", bound=PolledState)


@dataclass(frozen=True)
class Polling:
    """The deadlines of a poll for an answer.

    Attributes:
        evaluator: Name or address of the evaluator, for errors.
        deadline: End of the waiting, by `time.monotonic`.
        timeout_s: Seconds up to the deadline, for errors.
        call_s: Longest wait of one call in seconds.
    """

    evaluator: str
    deadline: float
    timeout_s: float
    call_s: float

    @classmethod
    def starting_now(cls, evaluator: str, timeout_s: float, call_s: float) -> Polling:
        """One whose deadline is that many seconds from now."""
        return cls(evaluator, time.monotonic() + timeout_s, timeout_s, call_s)

    def wait(
        self,
        submit: Callable[[float], StateT],
        poll: Callable[[StateT, float], StateT],
        progress: Progress | None = None,
    ) -> StateT:
        """Waits until an evaluation has finished.

        Args:
            submit: Submits it, and may wait so many seconds for the answer; called again where it is not known
                any more.
            poll: Returns its state, once it has finished or after so many seconds; given the last state.
            progress: Function called with each new state.

        Returns:
            The state that has the feedback.

        Raises:
            InfrastructureError: The time is over.
        """
        longest_s = self.call_s if progress is None else min(self.call_s, PROGRESS_S)
        found, reported = submit(0.0 if progress is not None else min(longest_s, self.timeout_s)), ""
        while found.feedback is None:
            if progress is not None and found.state != reported:
                reported = found.state
                progress(reported)
            left_s = self.deadline - time.monotonic()
            if left_s <= 0:
                raise InfrastructureError(
                    f"{self.evaluator} has not judged it within {self.timeout_s:g} s; its state is: {found.state}"
                )
            wait_s = min(left_s, longest_s)
            try:
                found = poll(found, wait_s)
            except EvaluationNotFound:  # it was started anew, or forgot the answer
                found = submit(wait_s)
        return found


def while_busy(attempt: Callable[[], Answer], deadline: float, longest_pause_s: float) -> Answer:
    """Tries again and again while there is no place in a queue.

    Args:
        attempt: Makes one attempt; raises `ServiceBusy` where there is no place.
        deadline: Deadline of the last attempt, by `time.monotonic`.
        longest_pause_s: Longest pause between attempts in seconds.

    Raises:
        ServiceBusy: There was none up to then.
    """
    for pause_s in growing_pauses(longest_pause_s):
        try:
            return attempt()
        except ServiceBusy:
            if time.monotonic() + pause_s >= deadline:
                raise
            time.sleep(pause_s)
    raise AssertionError("pauses never end")


def growing_pauses(longest_s: float) -> Iterator[float]:
    """Seconds between attempts, without end."""
    for exponent in itertools.count():
        yield min(longest_s, FIRST_PAUSE_S * 2 ** min(exponent, 10))
