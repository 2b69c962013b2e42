"""The overhead of a block that its calls have no part in, measured where no candidate can make it longer."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.engine.ranks.candidate_gang import CandidateGang
from pkb_gym.engine.ranks.reference_gang import ReferenceGang
from pkb_gym.engine.rankside.orders import Dialect
from pkb_gym.engine.stages.timing_statistics import typical_us

EMPTY_BLOCKS = 5
"""Of which the shortest counts: noise only adds."""
NULL_BLOCKS = 8


@dataclass(frozen=True)
class Overhead:
    """What is subtracted from the time of a block, in microseconds.

    Attributes:
        gate_us: opening the gate and receiving the last completion; of either side's blocks.
        context_switch_us: switching the GPUs to the candidate's contexts; of the candidate's blocks.
    """

    gate_us: float
    context_switch_us: float

    @property
    def candidate_us(self) -> float:
        """Of a candidate's block."""
        return self.gate_us + self.context_switch_us


def gate_us(reference: ReferenceGang, dialect: Dialect) -> float:
    """Opening the gate and receiving the last completion: an empty block of the gang that can be trusted."""
    return min(reference.run(0, dialect) for _ in range(EMPTY_BLOCKS)) / 1e3


def context_switch_us(reference: ReferenceGang, candidate: CandidateGang) -> float:
    """What a block of the candidate's gang begins with on GPUs, and the baseline's does not.

    Inputs are staged by the reference gang, so that the GPUs switch to the candidate's contexts after the gate has
    opened. Both gangs run null blocks in turn, before a candidate is loaded. The lower quartile is used, as for the
    blocks that it is subtracted from.
    """
    candidate_us, reference_us = [], []
    for _ in range(NULL_BLOCKS):
        candidate_us.append(candidate.run_null_block(reference.stage) / 1e3)
        reference_us.append(reference.run_null_block() / 1e3)
    return max(0.0, typical_us(candidate_us) - typical_us(reference_us))
