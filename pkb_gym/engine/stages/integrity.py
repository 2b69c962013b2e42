"""What no honest kernel does, told from the evidence that lies outside the candidate's gang."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.records.feedback import CheckReport, Finding, Mismatch, Timing
from pkb_gym.engine.records.roofline import Roofline

MEASURED_SLACK = 2.0
"""A CPU's peaks are measured, perhaps while it was busy: only a time below the bound by this factor is proof."""

FROZEN_TICKS_IN_BLOCK, FROZEN_TICKS = 1, 4
"""Clock ticks that a frozen rank may seem to have used, in one block and in all: ticks that were running when it was
stopped."""

BUSY_GPU_US = 500.0
"""An idle GPU answers in some tens of microseconds; one that is shared gives each process slices of milliseconds."""


def timed_outputs(report: CheckReport) -> Sequence[Finding]:
    """A candidate that was right in the check and wrong while it was timed told the two apart, or has a race."""
    if report.passed:
        return ()
    detail = (
        f"right when checked, wrong while timed: {report.mismatches[0]}" if report.mismatches else "wrong while timed"
    )
    return (Finding(code="wrong_while_timed", detail=detail),)


def beats_roofline(roofline: Roofline, timing: Timing) -> Sequence[Finding]:
    """A candidate that is faster than the hardware allows has not done the work."""
    slack = MEASURED_SLACK if roofline.peaks_source.startswith("measured") else 1.0
    if timing.candidate_us * slack >= roofline.bound_us:
        return ()
    detail = f"{timing.candidate_us:.3g} us a call; the hardware needs at least {roofline.bound_us:.3g} us"
    return (Finding(code="beats_roofline", detail=f"{detail} ({roofline.binds})"),)


def interference(ticks: int, ticks_in_all: int, ranks: int) -> Sequence[Finding]:
    """A candidate that used the processor while the baseline was timed.

    Args:
        ticks: clock ticks that its processes used during this block of the baseline, though they were frozen.
        ticks_in_all: during all blocks so far.
        ranks: how many processes that are.
    """
    if ticks <= FROZEN_TICKS_IN_BLOCK * ranks and ticks_in_all <= FROZEN_TICKS * ranks:
        return ()
    detail = f"{max(ticks, ticks_in_all)} clock ticks were used beside the baseline"
    return (Finding(code="interference", detail=detail),)


def busy_gpu(answer_us: float) -> Sequence[Finding]:
    """A candidate whose kernels run on while it is frozen, beside the baseline or before its inputs are there.

    Args:
        answer_us: what a GPU took to run a kernel of a microsecond.
    """
    if answer_us <= BUSY_GPU_US:
        return ()
    detail = f"a GPU took {answer_us:.0f} us to answer while the candidate had nothing to run"
    return (Finding(code="interference", detail=detail),)


def late_output(mismatch: Mismatch) -> Sequence[Finding]:
    """Outputs that were wrong when the last rank said it was done, and right a moment later."""
    detail = f"rank {mismatch.rank}, {mismatch.output}: the output was not there when the call ended; it came later"
    return (Finding(code="late_output", detail=detail),)


def tampering(what: str) -> Sequence[Finding]:
    """A rank that broke the protocol between it and the evaluator, which its program cannot do by itself."""
    return (Finding(code="harness_tampering", detail=what),)
