"""The evaluator that a service has at work, and the end of those that it replaced."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.serve.evaluation import OwningEvaluator

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Infrastructure failures in a row after which an evaluator is taken for broken."""

PAUSE_STEP_S = 0.2
"""Time in seconds that a pause waits for one evaluator before it checks for a replacement, or for its own end."""


class CurrentEvaluator:
    """Opens an evaluator when one is needed, pauses it, and closes it in the background; safe in several threads.

    Args:
        open_evaluator: Makes an evaluator.
        max_failures: Infrastructure failures in a row, without a candidate that ran in between, after which it is taken
            for broken; None for any number.
    """

    def __init__(self, open_evaluator: Callable[[], OwningEvaluator], max_failures: int | None = MAX_FAILURES) -> None:
        self._open_evaluator, self._max_failures = open_evaluator, max_failures
        self._failures = 0
        self._own_sizes: set[str] = set()
        self._lock = threading.RLock()
        self._one_closed = threading.Condition(self._lock)
        self._pausing = threading.Lock()
        self._evaluator: OwningEvaluator | None = None
        self._closing = 0
        self._paused = self._closed = False

    @property
    def paused(self) -> bool:
        """Whether the devices are left to another program."""
        return self._paused

    def get(self) -> OwningEvaluator:
        """The evaluator, made if need be.

        Raises:
            InfrastructureError: It cannot be made.
        """
        with self._lock:
            if self._closed:
                raise InfrastructureError("this service has been closed")
            if self._evaluator is None:
                evaluator = self._open_evaluator()
                if self._paused:
                    evaluator.pause(0)
                self._evaluator = evaluator
            return self._evaluator

    def retire(self, broken: OwningEvaluator | None = None) -> OwningEvaluator | None:
        """Has the next `get` make another evaluator.

        Args:
            broken: Evaluator that has to go; by default the one at work.

        Returns:
            The evaluator, for `part_with`; None where it is not at work any more.
        """
        with self._lock:
            if broken is None:
                broken = self._evaluator
            if broken is None or broken is not self._evaluator:
                return None
            self._evaluator = None
            self._forget_failures()
            self._closing += 1
            return broken

    def why_broken(self, evaluator: OwningEvaluator, feedback: Feedback) -> str | None:
        """Counts what an evaluation found; why its evaluator has to go, None where it may stay.

        An evaluator whose processes or memory are in disorder may answer every evaluation with an infrastructure
        failure, and raise nothing. A size of a client's own can be why the baseline fails, however often it is asked
        for; so one such failure of each problem counts.
        """
        with self._lock:
            if evaluator is not self._evaluator:
                return None
            if feedback.failure is Failure.INFRASTRUCTURE:
                self._failures += self._counts(feedback)
                logger.warning("an infrastructure failure: %s", feedback.message)
            elif feedback.stage not in (None, Stage.STATIC, Stage.COMPILE):
                self._forget_failures()
            if self._max_failures is None or self._failures < self._max_failures:
                return None
            return f"{self._failures} infrastructure failures in a row, the last: {feedback.message}"

    def _counts(self, feedback: Feedback) -> bool:
        if isinstance(feedback.config.size, str):
            return True
        is_first = feedback.problem not in self._own_sizes
        self._own_sizes.add(feedback.problem)
        return is_first

    def _forget_failures(self) -> None:
        self._failures = 0
        self._own_sizes.clear()

    def part_with(self, retired: OwningEvaluator) -> None:
        """Closes an evaluator, in the background: ending what hangs may hang."""
        threading.Thread(target=self._close_one, args=(retired,), name="pkb-closing", daemon=True).start()

    def pause(self, timeout_s: float | None = None) -> bool:
        """Leaves the devices to another program until `resume`.

        Args:
            timeout_s: Longest wait in seconds for what runs; None for no limit.

        Returns:
            Whether nothing runs any more. If not, nothing new begins all the same, unless the pause was ended.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._paused = True
        while True:
            left = PAUSE_STEP_S if until is None else max(0.0, min(PAUSE_STEP_S, until - time.monotonic()))
            with self._pausing:  # so that `resume` is not overtaken by a pause that it ended
                if not self._paused:
                    return False
                if self._is_idle(left):
                    return True
            if until is not None and time.monotonic() >= until:
                return False

    def resume(self) -> None:
        """Ends a pause; calling it again changes nothing."""
        with self._pausing, self._lock:
            self._paused = False
            if self._evaluator is not None:
                self._evaluator.resume()

    def refuse(self) -> None:
        """Lets no evaluator be made any more."""
        with self._lock:
            self._closed = True

    def wait_closed(self) -> None:
        """Returns when every evaluator that was parted with is closed."""
        with self._lock:
            self._one_closed.wait_for(lambda: not self._closing)

    def _close_one(self, evaluator: OwningEvaluator) -> None:
        try:
            evaluator.close()
        except Exception:
            logger.exception("an evaluator could not be closed")
        with self._lock:
            self._closing -= 1
            self._one_closed.notify_all()

    def _is_idle(self, timeout_s: float) -> bool:
        """Pauses the evaluator of this moment; whether nothing runs any more, of former ones neither."""
        until = time.monotonic() + timeout_s
        with self._lock:
            evaluator = self._evaluator
        if evaluator is not None and not evaluator.pause(timeout_s):
            return False
        with self._lock:  # an evaluator that was opened meanwhile was paused at once
            return self._one_closed.wait_for(lambda: not self._closing, max(0.0, until - time.monotonic()))
