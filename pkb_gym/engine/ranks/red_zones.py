"""Red zones: the bytes between the tensors of a block, which no kernel may write to.

`compare/layout.py` leaves room behind every tensor. A reference rank fills the zones of its segment before a block, and
looks at them after it: a kernel that writes behind an output gets that as its error, and not the damage elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pkb_gym.engine.compare.layout import RED_ZONE_BYTES, SetPlan
from pkb_gym.engine.compare.poison import poison_of
from pkb_gym.engine.ranks.reference_orders import Overrun

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.rankside.devices import AnyHeap

MOST_BEHIND_BYTES = 4096
"""The most bytes watched behind a tensor; the next may lie further away, as on ranks that lack a tensor of others."""


@dataclass(frozen=True)
class _Zone:
    """Bytes of a set that belong to no tensor.

    Attributes:
        begin, end: relative to the set.
        before: name of the tensor that ends where it begins, if any.
        after: name of the tensor that begins where it ends, if any.
    """

    begin: int
    end: int
    before: str | None
    after: str | None


class RedZones:
    """The zones of one rank's segment in one block.

    Args:
        plan: the calls of the block.
        rank: whose segment.
    """

    def __init__(self, plan: Sequence[SetPlan], rank: int) -> None:
        self._byte = poison_of(rank)
        self._zones: list[list[_Zone]] = []
        places = []
        for _, run in itertools.groupby(plan, lambda planned: id(planned.axes)):
            alike = list(run)
            zones = list(_zones(alike[0], rank))
            within = np.concatenate([np.zeros(0, np.int64), *(np.arange(zone.begin, zone.end) for zone in zones)])
            self._zones += [zones] * len(alike)
            places += [planned.offset + within for planned in alike]
        self._places: NDArray[np.int64] = np.concatenate([np.zeros(0, np.int64), *places])

    def fill(self, heap: AnyHeap) -> None:
        """Fills them."""
        heap.bytes().index_fill_(0, self._index(heap), self._byte)

    def overruns(self, heap: AnyHeap) -> list[Overrun]:
        """Reports of the zones written to since, at most one for each."""
        changed = (heap.bytes().index_select(0, self._index(heap)) != self._byte).cpu().numpy()
        if not changed.any():
            return []
        found, begin = [], 0
        for call, zones in enumerate(self._zones):
            for zone in zones:
                end = begin + zone.end - zone.begin
                if (written := np.flatnonzero(changed[begin:end])).size:
                    found.append(_overrun(call, zone, written))
                begin = end
        return found

    def _index(self, heap: AnyHeap) -> torch.Tensor:
        import torch

        device = "cpu" if heap.cuda_device is None else f"cuda:{heap.cuda_device}"
        return torch.from_numpy(self._places).to(device)


def _zones(planned: SetPlan, rank: int) -> Iterator[_Zone]:
    leaves = sorted(planned.leaves[rank].values(), key=lambda leaf: leaf.offset)
    before, begin = None, 0
    for leaf in leaves:
        yield from _divided(_Zone(begin, leaf.offset - planned.offset, before, leaf.leaf.name))
        before, begin = leaf.leaf.name, leaf.offset - planned.offset + leaf.leaf.capacity_bytes
    yield from _divided(_Zone(begin, planned.nbytes, before, None))


def _divided(zone: _Zone) -> Iterator[_Zone]:
    """The zone, or of a large one what lies next to tensors."""
    if zone.end - zone.begin <= MOST_BEHIND_BYTES + RED_ZONE_BYTES:
        if zone.begin < zone.end:
            yield zone
        return
    if zone.before is not None:
        yield _Zone(zone.begin, zone.begin + MOST_BEHIND_BYTES, zone.before, None)
    if zone.after is not None:
        yield _Zone(zone.end - RED_ZONE_BYTES, zone.end, None, zone.after)


def _overrun(call: int, zone: _Zone, written: NDArray[np.int64]) -> Overrun:
    """Behind the tensor before the zone or in front of the one after it, whichever is nearer."""
    behind, in_front = int(written[0]), zone.end - zone.begin - 1 - int(written[-1])
    if zone.before is not None and (zone.after is None or behind <= in_front):
        return Overrun(call, zone.before, int(written.size), behind, is_behind=True)
    return Overrun(call, zone.after or "", int(written.size), in_front, is_behind=False)
