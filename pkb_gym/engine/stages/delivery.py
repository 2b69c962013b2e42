"""Speedups that hold even for a candidate that pays nothing for the delivery of its results.

The rank program copies the results of the python dialect into the heap, inside the clock and beside the baseline alike.
A module that writes them there itself, from within the same process, saves this copy. No observation from outside
distinguishes the two, so the saving must bring no reward: the lower end of a speedup's interval, which rewards pay,
is that over a baseline without its copy. A trusted rank times the copy.
"""

from __future__ import annotations

from pkb_gym.engine.records.timing import CapturedFields, Timing
from pkb_gym.engine.stages.candidate_run import CandidateRun

MIN_WORK = 0.05
"""Share of the baseline's time that is taken to be work, so that a noisy copy never makes an interval vanish."""


def charge_delivery(run: CandidateRun) -> None:
    """Times the copy, where the candidate's results are copied, and lowers the interval of its speedup.

    Args:
        run: Run of a timed candidate whose last timed block is still in memory.

    Raises:
        InfrastructureError: the reference gang failed.
    """
    timing = run.feedback.timing
    if timing is None or not timing.delivers:
        return
    delivery_us = run.reference.delivery_us(run.dialect)
    low = timing.speedup_low * _share_of_work(timing.baseline_us, delivery_us)
    run.feedback.timing = timing.model_copy(update={"delivery_us": delivery_us, "speedup_low": low})


def with_captured_delivery(timing: Timing, fields: CapturedFields) -> Timing:
    """Lowers the interval over a captured baseline likewise, by the copy that `charge_delivery` has timed.

    Args:
        timing: Timing that has this baseline.
        fields: Fields of the timing that belong to that baseline.
    """
    baseline_us, low = getattr(timing, fields.baseline_us), getattr(timing, fields.speedup_low)
    return timing.model_copy(update={fields.speedup_low: low * _share_of_work(baseline_us, timing.delivery_us)})


def _share_of_work(baseline_us: float, delivery_us: float) -> float:
    return max(MIN_WORK, 1 - delivery_us / baseline_us)
