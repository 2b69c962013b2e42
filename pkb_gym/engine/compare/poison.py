"""The bytes that stand for what is not there: arguments out of turn, outputs before a call."""

from __future__ import annotations

POISON = 0xF5
"""Byte of what is not there yet, or no more: a large negative number in every float format."""


def poison_of(rank: int) -> int:
    """Byte of a rank's outputs, and of the room around its tensors, before a checked call.

    It differs by rank: a copy between ranks that is too long would else leave the room behind a tensor as it was.
    """
    return POISON - rank
