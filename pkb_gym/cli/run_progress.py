"""Progress of a run on stderr: a line for each episode and, on a terminal, one that counts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.envs.text.formatting import time_text

from .terminal_status import TerminalStatus

if TYPE_CHECKING:
    from pkb_gym.agents.run.episode import EpisodePlan
    from pkb_gym.agents.run.runner import Runner


class RunCounter(TerminalStatus):
    """Counts episodes, those that passed and those that were faster; used as a context manager around the run.

    Args:
        total: Number of episodes of the run.
        complete: Number of episodes that earlier calls completed.
    """

    def __init__(self, total: int, complete: int) -> None:
        super().__init__("starting")
        self._total, self._ended = total, complete
        self._lock = threading.Lock()
        self._runner: Runner | None = None

    def watch(self, runner: Runner) -> None:
        """Takes the counts from this runner from now on."""
        self._runner = runner

    def attempted(self, _attempt: Attempt) -> None:
        """Shows the new counts, see `RunProgress`."""
        with self._lock:
            self.show(self._counts())

    def ended(self, plan: EpisodePlan, detail: str) -> None:
        """Prints a line about the episode, see `RunProgress`."""
        with self._lock:
            self._ended += 1
            width = len(str(self._total))
            sample = f" sample {plan.sample}" if plan.sample else ""
            best = None if self._runner is None else self._runner.tally.best(plan.problem.name, plan.sample)
            found = detail or ("nothing" if best is None else in_brief(best))
            line = f"[{self._ended:>{width}}/{self._total}] {plan.problem.name}{sample}: {found}; {self._counts()}"
            self.console.print(line, soft_wrap=True)

    def _counts(self) -> str:
        if self._runner is None:
            return ""
        tally, budget = self._runner.tally, self._runner.budget
        parts = [f"{tally.passed} passed", f"{tally.faster} faster", f"{budget.evaluations} evaluations"]
        if budget.tokens:
            parts.append(f"{budget.tokens} tokens")
        if budget.cost_usd:
            parts.append(f"${budget.cost_usd:.2f}")
        return ", ".join(parts)


def in_brief(attempt: Attempt) -> str:
    """A summary of an attempt."""
    timing = None if attempt.feedback is None else attempt.feedback.timing
    if timing is None or attempt.verdict != "passed":
        return attempt.verdict
    return f"passed, {time_text(timing.candidate_us)}, {timing.leading.speedup:.2f}x"
