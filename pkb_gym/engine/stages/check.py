"""Stages run and check: the candidate is loaded, called on fresh inputs, and every output is compared."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.rankside.orders import BlockDone
from pkb_gym.engine.records.feedback import CheckReport, Failure, Mismatch, Stage
from pkb_gym.engine.stages import integrity
from pkb_gym.engine.stages.candidate_run import CandidateRun
from pkb_gym.engine.stages.feedback_builder import Stopped

LATE_S = 0.2
"""How long a gang with wrong outputs may go on, to see whether it was merely late."""

FAILURES: dict[str, Failure] = {
    "shape_or_dtype": Failure.WRONG_SHAPE_OR_DTYPE,
    "values": Failure.OUTPUT_MISMATCH,
    "input_modified": Failure.INPUT_MODIFIED,
}
"""Reason of a mismatch -> failure."""


def check(run: CandidateRun) -> float:
    """Loads the candidate and compares its outputs on fresh inputs.

    Returns:
        Microseconds a call of the candidate, roughly.

    Raises:
        Stopped: it fell, or an output is wrong.
        InfrastructureError: this machine failed.
    """
    plan = run.prepare(run.config.trials, timed=False)
    trials = len(plan.sets)
    run.allow(run.reference.run(trials, run.dialect))
    run.load()
    candidate_ns, done = run.run(plan, range(trials))
    run.feedback.complete(Stage.RUN)
    report = run.compare(done)
    run.feedback.check = report
    if not report.passed:
        raise _mismatched(run, report.mismatches, done)
    return candidate_ns / trials / 1e3


def _mismatched(run: CandidateRun, mismatches: Sequence[Mismatch], done: Sequence[BlockDone]) -> Stopped:
    first = mismatches[0]
    text = "\n".join(map(str, mismatches))
    if first.reason == "values" and _becomes_right(run, done).passed:
        late = integrity.late_output(first)
        run.feedback.suspect(late)
        return run.feedback.stop(Failure.INTEGRITY, f"{late[0].detail}\n{text}", first.rank)
    return run.feedback.stop(FAILURES[first.reason], text, first.rank)


def _becomes_right(run: CandidateRun, done: Sequence[BlockDone]) -> CheckReport:
    """The outputs once the gang has gone on for a while: work that was put off past the clock may be there now."""
    run.go_on(LATE_S)
    return run.compare(done)
