"""Wrong outputs: a wrong kernel, a race, or a kernel that recognises timed calls."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.compare.layout import BlockPlan
from pkb_gym.engine.records.check_report import CheckReport, Mismatch, Race
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages.block_staging import CallConditions, Pace, conducted, longest_delays_s
from pkb_gym.engine.stages.candidate_run import CandidateRun, FinishedBlock
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.race import find_race, late_output
from pkb_gym.engine.stages.recurring_calls import describe, first_return

LATE_S = 0.2
"""Time in seconds that a gang with wrong outputs may go on, to see whether it was merely late."""

OTHER_PLACES = 3
"""Times that inputs of a wrong timed block are tried elsewhere before they count as wrong everywhere."""

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
    pace: Pace,
) -> Stopped:
    """The failure of a kernel that did not pass the check.

    Args:
        run: Run of the candidate.
        finished: Checked block.
        report: Report on the block's outputs.
        conditions: Conditions of each call.
        pace: Pace of the machine.

    Raises:
        Stopped: the candidate failed in another way while the cause was looked for.
        InfrastructureError: this machine failed.
    """
    run.observer.outputs_differ(finished.plan, report)
    first_trial = finished.plan.sets[0].trial
    worst = report.mismatches[0] if report.mismatches else None
    if worst is not None and worst.reason != "values":
        return _wrong(run, report)
    if worst is not None and _is_merely_late(run, finished, report, conditions, first_trial):
        late = integrity.late_output(worst)
        run.feedback.suspect(late)
        return run.feedback.stop(Failure.INTEGRITY, f"{late[0].detail}\n{worst}", worst.rank)
    race = late_output(finished)
    if race is None:
        assert worst is not None
        first = _first_delayed(report, conditions, first_trial)
        unhurried, again = _with_time(run, finished.plan, timed=False, pace=pace)
        race = late_output(again)
        if race is None:
            memory = _seems_remembered(run, finished.plan, report, unhurried, pace)
            if memory or not unhurried.passed:
                return _wrong(run, report, unhurried, memory)
            call = first.trial - first_trial
            while call and conditions[call] == CallConditions():  # it began in the last call that had conditions
                call -= 1
            race = find_race(run, conditions[call], first, pace)
    return _raced(run, race)


def _seems_remembered(
    run: CandidateRun, plan: BlockPlan, report: CheckReport, unhurried: CheckReport, pace: Pace
) -> str:
    """A line on the first call with wrong outputs, if an earlier one has returned in it; empty for none.

    A call whose values are all new must be right at addresses that no call had, and wrong at those of the call just
    before it if it was right this time.

    Args:
        run: Run of the candidate.
        plan: Plan of the block.
        report: Report on the wrong outputs.
        unhurried: Report on the same calls, all ranks together.
        pace: Pace of the machine.
    """
    again = first_return(plan, report)
    if again is None:
        return ""
    if again.recurrence.values_of is not None:
        return "" if unhurried.passed else describe(again)
    if not unhurried.passed:
        apart = run.prepare_alone(again.trial)
        return describe(again) if apart is None or _unhurried(run, apart, pace)[0].passed else ""
    found = ""
    for trial in (again.recurrence.place_of, again.trial):
        same_place = None if trial is None else run.prepare_alone(trial, again.offset)
        is_wrong = same_place is not None and not _unhurried(run, same_place, pace)[0].passed
        found = describe(again) if is_wrong else ""
    return found


def _wrong(run: CandidateRun, report: CheckReport, unhurried: CheckReport | None = None, memory: str = "") -> Stopped:
    """The failure of wrong outputs.

    Args:
        run: Run of the candidate.
        report: Report on the wrong outputs.
        unhurried: Report on calls that all ranks began and ended together; None where there were none.
        memory: Line on results that seem to be remembered; empty for none.
    """
    worst = report.mismatches[0]
    message = "\n".join(filter(None, [str(worst), memory]))
    for mismatch in unhurried.mismatches if unhurried is not None else ():
        if mismatch.unwritten_elements:
            message += f"\n{_unwritten(mismatch)}"
            break
    return run.feedback.stop(FAILURES[worst.reason], message, worst.rank)


def _unwritten(mismatch: Mismatch) -> str:
    what = f"{mismatch.unwritten_elements} of {mismatch.elements} elements of `{mismatch.output}`"
    return f"rank {mismatch.rank} left {what} as they were before the call: write every element"


def _first_delayed(report: CheckReport, conditions: Sequence[CallConditions], first_trial: int) -> Mismatch:
    """The first mismatch of a call in which ranks were delayed, or if there is none, of any."""
    return min(
        report.mismatches, key=lambda mismatch: (conditions[mismatch.trial - first_trial].together, mismatch.trial)
    )


def failed_while_timed(run: CandidateRun, finished: FinishedBlock, report: CheckReport, baseline_us: float) -> Stopped:
    """The failure of a kernel that passed the check and is wrong in a timed block.

    Args:
        run: Run of the candidate.
        finished: Checked block.
        report: Report on the block's outputs.
        baseline_us: Time of one baseline call, in microseconds.
    """
    pace = run.pace(baseline_us)
    run.observer.outputs_differ(finished.plan, report)
    race = late_output(finished)
    if race is None:
        first = min(report.mismatches, key=lambda mismatch: mismatch.trial)
        if first.reason != "values":
            return _stopped_for_distinguishing(run, report, first)
        unhurried, again = _with_time(run, finished.plan, timed=True, pace=pace)
        if not unhurried.passed or again.late:
            if _distinguishes_calls(run, finished.plan, first, pace):
                return _stopped_for_distinguishing(run, report, first)
            return run.feedback.stop(FAILURES[first.reason], f"while timed: {first}", first.rank)
        race = Race(kind="unknown", rank=first.rank, evidence=str(first))
    return _raced(run, race)


def _stopped_for_distinguishing(run: CandidateRun, report: CheckReport, first: Mismatch) -> Stopped:
    run.feedback.suspect(integrity.timed_outputs(report))
    return run.feedback.stop(Failure.INTEGRITY, f"wrong while timed: {first}", first.rank)


def _distinguishes_calls(run: CandidateRun, plan: BlockPlan, first: Mismatch, pace: Pace) -> bool:
    """Whether the same inputs have come out right in one call and wrong in another.

    The timed inputs are tried as checked calls at other places, and so are the checked inputs, which were right. A
    kernel that is wrong on some inputs, such as sums at the edge of the tolerance, is so wherever and whenever. One
    that remembers results by address is wrong again where it has been before, so that several places are tried.
    """
    timed = [planned.trial for planned in reversed(plan.sets)]
    checked = run.right_trials[::-1]
    for place in range(OTHER_PLACES):
        report = _unhurried(run, run.prepare_elsewhere(_rotated(timed, place), timed=True), pace)[0]
        if first.trial not in {mismatch.trial for mismatch in report.mismatches}:
            return True
        if (
            checked
            and not _unhurried(run, run.prepare_elsewhere(_rotated(checked, place), timed=False), pace)[0].passed
        ):
            return True
    return False


def _rotated(trials: Sequence[int], by: int) -> Sequence[int]:
    """The same trials with another one first, which determines where they lie."""
    by %= len(trials)
    return [*trials[by:], *trials[:by]]


def _raced(run: CandidateRun, race: Race) -> Stopped:
    run.feedback.race = race
    return run.feedback.stop(Failure.RACE, f"{race}\n{race.evidence}", race.rank if race.owner is None else race.owner)


def _is_merely_late(
    run: CandidateRun,
    finished: FinishedBlock,
    report: CheckReport,
    conditions: Sequence[CallConditions],
    first_trial: int,
) -> bool:
    """Whether outputs of a call that all ranks had finished were written after it: no peer is the cause of that."""
    wrong = [mismatch for mismatch in report.mismatches if conditions[mismatch.trial - first_trial].together]
    if not wrong:
        return False
    written = {(first_trial + output.call, rank, output.output) for rank, output in finished.late}
    if any((mismatch.trial, mismatch.rank, mismatch.output) in written for mismatch in wrong):
        return True
    run.go_on(LATE_S)
    return run.compare(finished.done).passed


def _with_time(run: CandidateRun, plan: BlockPlan, *, timed: bool, pace: Pace) -> tuple[CheckReport, FinishedBlock]:
    """A block once more: all ranks begin and end each call together, and each wait takes longer.

    Most races then end well: what a peer should have been waited for is there all the same. Inputs and places are those
    of before, so that results that are remembered by either are wrong again.
    """
    run.prepare_again(plan, timed=timed)
    return _unhurried(run, plan, pace)


def _unhurried(run: CandidateRun, plan: BlockPlan, pace: Pace) -> tuple[CheckReport, FinishedBlock]:
    """Runs a block that has been prepared, with all ranks together and longer waits."""
    calls = len(plan.sets)
    run.reference.run(calls, run.dialect)
    unhurried = [CallConditions(together=True, held_ranks=tuple(range(run.config.world_size)))] * calls
    run.allow(calls * pace.call_us * 1e3, more_s=longest_delays_s(run.config, unhurried, pace))
    finished = run.run(plan, range(calls), conducted(run.config, unhurried, pace))
    return run.compare(finished.done), finished
