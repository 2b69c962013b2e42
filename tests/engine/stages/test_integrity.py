"""What no honest kernel does, and what a clock's coarseness alone can bring about. Bounds: `test_lower_bound`."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.check_report import CheckReport, Mismatch
from pkb_gym.engine.stages import integrity
from tests.engine.records.mismatches import mismatch


@pytest.mark.parametrize(
    ("ticks", "ticks_in_all", "ranks", "found"),
    [
        (0, 0, 1, False),
        (1, 1, 1, False),  # a tick that was running when the rank was stopped
        (2, 2, 1, True),
        (2, 2, 2, False),  # one of each rank
        (4, 8, 4, False),
        (5, 5, 4, True),
        (1, 4, 1, False),
        (1, 5, 1, True),  # little by little
        (0, 17, 4, True),
    ],
)
def test_ticks_of_a_frozen_gang(ticks, ticks_in_all, ranks, found):
    assert bool(integrity.interference(ticks, ticks_in_all, ranks)) is found


def test_the_finding_has_the_number():
    (finding,) = integrity.interference(3, 7, 1)
    assert finding.code == "interference" and "7 clock ticks" in finding.detail


def check(*mismatches: Mismatch) -> CheckReport:
    right = 2 - len(mismatches)
    return CheckReport(
        trials=1,
        outputs_compared=2,
        outputs_right=right,
        elements_compared=2,
        elements_right=right,
        mismatches=mismatches,
    )


def test_being_wrong_while_timed_is_a_finding() -> None:
    wrong = mismatch(rank=3)
    assert integrity.timed_outputs(check()) == ()
    (finding,) = integrity.timed_outputs(check(wrong))
    assert (finding.code, finding.detail) == ("wrong_while_timed", f"right when checked, wrong while timed: {wrong}")


@pytest.mark.parametrize(("answer_us", "found"), [(30.0, 0), (500.0, 0), (501.0, 1), (2000.0, 1)])
def test_a_gpu_that_answers_late_is_busy(answer_us: float, found: int) -> None:
    findings = integrity.busy_gpu(answer_us)
    assert len(findings) == found
    assert all(finding.code == "interference" and f"{answer_us:.0f} us" in finding.detail for finding in findings)
