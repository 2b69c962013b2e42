"""The state of a run: episodes, problems that were solved, and costs."""

from __future__ import annotations

import threading

from pkb_gym.engine.records.attempt import TRUNCATED, Attempt
from pkb_gym.rewards.reward import is_right, was_only_compiled


def is_passed(attempt: Attempt) -> bool:
    """Whether a submission is right."""
    return attempt.feedback is not None and is_right(attempt.feedback)


def is_faster(attempt: Attempt) -> bool:
    """Whether a submission is right and its leading speedup, as `Timing.leading`, more than 1."""
    timing = None if attempt.feedback is None else attempt.feedback.timing
    return is_passed(attempt) and timing is not None and timing.leading.speedup > 1


class Tally:
    """Problems with a right, and with a faster, submission; safe to use from several threads.

    Attributes:
        compiled_only: Number of submissions that were compiled and not run.
        truncated: Number of replies that were cut off at their limit of tokens before a source was complete.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._best: dict[tuple[str, int], Attempt] = {}
        self._replies: set[tuple[str, int, int]] = set()
        self.compiled_only = self.truncated = 0

    @property
    def replies(self) -> int:
        """Number of replies; one whose submission was judged again counts once."""
        with self._lock:
            return len(self._replies)

    def count(self, attempt: Attempt) -> None:
        """Adds one attempt, unless the endpoint refused it."""
        if not attempt.is_answered:
            return
        with self._lock:
            self._replies.add((attempt.problem, attempt.sample, attempt.turn))
            self.compiled_only += attempt.feedback is not None and was_only_compiled(attempt.feedback)
            self.truncated += attempt.verdict == TRUNCATED
            best = self._best.get((attempt.problem, attempt.sample))
            if best is None or _rank(attempt) > _rank(best):
                self._best[attempt.problem, attempt.sample] = attempt

    def best(self, problem: str, sample: int) -> Attempt | None:
        """The best attempt of an episode: right before wrong, then by leading speedup; None where there is none.

        Of a workspace, the submission.
        """
        with self._lock:
            return self._best.get((problem, sample))

    def problems(self) -> tuple[int, int, int]:
        """Problems that were tried, that were passed in any episode, and that were faster in any."""
        with self._lock:
            attempts = list(self._best.values())
        tried = {attempt.problem for attempt in attempts}
        passed = {attempt.problem for attempt in attempts if is_passed(attempt)}
        return len(tried), len(passed), len({attempt.problem for attempt in attempts if is_faster(attempt)})


def _rank(attempt: Attempt) -> tuple[bool, bool, float, float]:
    timing = None if attempt.feedback is None else attempt.feedback.timing
    reward = attempt.reward if attempt.reward is not None else float("-inf")
    return attempt.is_submission, is_passed(attempt), 0.0 if timing is None else timing.leading.speedup, reward
