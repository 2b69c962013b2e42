"""Integrity findings: what no honest kernel does, by evidence from outside the candidate's gang."""

from __future__ import annotations

from collections.abc import Sequence

from pkb_gym.engine.records.check_report import CheckReport, Mismatch
from pkb_gym.engine.records.feedback import Finding
from pkb_gym.engine.records.roofline import LowerBound
from pkb_gym.engine.records.timing import Timing
from pkb_gym.engine.reference.block_conditioner import BUSY_FOR_S, BUSY_GPU_US
from pkb_gym.engine.reference.orders import LateOutput

MEASURED_SLACK = 2.0
"""A CPU's limits are measured, perhaps while it was busy: only a time below the bound by this factor is proof."""

CLOCK_ERROR_US = 1.0
"""The most that a call's time may exceed `elapsed_us`: a block begins and ends with messages between processes,
whose times scatter by less than a microsecond. The device's clock needs no margin, since limits are those of the
highest (`hardware.limits`: 1980 MHz of an H200, 8 % above its datasheet's 1830)."""

FROZEN_TICKS_IN_BLOCK, FROZEN_TICKS = 1, 4
"""Clock ticks that a frozen rank may seem to have used, in one block and in all: ticks that were running when it was
stopped."""


FROZEN_SEGMENTS = 16
"""Segments of a frozen rank that the kernel may go on to send. What honest ranks send has been received when their
calls have ended, so that none is left."""


def timed_outputs(report: CheckReport) -> Sequence[Finding]:
    """A candidate that was right in the check and wrong while it was timed recognises timed calls, or has a race."""
    if report.passed:
        return ()
    detail = (
        f"right when checked, wrong while timed: {report.mismatches[0]}" if report.mismatches else "wrong while timed"
    )
    return (Finding(code="wrong_while_timed", detail=detail),)


def beats_roofline(bound: LowerBound, timing: Timing) -> Sequence[Finding]:
    """A candidate that is faster than any legal kernel can be has not done the work."""
    slack = MEASURED_SLACK if bound.limits_source.startswith("measured") else 1.0
    elapsed = elapsed_us(timing)
    if (elapsed + CLOCK_ERROR_US) * slack >= bound.time_us:
        return ()
    detail = f"{elapsed:.3g} us a call; no kernel takes less than {bound.time_us:.3g} us ({bound.binds})"
    return (Finding(code="beats_roofline", detail=f"{detail}: {bound.argument}"),)


def elapsed_us(timing: Timing) -> float:
    """The candidate's time of a call with all that was subtracted from it, or a little more.

    The gate, the context switch and handovers were measured with other blocks, and a legal kernel may use a rank's
    links and memory while that rank is in a handover, as peers may fill its scratch. So they are not taken off where a
    bound is at stake. Work of a whole block counts as in the block with the fewest calls.
    """
    handover_us = timing.candidate_handover_us
    of_block_us = timing.gate_us + (timing.context_switch_us or 0.0) + handover_us
    return timing.candidate_us + handover_us + of_block_us / min((block.calls for block in timing.blocks), default=1)


def interference(ticks: int, ticks_in_all: int, ranks: int) -> Sequence[Finding]:
    """A candidate that used the processor while the baseline was timed.

    Args:
        ticks: Clock ticks that the candidate's frozen processes used during this block of the baseline.
        ticks_in_all: Clock ticks that they used during all blocks so far.
        ranks: Number of the candidate's processes.
    """
    if ticks <= FROZEN_TICKS_IN_BLOCK * ranks and ticks_in_all <= FROZEN_TICKS * ranks:
        return ()
    detail = f"{max(ticks, ticks_in_all)} clock ticks were used beside the baseline"
    return (Finding(code="interference", detail=detail),)


def frozen_traffic(segments: int, ranks: int) -> Sequence[Finding]:
    """A candidate that had the kernel go on with its transmissions while the baseline was timed.

    Args:
        segments: TCP segments with new data that were sent for its processes while they were frozen.
        ranks: Number of the candidate's processes.
    """
    if segments <= FROZEN_SEGMENTS * ranks:
        return ()
    return (Finding(code="interference", detail=f"{segments} segments of TCP were sent beside the baseline"),)


def busy_gpu(answer_us: float) -> Sequence[Finding]:
    """A candidate whose kernels run on while it is frozen, beside the baseline or before its inputs are there.

    Args:
        answer_us: Response time of a GPU to a kernel of one microsecond, after it has been waited for, in microseconds.
    """
    if answer_us <= BUSY_GPU_US:
        return ()
    detail = f"a GPU took {answer_us:.0f} us to answer, {BUSY_FOR_S} s after the candidate had nothing to run"
    return (Finding(code="interference", detail=detail),)


def late_output(mismatch: Mismatch) -> Sequence[Finding]:
    """Outputs that were wrong when the last rank reported its end, and right a moment later."""
    detail = f"rank {mismatch.rank}, {mismatch.output}: the output was not there when the call ended; it came later"
    return (Finding(code="late_output", detail=detail),)


def early_request(rank: int, output: LateOutput) -> Sequence[Finding]:
    """Outputs that came between a rank's request of its next call and that call.

    The program of a rank asks when its stream has reached the end of the call, so that it was asked by something else.
    """
    detail = f"rank {rank} asked for its next call before {output.output} of call {output.call} was there"
    return (Finding(code="late_output", detail=detail),)


def tampering(what: str) -> Sequence[Finding]:
    """A rank that broke the protocol between it and the evaluator, which its program cannot do by itself."""
    return (Finding(code="harness_tampering", detail=what),)
