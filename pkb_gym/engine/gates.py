"""What a block takes that is none of its calls' doing, measured where no candidate can make it longer."""

from __future__ import annotations

from pkb_gym.engine.ranks.candidate_gang import CandidateGang
from pkb_gym.engine.ranks.reference_gang import ReferenceGang

RUNS = 5
"""Blocks, the shortest of which counts: noise only adds."""


def gate_us(reference: ReferenceGang, *, native: bool) -> float:
    """What opening the gate and hearing of the end costs: an empty block of the gang that can be trusted."""
    return min(reference.run(0, native=native) for _ in range(RUNS)) / 1e3


def entry_us(reference: ReferenceGang, candidate: CandidateGang) -> float:
    """What a block of the candidate's gang begins with on GPUs, and the baseline's does not.

    Inputs are staged by the reference gang, so that the GPUs turn to the candidate's contexts after the gate opened.
    Both gangs do the least that there is to do, before a candidate is loaded.
    """
    theirs = min(candidate.touch(reference.stage) for _ in range(RUNS))
    ours = min(reference.touch() for _ in range(RUNS))
    return max(0, theirs - ours) / 1e3
