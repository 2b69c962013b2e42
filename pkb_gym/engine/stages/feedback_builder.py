"""Collects the reports of the stages, and builds the `Feedback` of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.check_report import CheckReport, Race
from pkb_gym.engine.records.conditions import problem_sha256, problem_text_sha256
from pkb_gym.engine.records.config import ResolvedConfig
from pkb_gym.engine.records.emulation import Emulation
from pkb_gym.engine.records.feedback import (
    CompileReport,
    Environment,
    Failure,
    Feedback,
    Finding,
    Profile,
    SanitizerReport,
    Stage,
)
from pkb_gym.engine.records.race_check import JudgedRaces, RaceCheckReport
from pkb_gym.engine.records.roofline import Roofline
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.records.timing import Timing
from pkb_gym.engine.stages.progress import WAITING, Progress
from pkb_gym.engine.stages.stopwatch import Stopwatch
from pkb_gym.engine.support.printable import printable

MAX_MESSAGE_CHARS = 16_000

Entered = TypeVar("Entered")


class Stopped(Exception):
    """Raised to leave the pipeline; the reason has been noted in the feedback.

    Attributes:
        killed: Whether the evaluator killed the gang, as in `GangFailed`.
    """

    def __init__(self, message: str, *, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


class FeedbackBuilder:
    """Builds the feedback of an evaluation from its findings.

    Attributes:
        problem: Problem to be solved.
        source: Source text of the candidate.
        config: Resolved configuration of the evaluation.
        nonce: Nonce of the attempt.
        problem_sha256, problem_text_sha256: Fields of the same names in `Feedback`.
        stopwatch: Stopwatch of the evaluation.
        compile, sanitizers, race, emulation, race_check, check, timing, profile, roofline, output,
            calls_torch_distributed: Fields of the same names in `Feedback`.
        had_neighbours: Whether other candidates ran on the same devices meanwhile.
        has_loaded: Whether the candidate has begun to be loaded.

    Raises:
        OSError: the problem's files cannot be read.
    """

    def __init__(
        self,
        problem: Problem,
        source: Source,
        config: ResolvedConfig,
        environment: Environment,
        stopwatch: Stopwatch | None = None,
        nonce: str = "",
    ) -> None:
        self.problem, self.source, self.config, self.nonce = problem, source, config, nonce
        self.stopwatch = stopwatch or Stopwatch()
        self.compile: CompileReport | None = None
        self.sanitizers: tuple[SanitizerReport, ...] = ()
        self.race: Race | None = None
        self.emulation: Emulation | None = None
        self.race_check: RaceCheckReport | None = None
        self.check: CheckReport | None = None
        self.timing: Timing | None = None
        self.profile: Profile | None = None
        self.roofline: Roofline | None = None
        self.output = ""
        self.calls_torch_distributed: bool | None = None
        self.had_neighbours = self.has_loaded = False
        self._environment = environment
        self.problem_sha256, self.problem_text_sha256 = problem_sha256(problem), problem_text_sha256(problem)
        self._stage: Stage | None = None
        self._failure: Failure | None = None
        self._message = ""
        self._failed_rank: int | None = None
        self._integrity: list[Finding] = []

    @contextlib.contextmanager
    def stage(self, stage: Stage, report: Progress) -> Iterator[None]:
        """Times a stage; it counts as completed if its block ends without an exception."""
        report(stage.value)
        with self.stopwatch.phase(stage.value):
            yield
            self._stage = stage

    @contextlib.contextmanager
    def waiting_for(self, turn: AbstractContextManager[Entered]) -> Iterator[Entered]:
        """Enters and leaves `turn`, whose value it yields; the time until it is entered counts as waiting."""
        with contextlib.ExitStack() as stack:
            with self.stopwatch.phase(WAITING):
                entered = stack.enter_context(turn)
            yield entered

    def complete(self, stage: Stage) -> None:
        """Notes a stage that was completed within another one's block."""
        self._stage = stage

    @property
    def failed(self) -> bool:
        """Whether a failure was noted."""
        return self._failure is not None

    @property
    def failure(self) -> Failure | None:
        """The failure that was noted; None without one."""
        return self._failure

    def stop(self, failure: Failure, message: str, rank: int | None = None, *, killed: bool = False) -> Stopped:
        """Notes why the pipeline ends here; the caller raises what is returned."""
        self.fail(failure, message, rank)
        return Stopped(message, killed=killed)

    def fail(self, failure: Failure, message: str, rank: int | None = None) -> None:
        """Notes a failure."""
        self._failure, self._message, self._failed_rank = failure, printable(message, MAX_MESSAGE_CHARS), rank

    def add_race_check(self, judged: JudgedRaces) -> None:
        """Notes the verdict of the race detector beside GPUs; with a race, nothing after stage `run` was completed."""
        self.race_check, self.emulation, self.race = judged.report, judged.emulation, judged.race
        if judged.race is not None:
            self._stage = Stage.RUN
            self.timing = self.profile = self.roofline = None
            self.fail(Failure.RACE, judged.message, judged.failed_rank)

    def suspect(self, findings: Sequence[Finding]) -> None:
        """Notes integrity findings; any of them fails the evaluation."""
        self._integrity += [
            finding.model_copy(update={"detail": printable(finding.detail, MAX_MESSAGE_CHARS)}) for finding in findings
        ]
        if findings:
            self.fail(Failure.INTEGRITY, "; ".join(f"{finding.code}: {finding.detail}" for finding in findings))

    def build(self) -> Feedback:
        """The finished record."""
        timed = self._stage is not None and self._stage.order >= Stage.TIME.order
        return Feedback(
            problem=self.problem.name,
            problem_sha256=self.problem_sha256,
            problem_text_sha256=self.problem_text_sha256,
            source_sha256=self.source.sha256,
            nonce=self.nonce,
            config=self.config,
            environment=self._environment,
            stage=self._stage,
            failure=self._failure,
            message=self._message,
            failed_rank=self._failed_rank,
            output=printable(self.output),
            calls_torch_distributed=self.calls_torch_distributed,
            compile=self.compile,
            sanitizers=self.sanitizers,
            race=self.race,
            emulation=self.emulation,
            race_check=self.race_check,
            check=self.check,
            timing=self.timing if timed else None,
            profile=self.profile,
            roofline=self.roofline if timed else None,
            integrity=tuple(self._integrity),
            durations_s=self.stopwatch.readings(),
        )
