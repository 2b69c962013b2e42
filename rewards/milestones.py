"""Discrete steps for beating baselines by a margin."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.records.feedback import Feedback
from pkb_gym.rewards.baseline import Baseline, Estimate, refuse_baseline, refuse_estimate
from pkb_gym.rewards.component import Bounds, Component
from pkb_gym.rewards.reward import is_infrastructure_failure
from pkb_gym.rewards.simple import Correctness
from pkb_gym.rewards.speedup import paid_speedup


@dataclass(frozen=True)
class Milestones(Component):
    """One point for being right, and one more for each baseline that is beaten by a margin.

        r = -1   not right
        r = 3    b(t, baseline_us) and b(t, stronger_us)
        r = 2    b(t, baseline_us)
        r = 1    right, and neither

        b(t, t0) = [(t0 - t) / t0 > margin],    stronger_us = baseline_us / stronger

    Easy problems, where great factors mean little, weigh no more than hard ones. Noise below the margin is not
    rewarded.

    Range: {-1, 1, 2, 3}.
    Source: Dai et al., CUDA Agent, arXiv:2602.24286, section 3.2, equation 1, with a margin of 5 %. Its two baselines
    are PyTorch eager and torch.compile. Here the one baseline is PyTorch with its collectives; the second is that time
    over `stronger`, whose value is this project's choice.

    Attributes:
        margin: Share of a baseline's time that must be saved.
        stronger: Speedup of the second baseline over the first, at least 1.

    Example:
        >>> from .examples import failed, timed
        >>> reward = Milestones()
        >>> [reward(timed(speedup=speedup)) for speedup in (1.04, 1.06, 1.31, 1.32)], reward(failed("timeout"))
        ([1.0, 2.0, 2.0, 3.0], -1.0)
    """

    margin: float = 0.05
    stronger: float = 1.25
    estimate: Estimate = "point"
    baseline: Baseline = "eager"

    def __post_init__(self) -> None:
        refuse_estimate(self.estimate)
        refuse_baseline(self.baseline)
        if not 0 <= self.margin < 1 or not 1 <= self.stronger < float("inf"):
            raise ValueError(f"0 <= margin < 1 and a finite stronger >= 1 are needed, got {self}")

    def __call__(self, feedback: Feedback) -> float | None:
        """The value of one submission, or None."""
        if is_infrastructure_failure(feedback):
            return None
        if not Correctness()(feedback):
            return -1.0
        speedup = paid_speedup(feedback, self.estimate, self.baseline)
        if speedup is None:
            return 1.0
        return 1.0 + sum(1 - baseline / speedup > self.margin for baseline in (1.0, self.stronger))

    def bounds(self) -> Bounds:
        """Least and greatest value."""
        return -1.0, 3.0
