"""What a wrong output is: a wrong kernel, a race, or work that checked calls get and timed ones do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pkb_gym.engine.problem.inputs import checked_calls
from pkb_gym.engine.records.check_report import Mismatch, Race
from pkb_gym.engine.records.feedback import Failure, Feedback, Stage
from pkb_gym.engine.reference.orders import BlockEnded, ConductCalls, LateOutput
from pkb_gym.engine.stages.block_staging import Pace, check_conditions, conducted, plain
from pkb_gym.engine.stages.check import MAX_INTERRUPTED, MAX_PREEMPTED, check
from pkb_gym.engine.stages.feedback_builder import Stopped
from pkb_gym.engine.stages.mismatch import FAILURES, LATE_S, OTHER_PLACES, failed_check, failed_while_timed
from tests.engine.records.mismatches import mismatch
from tests.engine.stages.fake_gangs import WORLD_SIZE, Bench

CONDITIONS = check_conditions(WORLD_SIZE, 4, "native")
TOGETHER, LATE_0 = 0, 1
"""Calls: all ranks together; rank 0 late."""


def checked(bench: Bench, *comparisons: Sequence[Mismatch], late: Sequence[LateOutput] = ()) -> Feedback:
    """What becomes of a candidate whose comparisons find these, one after the other, and nothing in later ones."""
    bench.reference.mismatches = [list(found) for found in comparisons]
    if late:
        bench.reference.ended = [[BlockEnded(True, tuple(late), ()), BlockEnded(True, (), ())]]
    with bench.run() as run:
        plan = run.prepare(4, timed=False)
        finished = run.run(plan, range(4), conducted(run.config, CONDITIONS, Pace(100.0)))
        report = run.compare(finished.done)
        run.feedback.complete(Stage.RUN)
        run.feedback.check = report
        with pytest.raises(Stopped):
            raise failed_check(run, finished, report, CONDITIONS, Pace(100.0))
    return bench.feedback.build()


@pytest.mark.parametrize("reason", FAILURES)
def test_each_kind_of_mismatch_is_a_failure_of_its_own(reason: str) -> None:
    wrong = mismatch(rank=1, trial=LATE_0, reason=reason, got="0", expected="1")
    found = checked(Bench(), [wrong], [wrong])
    assert (found.failure, found.failed_rank) == (FAILURES[reason], 1)
    assert (found.stage, found.integrity, found.race) == (Stage.RUN, (), None)
    assert found.message == str(wrong)


def test_every_reason_has_a_failure() -> None:
    reasons = Mismatch.model_fields["reason"].annotation.__args__  # type: ignore[union-attr]
    assert set(FAILURES) == set(reasons)
    assert len(set(FAILURES.values())) == len(FAILURES)


def test_an_output_that_comes_after_a_call_that_all_had_finished_is_an_integrity_failure() -> None:
    """The ranks reported their end, and worked on: no peer is the cause."""
    bench = Bench()
    wrong = mismatch(rank=1, trial=TOGETHER)
    found = checked(bench, [wrong])
    assert bench.logged("candidate", "run on", "compare")[1:] == ["compare 4", f"run on {LATE_S:g} s", "compare 4"]
    assert (found.failure, found.failed_rank, found.race) == (Failure.INTEGRITY, 1, None)
    (finding,) = found.integrity
    assert finding.code == "late_output" and "rank 1, out" in finding.detail
    assert found.message == f"{finding.detail}\n{wrong}"
    assert found.check is not None and not found.check.passed, "the first comparison counts"


def test_the_sample_taken_at_departure_shows_it_too() -> None:
    """Without waiting: it had come by the end of the block."""
    bench = Bench()
    found = checked(bench, [mismatch(rank=0, trial=TOGETHER)], late=[LateOutput(TOGETHER, "out")])
    assert (found.failure, [finding.code for finding in found.integrity]) == (Failure.INTEGRITY, ["late_output"])
    assert bench.logged("run on") == []


def test_an_output_that_stays_wrong_is_a_mismatch() -> None:
    bench = Bench()
    wrong = [mismatch(trial=TOGETHER)]
    assert checked(bench, wrong, wrong, wrong).failure is Failure.OUTPUT_MISMATCH
    assert bench.logged("run on") == [f"run on {LATE_S:g} s"]


def test_an_output_that_is_right_when_nobody_hurries_is_a_race() -> None:
    bench = Bench()
    found = checked(bench, [mismatch(rank=1, trial=LATE_0)])
    assert found.failure is Failure.RACE and found.race is not None
    assert found.message.splitlines() == [str(found.race), found.race.evidence]
    again = bench.logged("make")[1:]
    assert again[0] == "make 4 checked" and bench.reference.trials[1] == (0, 1, 2, 3), "on the same inputs"
    unhurried = bench.reference.staged[1][0]
    assert isinstance(unhurried, ConductCalls) and [call.together for call in unhurried.calls] == [True] * 4
    assert all(hold_ns > 0 for of_rank in bench.candidate.settings[1].holds_ns for hold_ns in of_rank)


def test_an_output_that_is_wrong_all_the_same_is_none() -> None:
    wrong = mismatch(rank=1, trial=LATE_0)
    found = checked(Bench(), [wrong], [wrong])
    assert (found.failure, found.race, found.message) == (Failure.OUTPUT_MISMATCH, None, str(wrong))


@pytest.mark.parametrize("reason", ["shape_or_dtype", "input_modified"])
def test_nobody_waits_for_a_shape_or_an_input_to_become_right(reason: str) -> None:
    bench = Bench()
    found = checked(bench, [mismatch(reason=reason, got="0", expected="1")])
    assert found.failure is FAILURES[reason]
    assert bench.logged("run on") == [] and len(bench.logged("candidate")) == 1


def timed(bench: Bench, *comparisons: Sequence[Mismatch], late: Sequence[LateOutput] = ()) -> Feedback:
    """A finished timed block and its report."""
    bench.reference.mismatches = [list(found) for found in comparisons]
    if late:
        bench.reference.ended = [[BlockEnded(True, tuple(late), ()), BlockEnded(True, (), ())]]
    with bench.run() as run:
        plan = run.prepare(3, timed=True)
        finished = run.run(plan, range(3), plain(WORLD_SIZE))
        report = run.compare(finished.done)
        with pytest.raises(Stopped):
            raise failed_while_timed(run, finished, report, 100.0)
    return bench.feedback.build()


def test_an_output_that_is_wrong_while_timed_and_stays_wrong_is_an_integrity_failure() -> None:
    wrong = mismatch(rank=0, trial=2)
    bench = Bench()
    found = timed(bench, [wrong], [wrong])
    assert (found.failure, found.race, found.message) == (Failure.INTEGRITY, None, f"wrong while timed: {wrong}")
    (finding,) = found.integrity
    assert finding.code == "wrong_while_timed" and str(wrong) in finding.detail
    repeated = [(0, 1, 2), (0, 1, 2), (2, 1, 0)]
    assert bench.reference.trials == repeated, "on the same inputs, at their places and at others, where it was right"


def test_an_output_that_is_wrong_on_the_same_inputs_always_is_a_mismatch_though_it_was_timed() -> None:
    """A sum at the edge of the tolerance was called cheating because it came up while timed, in trial 214."""
    wrong = mismatch(rank=0, trial=2)
    bench = Bench()
    found = timed(bench, [wrong], [wrong], *[[wrong]] * OTHER_PLACES)
    assert (found.failure, found.failed_rank, found.integrity) == (Failure.OUTPUT_MISMATCH, 0, ())
    assert found.message == f"while timed: {wrong}" and "trial 2" in found.message
    assert found.check is None


def test_inputs_are_tried_at_several_places() -> None:
    """Results remembered by address were wrong at the first other place too, where the kernel had been before."""
    wrong = mismatch(rank=0, trial=2)
    bench = Bench()
    assert timed(bench, [wrong], [wrong], [wrong]).failure is Failure.INTEGRITY
    assert bench.reference.trials[-2:] == [(2, 1, 0), (1, 0, 2)], "the first trial says where all lie"


@pytest.mark.parametrize("still_right", [True, False])
def test_inputs_that_were_right_when_checked_are_tried_again(still_right: bool) -> None:
    """One that stops computing after some calls is wrong on all inputs, also on those that it has had right."""
    wrong = mismatch(rank=0, trial=checked_calls(WORLD_SIZE) + MAX_INTERRUPTED + MAX_PREEMPTED)
    bench = Bench()
    elsewhere = [[wrong], []] * OTHER_PLACES if still_right else [[wrong], [mismatch(trial=1)]]
    bench.reference.mismatches = [[], [], [], [], [wrong], [wrong], *elsewhere]
    with bench.run() as run:
        check(run)
        run.feedback.complete(Stage.CHECK)
        plan = run.prepare(3, timed=True)
        finished = run.run(plan, range(3), plain(WORLD_SIZE))
        report = run.compare(finished.done)
        with pytest.raises(Stopped):
            raise failed_while_timed(run, finished, report, 100.0)
    found = bench.feedback.build()
    assert bench.reference.trials[7] == (8, 5), (
        "as they were, but elsewhere: of the last block, those all of whose values were new"
    )
    assert found.failure is (Failure.OUTPUT_MISMATCH if still_right else Failure.INTEGRITY)
    assert [finding.code for finding in found.integrity] == ([] if still_right else ["wrong_while_timed"])
    assert found.stage is Stage.CHECK and found.check is not None and found.check.passed, "as it was"


def test_a_modified_input_of_a_timed_call_is_not_tried_again() -> None:
    bench = Bench()
    found = timed(bench, [mismatch(trial=2, reason="input_modified", got="0", expected="1")])
    assert found.failure is Failure.INTEGRITY and len(bench.logged("candidate")) == 1


def test_an_output_that_is_wrong_while_timed_alone_is_a_race() -> None:
    wrong = mismatch(rank=1, trial=2)
    found = timed(Bench(), [wrong])
    assert (found.failure, found.failed_rank, found.integrity) == (Failure.RACE, 1, ())
    assert found.race == Race(kind="unknown", rank=1, evidence=str(wrong))


def test_an_output_that_comes_after_its_timed_call_is_a_race() -> None:
    found = timed(Bench(), late=[LateOutput(1, "out")])
    assert found.failure is Failure.RACE and found.race is not None
    assert (found.race.kind, found.race.owner, found.race.tensor) == ("late_output", 0, "out")
    assert "call 1" in found.race.evidence


def returned(bench: Bench, *comparisons: Sequence[Mismatch]) -> Feedback:
    """What becomes of a candidate that is right in the first block of the check, and whose second is compared thus."""
    bench.reference.mismatches = [[], *(list(found) for found in comparisons)]
    with bench.run() as run, pytest.raises(Stopped):
        check(run)
    return bench.feedback.build()


PLACES, BOTH, VALUES = 5, 6, 7
"""Trials of the second block: its calls have addresses of earlier ones, most values too, or values of others."""


@pytest.mark.parametrize(
    ("trial", "words"), [(PLACES, "other values"), (BOTH, "most values of trial"), (VALUES, "most values of trial")]
)
def test_a_result_of_an_earlier_call_is_a_mismatch_that_says_so(trial: int, words: str) -> None:
    wrong = mismatch(rank=1, trial=trial)
    found = returned(Bench(), [wrong], [wrong])
    assert (found.failure, found.race, found.integrity) == (Failure.OUTPUT_MISMATCH, None, ())
    first, memory = found.message.splitlines()
    assert first == str(wrong) and memory.startswith(f"trial {trial} has {words}") and "seem to be remembered" in memory
    assert found.check is not None and found.check.trials == checked_calls(WORLD_SIZE) and not found.check.passed


def test_new_values_that_are_wrong_at_new_addresses_too_are_not_remembered() -> None:
    bench, wrong = Bench(), mismatch(rank=1, trial=PLACES)
    found = returned(bench, [wrong], [wrong], [wrong])
    assert (found.failure, found.message) == (Failure.OUTPUT_MISMATCH, str(wrong))
    alone = bench.reference.plans[-1]
    assert [planned.trial for planned in alone.sets] == [PLACES]
    assert all(alone.sets[0].offset >= plan.end for plan in bench.reference.plans[:-1])


def test_a_result_of_the_call_just_before_is_remembered_though_it_is_right_the_next_time() -> None:
    bench, wrong = Bench(), mismatch(rank=1, trial=PLACES)
    found = returned(bench, [wrong], [], [], [wrong])
    assert found.failure is Failure.OUTPUT_MISMATCH and "seem to be remembered" in found.message
    before, after = bench.reference.plans[-2:]
    assert before.sets[0].offset == after.sets[0].offset and after.sets[0].trial == PLACES


@pytest.mark.parametrize("trial", [PLACES, BOTH])
def test_a_call_that_returns_and_is_right_unhurried_may_have_a_race(trial: int) -> None:
    found = returned(Bench(), [mismatch(rank=1, trial=trial)])
    assert found.failure is Failure.RACE and "remembered" not in found.message
