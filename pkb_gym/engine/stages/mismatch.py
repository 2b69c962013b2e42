"""Wrong outputs: a wrong kernel, a race, or one that told checked calls from timed ones."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.records.feedback import CheckReport, Failure, Mismatch, Race
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages.block_staging import TOGETHER, CallConditions, conducted
from pkb_gym.engine.stages.candidate_run import CandidateRun, FinishedBlock
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.race import find_race, late_output

LATE_S = 0.2
"""How long a gang with wrong outputs may go on, to see whether it was merely late."""

FAILURES: dict[str, Failure] = {
    "shape_or_dtype": Failure.WRONG_SHAPE_OR_DTYPE,
    "values": Failure.OUTPUT_MISMATCH,
    "input_modified": Failure.INPUT_MODIFIED,
}
"""Reason of a mismatch -> failure."""


def failed_check(
    run: CandidateRun,
    finished: FinishedBlock,
    report: CheckReport,
    conditions: Sequence[CallConditions],
    first_trial: int,
    baseline_us: float,
) -> Stopped:
    """What is wrong with a kernel that failed the check.

    Args:
        run: of the candidate.
        finished: the checked calls.
        report: on their outputs.
        conditions: of each call.
        first_trial: number of the first.
        baseline_us: microseconds a call of the baseline.

    Raises:
        Stopped: the candidate failed in another way while the cause was looked for.
        InfrastructureError: this machine failed.
    """
    text = "\n".join(map(str, report.mismatches))
    worst = report.mismatches[0] if report.mismatches else None
    if worst is not None and (worst.reason != "values" or _is_wrong_together(report, conditions, first_trial)):
        if worst.reason == "values" and _is_merely_late(run, finished, worst, first_trial):
            late = integrity.late_output(worst)
            run.feedback.suspect(late)
            return run.feedback.stop(Failure.INTEGRITY, f"{late[0].detail}\n{text}", worst.rank)
        return run.feedback.stop(FAILURES[worst.reason], text, worst.rank)
    race = late_output(finished)
    if race is None:
        assert worst is not None
        first = min(report.mismatches, key=lambda mismatch: mismatch.trial)
        if not _is_right_together(run, first.trial, timed=False, baseline_us=baseline_us):
            return run.feedback.stop(FAILURES[worst.reason], text, worst.rank)
        call = first.trial - first_trial
        delayed = conditions[call]
        if delayed == CallConditions():  # what went wrong began in the call before
            delayed = conditions[call - 1]
        race = find_race(run, delayed, first, baseline_us)
    return _raced(run, race)


def failed_while_timed(run: CandidateRun, finished: FinishedBlock, report: CheckReport, baseline_us: float) -> Stopped:
    """What is wrong with a kernel that passed the check and is wrong in a timed block.

    Args:
        run: of the candidate.
        finished: the block.
        report: on its outputs.
        baseline_us: microseconds a call of the baseline.
    """
    race = late_output(finished)
    if race is None:
        first = min(report.mismatches, key=lambda mismatch: mismatch.trial)
        if first.reason != "values" or not _is_right_together(run, first.trial, timed=True, baseline_us=baseline_us):
            run.feedback.suspect(integrity.timed_outputs(report))
            return run.feedback.stop(Failure.INTEGRITY, f"wrong while timed: {first}", first.rank)
        race = Race(kind="unknown", rank=first.rank, evidence=str(first))
    return _raced(run, race)


def _raced(run: CandidateRun, race: Race) -> Stopped:
    run.feedback.race = race
    return run.feedback.stop(Failure.RACE, f"{race}\n{race.evidence}", race.rank if race.owner is None else race.owner)


def _is_wrong_together(report: CheckReport, conditions: Sequence[CallConditions], first_trial: int) -> bool:
    return any(conditions[mismatch.trial - first_trial].together for mismatch in report.mismatches)


def _is_merely_late(run: CandidateRun, finished: FinishedBlock, worst: Mismatch, first_trial: int) -> bool:
    """Whether a wrong output was written after its call: before the gang was frozen, or when it goes on."""
    written = {(first_trial + output.call, rank, output.output) for rank, output in finished.late}
    if (worst.trial, worst.rank, worst.output) in written:
        return True
    run.go_on(LATE_S)
    return run.compare(finished.done).passed


def _is_right_together(run: CandidateRun, trial: int, *, timed: bool, baseline_us: float) -> bool:
    """Whether a trial's outputs are right when all ranks begin and end the call together."""
    plan = run.prepare_again(trial, timed=timed)
    run.reference.run(1, run.dialect)
    staging = conducted(run.config.device, run.config.world_size, [TOGETHER], baseline_us)
    finished = run.run(plan, [0], staging)
    return run.compare(finished.done).passed and not finished.late
