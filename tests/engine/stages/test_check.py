"""Stage check: the candidate's outputs on fresh inputs, and which failure a wrong one is."""

from __future__ import annotations

import pytest

from pkb_gym.engine.ranks.failure_attribution import GangFailed
from pkb_gym.engine.records.feedback import Failure, Mismatch, Stage
from pkb_gym.engine.stages.check import FAILURES, LATE_S, check
from pkb_gym.engine.stages.feedback_builder import Stopped
from tests.engine.records.mismatches import mismatch
from tests.engine.stages.fake_gangs import Bench

WRONG = mismatch(rank=1, trial=2)


def test_a_right_candidate_is_checked_on_every_trial() -> None:
    bench = Bench(trials=3)
    with bench.run() as run:
        assert check(run) == 50.0
    assert bench.log[2:-3] == [
        "make 3 checked",
        "baseline 3 native",
        "load in 10 s",
        "thaw",
        "bind 3",
        "stage",
        "candidate 3 in 10 s",
        "compare 3",
    ]
    report = bench.feedback.check
    assert report is not None and report.passed and report.trials == 3


def test_the_deadline_follows_the_baseline() -> None:
    bench = Bench(trials=2, timeout_s=1.0)
    bench.reference.call_us = 1e6
    with bench.run() as run:
        check(run)
    assert bench.asked("load", "candidate") == ["load in 60 s", "candidate 2 in 60 s"]


@pytest.mark.parametrize("reason", FAILURES)
def test_each_kind_of_mismatch_is_a_failure_of_its_own(reason: str) -> None:
    wrong = mismatch(rank=1, reason=reason, got="0", expected="1")
    other = mismatch(rank=0, wrong_elements=1)
    bench = Bench()
    bench.reference.mismatches = [[wrong, other]] * 2
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    first = wrong if reason != "input_modified" else other  # wrong outputs come first in a report
    assert (found.failure, found.failed_rank) == (FAILURES[first.reason], first.rank)
    assert (found.stage, found.integrity) == (Stage.RUN, ())
    assert found.check is not None and set(found.check.mismatches) == {wrong, other}
    assert found.message.splitlines()[0] == str(first) and len(found.message.splitlines()) == 2


def test_every_reason_has_a_failure() -> None:
    reasons = Mismatch.model_fields["reason"].annotation.__args__  # type: ignore[union-attr]
    assert set(FAILURES) == set(reasons)
    assert len(set(FAILURES.values())) == len(FAILURES)


def test_an_output_that_comes_late_is_an_integrity_failure() -> None:
    """The ranks said that they were done, and worked on."""
    bench = Bench()
    bench.reference.mismatches = [[WRONG]]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    assert bench.asked("candidate", "run on", "compare")[1:] == ["compare 4", f"run on {LATE_S:g} s", "compare 4"]
    found = bench.feedback.build()
    assert (found.failure, found.failed_rank) == (Failure.INTEGRITY, 1)
    (finding,) = found.integrity
    assert finding.code == "late_output" and "rank 1, out" in finding.detail
    assert found.message == f"{finding.detail}\n{WRONG}"
    assert found.check is not None and not found.check.passed, "the first comparison counts"


def test_an_output_that_stays_wrong_is_a_mismatch() -> None:
    bench = Bench()
    bench.reference.mismatches = [[WRONG], [WRONG]]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    assert bench.feedback.build().failure is Failure.OUTPUT_MISMATCH
    assert bench.asked("run on") == [f"run on {LATE_S:g} s"]


@pytest.mark.parametrize("reason", ["shape_or_dtype", "input_modified"])
def test_nobody_waits_for_a_shape_or_an_input_to_become_right(reason: str) -> None:
    bench = Bench()
    bench.reference.mismatches = [[mismatch(reason=reason, got="0", expected="1")]]
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    assert bench.asked("run on") == []
    assert bench.feedback.build().failure is FAILURES[reason]


def test_a_candidate_that_does_not_load_has_run_nothing() -> None:
    bench = Bench()
    bench.candidate.fails["load"] = GangFailed(Failure.LOAD_ERROR, 0, "rank 0: no solution")
    with pytest.raises(Stopped), bench.run() as run:
        check(run)
    found = bench.feedback.build()
    assert (found.failure, found.stage, found.check) == (Failure.LOAD_ERROR, None, None)
