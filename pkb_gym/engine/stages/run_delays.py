"""Blocks that other work delayed: their ranks could run and had no processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pkb_gym.engine.records.timing import Block
from pkb_gym.engine.stages.timing_statistics import MIN_BLOCKS

Side = Literal["baseline", "candidate"]
MAX_SHARE = 0.05
"""Share of a block that its most delayed rank may wait for a processor, beyond what it waits in that side's least
delayed block: ranks delay themselves too, by threads of their own and where they are more than the processors."""


@dataclass(frozen=True)
class TimedPair:
    """One pair of blocks.

    Attributes:
        block: Times of both sides.
        is_delayed: Whether other work delayed either side.
    """

    block: Block
    is_delayed: bool


def counted(pairs: Sequence[TimedPair]) -> list[Block]:
    """The blocks of calm pairs; of all where these are few and most were delayed: that machine is busy throughout."""
    calm = [pair.block for pair in pairs if not pair.is_delayed]
    return calm if len(calm) >= MIN_BLOCKS or 2 * len(calm) >= len(pairs) else [pair.block for pair in pairs]


class RunDelays:
    """Tells the blocks in which other work took processors from the ranks.

    Both sides are judged alike, each by its own blocks: a candidate whose threads always delay each other is not
    delayed by others for that.
    """

    def __init__(self) -> None:
        self._least: dict[Side, float] = {}
        self._last: dict[Side, float] = {}

    def note(self, side: Side, delays_ns: Sequence[int], block_ns: int) -> None:
        """Takes down one block.

        Args:
            side: Side that ran the block.
            delays_ns: Time that each rank waited for a processor during the block, in nanoseconds.
            block_ns: Time of the block, in nanoseconds.
        """
        share = self._last[side] = max(delays_ns, default=0) / max(block_ns, 1)
        self._least[side] = min(share, self._least.get(side, share))

    @property
    def is_delayed(self) -> bool:
        """Whether other work delayed the last block of either side."""
        return any(share - self._least[side] > MAX_SHARE for side, share in self._last.items())
