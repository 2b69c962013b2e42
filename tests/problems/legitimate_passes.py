"""Generated wrong solutions that pass, with the reason why each is right all the same, or right enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """Solutions that pass and may.

    Attributes:
        problems: Names of the problems.
        wrong: Mistake, or beginning of its name.
        reason: Argument that it is none, or none that the rounding of a right kernel does not make too.
        world_sizes: Numbers of ranks.
    """

    problems: tuple[str, ...]
    wrong: str
    reason: str
    world_sizes: tuple[int, ...] = (2, 4)

    def covers(self, problem: str, world_size: int, wrong: str) -> bool:
        """Whether it gives the reason for this one."""
        return problem in self.problems and world_size in self.world_sizes and wrong.startswith(self.wrong)


PASSES: Sequence[Pass] = (
    Pass(
        ("CombinedShardedGemms",),
        "collective 2",
        "The reduce-scatter of the reference adds zeros: each rank has its whole rows already.",
    ),
    Pass(
        ("LoadBalancingLoss",),
        "inputs: 8-bit integers",
        "Errors of single logits average out: the loss moves by 0.02 % in the median of 12 trials, and by 0.04 % where "
        "the softmax is done in float32, more exactly than the baseline does it. Logits must be read to be rounded, "
        "so that nothing is saved.",
    ),
    Pass(
        ("ImportanceSamplingLoss",),
        "means for sums",
        "Every result is a quotient of two sums over ranks, or a minimum or maximum.",
    ),
    Pass(
        ("UlyssesAttention",),
        "no communication",
        "Tokens do not mix, by the definition of the problem: a rank's result is that of its own tokens.",
    ),
    Pass(
        ("RingAttentionBackwardDP",),
        "inputs: bfloat16",
        "Of the inputs only the logarithms of the softmax's sums are float32, one for each row and head. Rounding them "
        "moves results by about as much as is allowed, on 4 ranks by more, and saves next to nothing.",
        world_sizes=(2,),
    ),
    Pass(
        ("SinkhornKnopp",),
        "means for sums",
        "A factor common to all scores cancels: samples are normalised last, and the number of samples is divided out.",
    ),
    Pass(
        ("SampleSort",),
        "collective 2: zeros",
        "Splitters only balance the buckets. All samples but a rank's own are 0, so that each splitter is 0, or the "
        "rank's largest value where all its values are negative: buckets by sign sort rightly.",
    ),
    Pass(
        ("SampleSort",),
        "collective 4",
        "Positions of samples tell equal values apart, whose order does not show.",
    ),
)


def reason_why(problem: str, world_size: int, wrong: str) -> str | None:
    """Why a wrong solution may pass, or None."""
    return next((entry.reason for entry in PASSES if entry.covers(problem, world_size, wrong)), None)
