"""Rewards that pay one thing alone."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.baseline import Baseline, Estimate, refuse_baseline, refuse_estimate
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure, is_right
from pkb_gym.rewards.speedup import paid_speedup


@dataclass(frozen=True)
class Correctness(Component):
    """1 for a right kernel, however slow; 0 for any other.

    Range: {0, 1}. Source: the functional half of every kernel benchmark.

    Example:
        >>> from .examples import failed, timed
        >>> Correctness()(timed(speedup_low=0.1)), Correctness()(failed("output_mismatch", earned_share=0.99))
        (1.0, 0.0)
    """

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        return None if is_infrastructure_failure(feedback) else float(is_right(feedback))

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, 1.0


@dataclass(frozen=True)
class FastP(Component):
    """1 for a right kernel whose speedup over the baseline is greater than p, else 0.

        r = [right and speedup > p]

    Its mean over a set of problems is the fast_p of KernelBench, which compares the measured speedup itself, and over
    eager PyTorch. By the lower end of its interval, as the preset has it, noise is not paid.

    Range: {0, 1}.
    Source: Ouyang et al., KernelBench: Can LLMs Write Efficient GPU Kernels?, arXiv:2502.10517, section 3.3.

    Example:
        >>> from .examples import timed
        >>> FastP(1.0)(timed(speedup=1.2)), FastP(2.0)(timed(speedup=1.2))
        (1.0, 0.0)
    """

    p: float = 1.0
    estimate: Estimate = "point"
    baseline: Baseline = "eager"

    def __post_init__(self) -> None:
        refuse_estimate(self.estimate)
        refuse_baseline(self.baseline)
        if not 0 <= self.p < float("inf"):
            raise ValueError(f"fast_p needs a finite p >= 0, got {self.p}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        speedup = paid_speedup(feedback, self.estimate, self.baseline)
        return float(speedup is not None and speedup > self.p)

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return 0.0, 1.0
