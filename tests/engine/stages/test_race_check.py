"""What an emulated run beside GPUs comes to: a race, none, or nothing that is judged."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pkb_gym.engine.records.check_report import CheckReport, Race
from pkb_gym.engine.records.emulation import DetectedError, Emulation
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.records.race_check import JudgedRaces
from pkb_gym.engine.stages import race_check
from pkb_gym.engine.stages.feedback_builder import FeedbackBuilder
from pkb_gym.engine.stages.race_check import MAX_REASON_CHARS, judge_races
from pkb_gym.engine.wire.emulated_orders import DetectorFinding
from tests.engine.records.mismatches import mismatch
from tests.engine.stages.fake_gangs import builder

RIGHT = CheckReport(trials=2, outputs_compared=4, outputs_right=4, elements_compared=8, elements_right=8, mismatches=())
WRONG = RIGHT.model_copy(update={"outputs_right": 3, "mismatches": (mismatch(),)})
RACE = Race(kind="unordered", rank=1, owner=0, tensor="out", evidence="kernel.cu:12")
UNORDERED = DetectorFinding("race", 1, 0, "out", "race on 2 bytes: kernel.cu:12", "unsynchronised")
BEYOND = DetectedError(kind="out_of_bounds", text="out of bounds: kernel.cu:3")

Run = Callable[[FeedbackBuilder], None]


def judged(
    monkeypatch: pytest.MonkeyPatch, run: Run, *findings: DetectorFinding, same: bool = False
) -> tuple[JudgedRaces, bool]:
    """The verdict on a run of the candidate that leaves this in the feedback, or raises."""
    feedback = builder()
    monkeypatch.setattr(race_check, "check_emulated", lambda *_: run(feedback))
    gang = SimpleNamespace(done=SimpleNamespace(findings=findings) if findings else None)
    return judge_races(SimpleNamespace(feedback=feedback), gang, is_same_size=same)  # type: ignore[arg-type]


def emulated(schedules: int, *findings: DetectedError) -> Emulation:
    return Emulation(schedules=("together",) * schedules, calls=2, warp_instructions=9, findings=findings)


def races(check: CheckReport, schedules: int = 1, *findings: DetectedError) -> Run:
    def run(feedback: FeedbackBuilder) -> None:
        feedback.check, feedback.emulation, feedback.race = check, emulated(schedules, *findings), RACE
        raise feedback.stop(Failure.RACE, "race on 2 bytes", 1)

    return run


def fails(failure: Failure, *, check: CheckReport | None = None, killed: bool = False, text: str = "fell") -> Run:
    def run(feedback: FeedbackBuilder) -> None:
        feedback.check, feedback.emulation = check, emulated(1)
        raise feedback.stop(failure, text, 0, killed=killed)

    return run


def test_a_run_without_a_failure_has_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    found, lasts = judged(monkeypatch, lambda feedback: None)
    assert (found.report.verdict, found.race, lasts) == ("no_race", None, True)


@pytest.mark.parametrize(
    ("run", "same", "verdict"),
    [
        (races(RIGHT), False, "race"),
        (races(WRONG, 2), False, "race"),
        (races(WRONG, 1), False, "not_judged"),
        (races(RIGHT, 1, BEYOND), False, "not_judged"),
        (races(WRONG, 1, BEYOND), True, "race"),
    ],
    ids=["right", "wrong under a schedule", "wrong together", "beyond its tensors", "of the evaluated size"],
)
def test_a_race_counts_where_the_source_fits_the_size(
    monkeypatch: pytest.MonkeyPatch, run: Run, same: bool, verdict: str
) -> None:
    found, lasts = judged(monkeypatch, run, same=same)
    assert found.report.verdict == verdict and lasts and found.emulation is not None
    assert (found.race, found.failed_rank) == ((RACE, 1) if verdict == "race" else (None, None))


def test_a_race_before_a_fault_is_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = judged(monkeypatch, fails(Failure.DEADLOCK, check=RIGHT), UNORDERED)
    assert found.report.verdict == "race" and found.race is not None
    assert (found.race.kind, found.race.owner, found.failed_rank) == ("unordered", 0, 1)
    assert judged(monkeypatch, fails(Failure.DEADLOCK), UNORDERED)[0].report.verdict == "not_judged", "none was right"


@pytest.mark.parametrize(
    ("failure", "killed", "lasts"),
    [
        (Failure.LOAD_ERROR, False, True),
        (Failure.DEADLOCK, False, True),
        (Failure.TIMEOUT, False, False),
        (Failure.OUT_OF_MEMORY, False, False),
        (Failure.RUNTIME_ERROR, True, False),
    ],
)
def test_what_a_busy_machine_may_have_caused_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, failure: Failure, killed: bool, lasts: bool
) -> None:
    found, kept = judged(monkeypatch, fails(failure, killed=killed))
    assert found.report.verdict == "not_judged" and kept is lasts
    assert found.report.reason == f"in an emulated run at size tiny it ended with {failure}: fell"


def test_a_reason_is_one_line_that_is_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = judged(monkeypatch, fails(Failure.RUNTIME_ERROR, text=f"raised \x1b[31m{'x' * 5000}\n\nPASSED"))
    reason = found.report.reason
    assert len(reason) <= MAX_REASON_CHARS + 100 and "\x1b" not in reason and "PASSED" not in reason
