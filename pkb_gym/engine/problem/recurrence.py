"""The return of an earlier checked call: its place, its values, or both.

A kernel may keep what it likes from call to call but must compute each result anew: one that recognises a call by an
address or by some of its values gives an earlier result there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recurrence:
    """What returns in a call.

    Where values return, a part of each tensor is new all the same, except on one rank: its own values return whole,
    while those of its peers do not.

    Attributes:
        place_of: Trial index of the earlier call that had the same place; None for none.
        values_of: Trial index of the earlier call that had the same axes and most of the values; None for none.
        whole_rank: Rank whose own values return whole; None for no rank.
    """

    place_of: int | None = None
    values_of: int | None = None
    whole_rank: int | None = None


NEW = Recurrence()
"""Nothing returns."""
