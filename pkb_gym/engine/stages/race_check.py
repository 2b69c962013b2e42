"""The race detector as a judge beside GPUs: an emulated run of the same source, and the verdict that follows from it.

The run is at size "tiny", on as many ranks as the evaluation has. A source that cannot be emulated, or is wrong there
for another reason than a race, is not judged: that is a warning, and what runs on GPUs decides.
"""

from __future__ import annotations

import hmac

from pkb_gym.engine.gangs.emulated_gang import EmulatedGang
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.race_check import EMULATED_SIZE, JudgedRaces, RaceCheckReport
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.emulate import check_emulated, unordered
from pkb_gym.engine.stages.execution_environment import resolve_here
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.support.printable import printable

MAX_REASON_CHARS = 500
_WHERE = f"in an emulated run at size {EMULATED_SIZE}"

PASSING = (Failure.TIMEOUT, Failure.OUT_OF_MEMORY)
"""Failures of an emulated run that another run of the same source need not have."""


def secret_of(key: bytes) -> bytes:
    """The key that inputs and schedules of the emulated run follow from; a candidate that knows theirs knows no other.

    Args:
        key: Secret key of the evaluator.
    """
    return hmac.digest(key, b"race check", "sha256")


def emulated_config(problem: Problem, source: Source, config: ResolvedConfig, secret: bytes) -> ResolvedConfig:
    """The configuration of the emulated run.

    Args:
        problem: Problem to be solved.
        source: Source of the candidate.
        config: Configuration of the evaluation on GPUs.
        secret: Key as from `secret_of`; with the source, it draws the schedules.

    Raises:
        ConfigError: Sources cannot be emulated here.
        SizeError: The problem has no such size on that many ranks.
    """
    seed = int.from_bytes(hmac.digest(secret, source.sha256.encode(), "sha256")[:7], "big")
    requested = EvalConfig(
        device="emulated",
        world_size=config.world_size,
        size=EMULATED_SIZE,
        dtype=config.dtype,
        language="cuda",
        protocol=config.protocol,
        seed=seed,
        compile_timeout_s=config.compile_timeout_s,
        memory_bytes=config.memory_bytes,
        race_check=config.race_check,
    )
    return resolve_here(requested, problem, source)


def judge_races(run: CandidateRun, gang: EmulatedGang, *, is_same_size: bool) -> tuple[JudgedRaces, bool]:
    """Runs the candidate on emulated GPUs.

    Args:
        run: Run of the candidate, under the configuration of `emulated_config`.
        gang: Gang that it runs on.
        is_same_size: Whether the evaluation itself has that size.

    Returns:
        The verdict, without its duration, and whether another run would have the same.

    Raises:
        InfrastructureError: This machine failed.
    """
    killed = False
    try:
        check_emulated(run, gang)
    except Stopped as stopped:
        killed = stopped.killed
    found = run.feedback.build()
    race, emulation = found.race, found.emulation
    if race is None and gang.done is not None:  # a fault has ended the run, and the race may be its cause
        races = [finding for finding in gang.done.findings if finding.finding_class == "unsynchronised"]
        race = unordered(races[0]) if races else None
    if race is not None and (is_same_size or _runs_right(found)):
        judged = JudgedRaces(
            report=RaceCheckReport(verdict="race", size=EMULATED_SIZE, duration_s=0.0),
            emulation=emulation,
            race=race,
            message=f"{found.message or race.evidence}\nfound by the race detector, {_WHERE}",
            failed_rank=found.failed_rank if found.race is not None else race.rank,
        )
        return judged, True
    if found.failure is None:
        return JudgedRaces(
            report=RaceCheckReport(verdict="no_race", size=EMULATED_SIZE, duration_s=0.0), emulation=emulation
        ), True
    judged = not_judged(f"{_WHERE} it ended with {found.failure}: {found.message}")
    return judged.model_copy(update={"emulation": emulation}), not killed and found.failure not in PASSING


def not_judged(reason: str) -> JudgedRaces:
    """The verdict that there is none, without its duration.

    Args:
        reason: Reason, of which the first line is kept; it may quote what a candidate wrote.
    """
    line = printable(reason.partition("\n")[0], MAX_REASON_CHARS)
    return JudgedRaces(report=RaceCheckReport(verdict="not_judged", reason=line, size=EMULATED_SIZE, duration_s=0.0))


def _runs_right(found: Feedback) -> bool:
    """Whether the source fits the size of the emulated run, so that its races are not those of a foreign size.

    Its outputs are right while all ranks are together, and it touches nothing that it must not.
    """
    if found.emulation is None or found.check is None:
        return False
    errors = [finding for finding in found.emulation.findings if finding.finding_class is None]
    return not errors and (found.check.passed or len(found.emulation.schedules) > 1)
