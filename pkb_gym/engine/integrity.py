"""What no honest kernel does, told from the evidence that lies outside the candidate's gang."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.feedback import CheckReport, Finding, Timing
from pkb_gym.engine.roofline import Roofline

DRIFT = 1.5
"""The baseline beside the candidate may take this many times what it took before the candidate was loaded."""


def timed_outputs(report: CheckReport) -> Sequence[Finding]:
    """A candidate that was right in the check and wrong while it was timed told the two apart, or has a race."""
    if report.passed:
        return ()
    detail = f"right when checked, wrong while timed: {report.mismatches[0]}" if report.mismatches else "wrong while timed"
    return (Finding(code="wrong_while_timed", detail=detail),)


def beats_roofline(roofline: Roofline, timing: Timing) -> Sequence[Finding]:
    """A candidate that is faster than the hardware allows has not done the work."""
    if not roofline.candidate_beats_bound:
        return ()
    detail = f"{timing.candidate_us:.3g} us a call; the hardware needs at least {roofline.bound_us:.3g} us"
    return (Finding(code="beats_roofline", detail=f"{detail} ({roofline.binds})"),)


def interference(timing: Timing) -> Sequence[Finding]:
    """A baseline that became slower once the candidate was there: something of it runs on beside the baseline."""
    alone = timing.baseline_alone_us
    if alone is None or timing.baseline_us <= DRIFT * alone:
        return ()
    detail = f"the baseline took {alone:.4g} us a call before the candidate was loaded, {timing.baseline_us:.4g} us since"
    return (Finding(code="interference", detail=detail),)
