"""Red zones: the bytes behind the scratch and between the tensors of a block, which no kernel may write to.

`compare/layout.py` leaves room behind the scratch and every tensor. A reference rank fills the zones of its segment
before a block, and looks at them after it: a kernel that writes behind an output gets that as its error, and not the
damage elsewhere. One that writes far behind its scratch overwrites tensors and their zones, too: the error names the
zone that lies first in the segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.compare.layout import RED_ZONE_BYTES, BlockPlan, SetPlan
from pkb_gym.engine.compare.poison import poison_of
from pkb_gym.engine.reference.orders import Overrun

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap

MAX_BEHIND_BYTES = 4096
"""The most bytes watched behind a tensor; the next may lie further away, as on ranks that lack a tensor of others."""


@dataclass(frozen=True)
class _Zone:
    """Bytes that belong to no tensor.

    Attributes:
        begin, end: Relative to the set of a call, or behind the scratch to the segment.
        before: Tensor or scratch that ends where the zone begins, in words; empty for none.
        after: The tensor that begins where it ends, if any.
    """

    begin: int
    end: int
    before: str | None
    after: str | None


class RedZones:
    """The zones of one rank's segment in one block.

    Args:
        plan: The calls of the block.
        rank: Number of the rank whose segment it is.
    """

    def __init__(self, plan: BlockPlan, rank: int) -> None:
        self._byte = poison_of(rank)
        behind_scratch = list(_behind_scratch(plan, rank))
        self._zones: list[tuple[int | None, list[_Zone]]] = [(None, behind_scratch)]
        places, calls = [_places(behind_scratch)], itertools.count()
        for alike in plan.runs:
            zones = list(_zones(alike[0], rank))
            within = _places(zones)
            self._zones += [(next(calls), zones) for _ in alike]
            places += [planned.offset + within for planned in alike]
        self._places: NDArray[np.int64] = np.concatenate(places)

    def fill(self, heap: AnyHeap) -> None:
        """Fills them."""
        heap.bytes().index_fill_(0, self._index(heap), self._byte)

    def overruns(self, heap: AnyHeap) -> list[Overrun]:
        """Reports of the zones written to since, at most one for each, that behind the scratch first."""
        changed = (heap.bytes().index_select(0, self._index(heap)) != self._byte).cpu().numpy()
        if not changed.any():
            return []
        found, begin = [], 0
        for call, zones in self._zones:
            for zone in zones:
                end = begin + zone.end - zone.begin
                if (written := np.flatnonzero(changed[begin:end])).size:
                    found.append(_overrun(call, zone, written))
                begin = end
        return found

    def _index(self, heap: AnyHeap) -> torch.Tensor:
        import torch

        return torch.from_numpy(self._places).to(heap.bytes().device)


def _places(zones: list[_Zone]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(zone.begin, zone.end) for zone in zones)])


def _behind_scratch(plan: BlockPlan, rank: int) -> Iterator[_Zone]:
    """Up to the set that lies first, and the tensor with which that begins."""
    first = min(plan.sets, key=lambda planned: planned.offset, default=None)
    if first is not None:
        names = [leaf.leaf.name for leaf in first.leaves[rank].values() if leaf.offset == first.offset]
        after = f"`{names[0]}`" if names else None
        yield from _divided(_Zone(plan.scratch_end, first.offset, f"the scratch of {plan.scratch_bytes} bytes", after))


def _zones(planned: SetPlan, rank: int) -> Iterator[_Zone]:
    leaves = sorted(planned.leaves[rank].values(), key=lambda leaf: leaf.offset)
    before, begin = None, 0
    for leaf in leaves:
        name = f"`{leaf.leaf.name}`"
        yield from _divided(_Zone(begin, leaf.offset - planned.offset, before, name))
        before, begin = name, leaf.offset - planned.offset + leaf.leaf.capacity_bytes
    yield from _divided(_Zone(begin, planned.nbytes, before, None))


def _divided(zone: _Zone) -> Iterator[_Zone]:
    """The zone, or of a large one what lies next to tensors."""
    if zone.end - zone.begin <= MAX_BEHIND_BYTES + RED_ZONE_BYTES:
        if zone.begin < zone.end:
            yield zone
        return
    if zone.before is not None:
        yield _Zone(zone.begin, zone.begin + MAX_BEHIND_BYTES, zone.before, None)
    if zone.after is not None:
        yield _Zone(zone.end - RED_ZONE_BYTES, zone.end, None, zone.after)


def _overrun(call: int | None, zone: _Zone, written: NDArray[np.int64]) -> Overrun:
    """Behind the tensor before the zone or in front of the one after it, whichever is nearer."""
    behind, in_front = int(written[0]), zone.end - zone.begin - 1 - int(written[-1])
    if zone.before is not None and (zone.after is None or behind <= in_front):
        return Overrun(call, zone.before, int(written.size), behind, is_behind=True)
    return Overrun(call, zone.after or "", int(written.size), in_front, is_behind=False)
