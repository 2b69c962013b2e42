"""Plays all episodes of a run, several at a time, until they are complete or a budget is used up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pkb_gym.agents.protocol import AgentError, AgentProvider, NotCovered
from pkb_gym.agents.run.budget import Budget, RunLimits
from pkb_gym.agents.run.episode import EpisodePlan, EpisodePlayer, EpisodeStatus
from pkb_gym.agents.run.results import RunResults
from pkb_gym.agents.run.tally import Tally
from pkb_gym.agents.run.workspace_episode import WorkspacePlayer
from pkb_gym.agents.workspace.provider import WorkspaceProvider
from pkb_gym.engine.errors import ConfigError, InfrastructureError, SizeError, StoreError
from pkb_gym.engine.evaluators.evaluator import Evaluator
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.support.printable import printable
from pkb_gym.engine.support.side_by_side import side_by_side

MAX_FAILURES = 5
"""Episodes in a row that fail by the agent, or by the evaluator, before the run stops: the next would fail as well."""

MAX_DETAIL_CHARS = 400


class RunProgress(Protocol):
    """The observer of a run; called from several threads."""

    def attempted(self, attempt: Attempt) -> None:
        """A turn was recorded."""

    def ended(self, plan: EpisodePlan, detail: str) -> None:
        """An episode ended; the detail is empty where it is complete, and gives the cause where it is not."""


@dataclass
class RunStatus:
    """The result of a run.

    Attributes:
        complete: Number of complete episodes, those of earlier calls included.
        open: Number of episodes that were stopped without a failure.
        skipped: Reason why episodes were not played, by problem.
        failed: Problem, sample and reason of episodes that could not be completed.
        refused: Words of the endpoint for each of these whose first request it refused.
        stopped: Reason why the run stopped before its end; None where it did not.
    """

    complete: int = 0
    open: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[tuple[str, int, str]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stopped: str | None = None


class Runner:
    """Plays the episodes of a run.

    Args:
        results: Results of earlier calls, to which turns are added.
        provider: Provider of the agents.
        evaluator: Evaluator that all episodes share.
        limits: Limits of the run.
        progress: Observer of every turn and episode.

    Attributes:
        budget: Budget of the run, with what was used.
        tally: Counts of the problems that are played, those of earlier calls included.
    """

    def __init__(
        self,
        results: RunResults,
        provider: AgentProvider | WorkspaceProvider,
        evaluator: Evaluator,
        limits: RunLimits,
        progress: RunProgress,
    ) -> None:
        self._results, self._provider, self._evaluator, self._progress = results, provider, evaluator, progress
        earlier = [attempt for turns in results.episodes().values() for attempt in turns.values()]
        self.budget, self.tally = Budget(limits, earlier), Tally()
        self._stopped: str | None = None
        self._failures = 0
        """Episodes that failed since the last one that did not."""
        self._lock = threading.Lock()
        self._player: EpisodePlayer | WorkspacePlayer
        if isinstance(provider, WorkspaceProvider):
            self._player = WorkspacePlayer(results.identity, provider, evaluator, self._may_go_on, self._record)
        else:
            self._player = EpisodePlayer(results.identity, provider, evaluator, self._may_go_on, self._record)

    def play(self, plans: Sequence[EpisodePlan], jobs: int) -> RunStatus:
        """Plays the episodes that are not complete yet, in order.

        Args:
            plans: Episodes of the run.
            jobs: Number of episodes at a time, at least 1.

        Raises:
            ConfigError: The agent or the evaluator can play no episode; the endpoint refuses every first request.
            StoreError: The turns cannot be recorded.
        """
        outcome = RunStatus()
        for plan in plans:
            for attempt in self._results.episode(plan.problem.name, plan.sample).values():
                self.tally.count(attempt)
        waiting = [plan for plan in plans if not self._results.is_complete(plan.problem.name, plan.sample)]
        outcome.complete = len(plans) - len(waiting)
        with side_by_side(waiting, self._play, jobs, name="pkb-run", give_up=self._give_up) as done:
            for _ in waiting:
                plan, status = done.get()
                self._progress.ended(plan, self._account(plan, status, outcome))
        if outcome.refused and len(outcome.refused) == len(outcome.failed) and not outcome.complete + outcome.open:
            raise ConfigError(f"the endpoint refuses every first request, the last one so: {outcome.refused[-1]}")
        outcome.stopped = self._stopped or (self.budget.exhausted if outcome.open else None)
        return outcome

    def _play(self, plan: EpisodePlan) -> EpisodeStatus:
        if not self._may_go_on():
            return EpisodeStatus.STOPPED
        try:
            status = self._player.play(plan, self._results.episode(plan.problem.name, plan.sample))
        except AgentError as error:
            self._count_failure(str(error))
            raise
        if status is EpisodeStatus.NOT_JUDGED:
            self._count_failure(self._evaluator_error(plan))
        elif status is EpisodeStatus.COMPLETE:
            self._failures = 0
        return status

    def _count_failure(self, detail: str) -> None:
        """Here, not where statuses are read: the thread would have begun further episodes by then."""
        with self._lock:
            self._failures += 1
            if self._failures >= MAX_FAILURES and self._stopped is None:
                self._stopped = f"{self._failures} episodes in a row failed, the last one so: {_in_one_line(detail)}"

    def _account(self, plan: EpisodePlan, status: EpisodeStatus | BaseException, outcome: RunStatus) -> str:
        """Counts an episode; returns the detail of its end, empty where it is complete."""
        place = (plan.problem.name, plan.sample)
        if status is EpisodeStatus.COMPLETE:
            outcome.complete += 1
            return ""
        if status is EpisodeStatus.STOPPED:
            outcome.open += 1
            return str(status)
        if isinstance(status, NotCovered | SizeError):  # SizeError: of a service on another machine
            outcome.skipped[plan.problem.name] = str(status)
            return f"skipped: {status}"
        if status is EpisodeStatus.NOT_JUDGED:
            detail = self._evaluator_error(plan)
        elif status is EpisodeStatus.REFUSED:
            words = self._results.episode(*place)[0].refusal or ""
            outcome.refused.append(_in_one_line(words))
            detail = f"refused: {words}"
        elif isinstance(status, StoreError | ConfigError) or not isinstance(status, Exception | SystemExit):
            assert isinstance(status, BaseException)
            raise status
        elif isinstance(status, InfrastructureError):
            detail = str(status)
        else:  # a mistake in the agent costs its own episode alone
            detail = f"the agent crashed: {type(status).__name__}: {status}"
        outcome.failed.append((*place, _in_one_line(detail)))
        return _in_one_line(detail)

    def _evaluator_error(self, plan: EpisodePlan) -> str:
        turns = self._results.episode(plan.problem.name, plan.sample)
        last = turns[max(turns)].feedback if turns else None
        return "the evaluator failed" + ("" if last is None or not last.message else f": {last.message}")

    def _may_go_on(self) -> bool:
        return self._stopped is None and self.budget.exhausted is None

    def _record(self, attempt: Attempt) -> None:
        before = self._results.episode(attempt.problem, attempt.sample).get(attempt.turn)
        self._results.append(attempt)
        if before is None or not before.is_answered:  # one that was taken up again had its reply counted before
            self.budget.count(attempt)
        self.tally.count(attempt)
        self._progress.attempted(attempt)

    def _give_up(self) -> None:
        """Ends what is under way; its results are not recorded."""
        self._stopped = "interrupted"
        self._results.close()
        self._evaluator.close()
        self._provider.close()


def _in_one_line(detail: str) -> str:
    return printable(" ".join(detail.split()), MAX_DETAIL_CHARS)
