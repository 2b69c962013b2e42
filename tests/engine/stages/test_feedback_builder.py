"""The record of an evaluation, built of what its stages found."""

from __future__ import annotations

from typing import Literal

import pytest

from pkb_gym.engine.records.check_report import CheckReport, Race
from pkb_gym.engine.records.feedback import Failure, Feedback, Finding, Stage
from pkb_gym.engine.records.race_check import JudgedRaces, RaceCheckReport
from pkb_gym.engine.stages.feedback_builder import MAX_MESSAGE_CHARS, Stopped
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.examples import timed
from tests.engine.stages.fake_gangs import KERNEL, PROBLEM, builder

RIGHT = CheckReport(trials=1, outputs_compared=2, outputs_right=2, elements_compared=8, elements_right=8, mismatches=())


def report(verdict: Literal["no_race", "race", "not_judged"]) -> RaceCheckReport:
    return RaceCheckReport(verdict=verdict, size="tiny", duration_s=1.5)


def test_a_stage_counts_once_its_block_has_ended() -> None:
    feedback, reported = builder(), []
    with feedback.stage(Stage.STATIC, reported.append):
        assert feedback.build().stage is None
    with pytest.raises(Stopped), feedback.stage(Stage.COMPILE, reported.append):
        raise feedback.stop(Failure.COMPILE_ERROR, "it does not compile", 1)
    found = feedback.build()
    assert reported == ["static", "compile"]
    assert (found.stage, found.failure, found.message, found.failed_rank) == (
        Stage.STATIC,
        Failure.COMPILE_ERROR,
        "it does not compile",
        1,
    )
    assert set(found.durations_s) == {"static", "compile", "other"} and min(found.durations_s.values()) >= 0


def test_the_record_identifies_problem_and_source() -> None:
    found = builder(seed=7).build()
    assert (found.problem, found.config.seed, len(found.problem_sha256)) == (PROBLEM.name, 7, 64)
    assert found.source_sha256 == builder().build().source_sha256 != builder(source=KERNEL + "\n").build().source_sha256
    assert not found.passed and found.failure is None


def test_times_stand_in_the_record_once_the_stage_is_complete() -> None:
    """A candidate that fell while it was timed has none."""
    feedback = builder()
    feedback.check, feedback.timing, feedback.roofline = RIGHT, timed().timing, timed().roofline
    feedback.complete(Stage.CHECK)
    found = feedback.build()
    assert (found.timing, found.roofline) == (None, None)
    feedback.complete(Stage.TIME)
    found = feedback.build()
    assert found.timing is not None and found.roofline is not None


def test_a_race_beside_the_stages_takes_back_what_they_measured() -> None:
    """A wrong kernel must have neither time nor stage of a right one, from which rewards follow."""
    feedback = builder()
    feedback.check, feedback.timing, feedback.roofline = RIGHT, timed().timing, timed().roofline
    feedback.complete(Stage.PROFILE)
    race = Race(kind="unordered", rank=1, owner=0, tensor="out", evidence="kernel.cu:12")
    judged = JudgedRaces(report=report("race"), race=race, message="race on 2 bytes", failed_rank=1)
    feedback.add_race_check(judged)
    found = feedback.build()
    assert (found.stage, found.failure, found.failed_rank) == (Stage.RUN, Failure.RACE, 1)
    assert (found.timing, found.roofline, found.profile) == (None, None, None)
    assert found.race == race and found.race_check == report("race") and found.message == "race on 2 bytes"
    reward = LadderThenPerformance()
    assert not found.is_correct and reward(found) < reward(timed(speedup_low=0.5))


@pytest.mark.parametrize("verdict", ["no_race", "not_judged"])
def test_any_other_verdict_beside_the_stages_changes_nothing(verdict: Literal["no_race", "not_judged"]) -> None:
    feedback = builder()
    feedback.check = RIGHT
    feedback.complete(Stage.CHECK)
    feedback.add_race_check(JudgedRaces(report=report(verdict)))
    found = feedback.build()
    assert found.stage is Stage.CHECK and found.passed and found.race_check == report(verdict)


def test_any_finding_fails_the_evaluation() -> None:
    feedback = builder()
    feedback.suspect(())
    assert not feedback.failed
    feedback.suspect((Finding(code="interference", detail="7 clock ticks"),))
    feedback.suspect((Finding(code="beats_roofline", detail="too fast"),))
    found = feedback.build()
    assert (found.failure, found.message) == (Failure.INTEGRITY, "beats_roofline: too fast")
    assert [finding.code for finding in found.integrity] == ["interference", "beats_roofline"]


def test_what_a_candidate_wrote_stands_escaped_in_the_record() -> None:
    """Escape sequences reached the user's terminal; lone surrogates, which no encoding can carry, a service's reply."""
    text = "\x1b]52;c;c2VjcmV0\x07\x1b[2J\x9b31m \u202e h\u00e9 \ud800\r"
    escaped = "\\x1b]52;c;c2VjcmV0\\x07\\x1b[2J\\x9b31m \\u202e h\u00e9 \\ud800\\r"
    feedback = builder()
    feedback.output = text
    feedback.fail(Failure.RUNTIME_ERROR, f"rank 0: {text}")
    found = feedback.build()
    assert (found.message, found.output) == (f"rank 0: {escaped}", escaped)
    feedback.suspect((Finding(code="harness_tampering", detail=text),))
    assert feedback.build().integrity[0].detail == escaped
    feedback.fail(Failure.RUNTIME_ERROR, text * 10_000)
    found = feedback.build()
    assert len(found.message) < 5 * MAX_MESSAGE_CHARS
    assert Feedback.model_validate_json(found.model_dump_json()) == found
