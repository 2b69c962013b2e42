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
    """Counts episodes, and the problems that passed and that were faster; used as a context manager around the run.

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
        return f"{problems_text(*tally.problems())}; {usage_text(budget.evaluations, budget.tokens, budget.cost_usd)}"


def problems_text(tried: int, passed: int, faster: int) -> str:
    """The problems of a run in words, in its progress and in its summary alike.

    Args:
        tried: Number of problems with a reply.
        passed: Number of those with a right submission in any episode.
        faster: Number of those with a right submission whose leading speedup is more than 1.
    """
    if not tried:
        return "no reply was judged"
    return f"{passed} of {tried} problems passed, {faster} faster than the leading baseline"


def usage_text(evaluations: int, tokens: int, cost_usd: float) -> str:
    """What a run used, in words.

    Args:
        evaluations: Number of submissions, those of earlier calls included.
        tokens: Number of tokens read and written.
        cost_usd: Price in US dollars of the replies whose price is known.
    """
    parts = [f"{evaluations} evaluations"]
    if tokens:
        parts.append(f"{tokens} tokens")
    if cost_usd:
        parts.append(f"${cost_usd:.2f}")
    return ", ".join(parts)


def in_brief(attempt: Attempt) -> str:
    """A summary of an attempt."""
    feedback = attempt.feedback
    if feedback is None or attempt.verdict != "passed":
        return attempt.verdict
    if not feedback.is_correct:  # of `--until compile`, which the counts do not take for passed
        return f"no failure up to {feedback.stage}"
    if (timing := feedback.timing) is None:
        return attempt.verdict
    leading = timing.leading
    return f"passed, {time_text(timing.candidate_us)}, {leading.speedup:.2f}x {leading.baseline}"
