"""Runs over a fake evaluator, with scripted agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pkb_gym.agents.run.budget import RunLimits
from pkb_gym.agents.run.episode import EpisodePlan
from pkb_gym.agents.run.identity import RunIdentity
from pkb_gym.agents.run.plan import choose_problems, resolve_all
from pkb_gym.agents.run.results import RunResults
from pkb_gym.agents.run.runner import Runner, RunStatus
from pkb_gym.engine.records.attempt import Attempt
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.stages.execution_environment import this_machine
from tests.agents.conversations import Scripted
from tests.envs.fake_evaluator import FakeEvaluator

REQUESTED = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")


class ReportedProgress:
    """Progress that keeps its calls."""

    def __init__(self) -> None:
        self.attempts: list[tuple[str, int, int]] = []
        self.ends: dict[tuple[str, int], str] = {}

    def attempted(self, attempt: Attempt) -> None:
        self.attempts.append((attempt.problem, attempt.sample, attempt.turn))

    def ended(self, plan: EpisodePlan, detail: str) -> None:
        self.ends[plan.problem.name, plan.sample] = detail


def identity_of(problems: Sequence[str], **fields: object) -> RunIdentity:
    workload = resolve_all(choose_problems(problems), REQUESTED, this_machine())
    given = {"agent": "scripted", "kind": "scripted", "settings": {}, "turns": 1, "style": "brief", "reward": "default"}
    return RunIdentity(**given | {"seed": 0, "requested": REQUESTED, "resolved": workload.resolved} | fields)


class Run:
    """One call of a run.

    Attributes:
        outcome: Outcome of the run.
        reported: Calls of its progress.
        runner: Runner with budget and tally.
    """

    def __init__(
        self,
        folder: Path,
        provider: Scripted,
        evaluator: FakeEvaluator,
        *,
        problems: Sequence[str] = ("AllReduce",),
        samples: int = 1,
        jobs: int = 1,
        limits: RunLimits = RunLimits(),  # noqa: B008  # frozen
        **fields: object,
    ) -> None:
        identity = identity_of(problems, **fields)
        self.reported = ReportedProgress()
        with RunResults(folder, identity) as results:
            self.runner = Runner(results, provider, evaluator, limits, self.reported)
            plans = [EpisodePlan(each, sample) for sample in range(samples) for each in choose_problems(problems)]
            self.outcome: RunStatus = self.runner.play(plans, jobs)


def recorded(folder: Path) -> list[Attempt]:
    return read_attempts(folder / "results.jsonl")


def places(folder: Path) -> list[tuple[str, int, int]]:
    return [(attempt.problem, attempt.sample, attempt.turn) for attempt in recorded(folder)]
