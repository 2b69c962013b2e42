"""Generated wrong solutions that pass, with the reason why each is right all the same, or right enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """Solutions that pass and may.

    Attributes:
        problems: their names.
        wrong: the mistake, or how its name begins.
        reason: why it is none, or none that an honest kernel's rounding does not also make.
        world_sizes: with how many ranks.
    """

    problems: tuple[str, ...]
    wrong: str
    reason: str
    world_sizes: tuple[int, ...] = (2, 4)

    def speaks_of(self, problem: str, world_size: int, wrong: str) -> bool:
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
        "A result that rounds as bfloat16 does: errors of single logits average out below the rounding of the "
        "probabilities. Nothing is saved by it, since logits must be read to be rounded.",
    ),
    Pass(
        ("LoadBalancingLoss",),
        "inputs: float8",
        "As with 8-bit integers.",
        (4,),
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
        "Of the inputs only the logarithms of the softmax's sums are float32. Rounding them moves a row by at most "
        "1.6 %, less than the bound that rounded scores need, and saves no work.",
    ),
    Pass(
        ("SinkhornKnopp",),
        "means for sums",
        "A factor common to all scores cancels: samples are normalised last, and the number of samples is divided out.",
    ),
    Pass(
        ("SampleSort",),
        "collective 2: zeros",
        "Splitters balance the buckets, and any that the ranks agree on sort rightly. With zeros for the samples of "
        "others the ranks agree on 0, or on values between which no element lies.",
    ),
    Pass(
        ("SampleSort",),
        "collective 4",
        "Positions of samples tell equal values apart, whose order does not show.",
    ),
    Pass(
        ("TileParallelVAEDecode",),
        "inputs: 8-bit integers",
        "At size tiny a row of the latent has 7 numbers: with a scale for so few, 8 bits are as fine as bfloat16.",
    ),
)


def reason_why(problem: str, world_size: int, wrong: str) -> str | None:
    """Why a wrong solution may pass, or None."""
    return next((entry.reason for entry in PASSES if entry.speaks_of(problem, world_size, wrong)), None)
