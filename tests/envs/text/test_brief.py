"""Feedback in a few lines."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.feedback import CompileReport
from pkb_gym.envs.text.brief import MAX_FEEDBACK_CHARS, brief_feedback
from pkb_gym.rewards.examples import LAST_STAGE, failed, timed


@pytest.mark.parametrize("failure", sorted(LAST_STAGE))
def test_every_failure_is_named_in_few_characters(failure):
    text = brief_feedback(failed(failure, message="why\n" + 500 * "x"), 0.25)
    assert failure in text and text.endswith("value 0.25") and len(text) <= MAX_FEEDBACK_CHARS


def test_the_first_error_of_the_compiler_is_reported():
    log = (
        "kernel.cpp: In function 'solution':\nkernel.cpp:7:3: error: 'x' was not declared\nkernel.cpp:9:1: error: more"
    )
    report = CompileReport(duration_s=1, cached=False, log=log, binary_bytes=None)
    feedback = failed("compile_error").model_copy(update={"compile": report})
    assert brief_feedback(feedback, 0.05).splitlines()[1] == "kernel.cpp:7:3: error: 'x' was not declared"


def test_the_first_wrong_output_is_reported():
    assert "elements wrong" in brief_feedback(failed("output_mismatch", earned_share=0.5), 0.4)


def test_times_and_speedup_are_reported():
    assert brief_feedback(timed(baseline_us=100, speedup=2.0, speedup_low=1.5), 1.2).startswith(
        "passed: 50 us, baseline 100 us, speedup 2.00 (1.50 to "
    )


def test_what_is_not_paid_has_no_value():
    assert "value" not in brief_feedback(failed("infrastructure"), None)
