"""What a block takes that is none of its calls' doing, measured where no candidate can make it longer."""

from __future__ import annotations

from pkb_gym.engine.ranks.candidate_gang import CandidateGang
from pkb_gym.engine.ranks.reference_gang import ReferenceGang
from pkb_gym.engine.stages.timing_statistics import typical_us

RUNS = 5
"""Blocks, of which the shortest counts: noise only adds."""
TOUCHES = 8


def gate_us(reference: ReferenceGang, *, native: bool) -> float:
    """What opening the gate and hearing of the end costs: an empty block of the gang that can be trusted."""
    return min(reference.run(0, native=native) for _ in range(RUNS)) / 1e3


def entry_us(reference: ReferenceGang, candidate: CandidateGang) -> float:
    """What a block of the candidate's gang begins with on GPUs, and the baseline's does not.

    Inputs are staged by the reference gang, so that the GPUs turn to the candidate's contexts after the gate opened.
    Both gangs do the least that there is to do, in turn, before a candidate is loaded; as of the blocks that this is
    taken off from, the lower quartile counts.
    """
    theirs, ours = [], []
    for _ in range(TOUCHES):
        theirs.append(candidate.touch(reference.stage) / 1e3)
        ours.append(reference.touch() / 1e3)
    return max(0.0, typical_us(theirs) - typical_us(ours))
