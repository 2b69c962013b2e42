"""Writes outside of tensors and scratch are found, and attributed to that beside which they lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from pkb_gym.engine.compare.layout import RED_ZONE_BYTES, BlockPlan, PlacedLeaf
from pkb_gym.engine.reference.orders import Overrun
from pkb_gym.engine.reference.red_zones import MAX_BEHIND_BYTES, RedZones
from pkb_gym.problems.catalogue import find_problem
from tests.engine.compare.plans import SCRATCH_BYTES, plan

RANK = 1


@dataclass
class Segment:
    """A rank's segment as `RedZones` sees it, with other bytes than theirs everywhere."""

    block: BlockPlan
    cuda_device: int | None = None
    held: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.held = torch.full((self.block.end,), 7, dtype=torch.uint8)

    def bytes(self) -> torch.Tensor:
        return self.held


@pytest.fixture
def segment() -> Segment:
    return Segment(plan(find_problem("ZeRO1"), 2))


def zones_of(segment: Segment) -> RedZones:
    zones = RedZones(segment.block, RANK)
    zones.fill(segment)  # type: ignore[arg-type]
    return zones


def overruns(zones: RedZones, segment: Segment) -> list[Overrun]:
    return zones.overruns(segment)  # type: ignore[arg-type]


def tensors(segment: Segment, call: int) -> list[PlacedLeaf]:
    return sorted(segment.block.sets[call].leaves[RANK].values(), key=lambda placed: placed.offset)


def end_of(placed: PlacedLeaf) -> int:
    return placed.offset + placed.leaf.capacity_bytes


def test_zones_lie_behind_every_tensor_and_in_none(segment: Segment):
    zones_of(segment)
    for call in range(len(segment.block.sets)):
        for placed in tensors(segment, call):
            end = end_of(placed)
            assert bool((segment.held[placed.offset : end] == 7).all())
            assert not bool((segment.held[end : end + RED_ZONE_BYTES] == 7).any())


def test_what_stays_inside_its_tensor_is_no_overrun(segment: Segment):
    zones = zones_of(segment)
    for call in range(len(segment.block.sets)):
        for placed in tensors(segment, call):
            segment.held[placed.offset : end_of(placed)] = 9
    assert overruns(zones, segment) == []


def test_an_overrun_names_call_tensor_and_bytes(segment: Segment):
    zones = zones_of(segment)
    last = tensors(segment, 2)[-1]
    segment.held[end_of(last) : end_of(last) + 6] = 9
    (found,) = overruns(zones, segment)
    assert found == Overrun(2, f"`{last.leaf.name}`", 6, 0, is_behind=True)
    assert str(found) == f"6 bytes behind `{last.leaf.name}`"


def test_one_byte_is_enough_and_its_distance_is_reported(segment: Segment):
    zones = zones_of(segment)
    first = tensors(segment, 0)[0]
    segment.held[end_of(first) + 12] = 9
    (found,) = overruns(zones, segment)
    assert str(found) == f"1 bytes behind `{first.leaf.name}`, 12 bytes away from it,"


def test_a_write_next_to_the_following_tensor_lies_in_front_of_it(segment: Segment):
    zones = zones_of(segment)
    second = tensors(segment, 1)[1]
    segment.held[second.offset - 4 : second.offset] = 9
    assert overruns(zones, segment) == [Overrun(1, f"`{second.leaf.name}`", 4, 0, is_behind=False)]


@pytest.mark.parametrize("nbytes", [1, 16, RED_ZONE_BYTES])
def test_what_is_written_behind_scratch_is_named_so(segment: Segment, nbytes: int):
    """It was blamed on an argument, or on nothing where a gap came first."""
    zones = zones_of(segment)
    segment.held[segment.block.scratch_end - 64 : segment.block.scratch_end + nbytes] = 9
    (found,) = overruns(zones, segment)
    assert found == Overrun(None, f"the scratch of {SCRATCH_BYTES} bytes", nbytes, 0, is_behind=True)
    assert str(found) == f"{nbytes} bytes behind the scratch of {SCRATCH_BYTES} bytes"


def test_of_much_behind_scratch_the_first_bytes_are_named_first(segment: Segment):
    zones = zones_of(segment)
    segment.held[segment.block.scratch_end :] = 9
    first, *others = overruns(zones, segment)
    assert first.call is None and all(other.call is not None for other in others)
    assert len(others) >= sum(len(planned.leaves[RANK]) for planned in segment.block.sets)


def test_a_write_in_front_of_the_first_tensor_is_none_behind_scratch(segment: Segment):
    zones = zones_of(segment)
    first = min(segment.block.sets, key=lambda planned: planned.offset)
    segment.held[first.offset - 4 : first.offset] = 9
    (found,) = overruns(zones, segment)
    assert (found.nbytes, found.is_behind) == (4, False) and found.beside.startswith("`")


def test_of_wide_room_only_what_lies_next_to_tensors_is_watched():
    """A rank without a tensor that others have has as much room there as theirs takes."""
    block = plan(find_problem("Gather"), 2)
    segment = Segment(block)
    zones = RedZones(block, RANK)
    zones.fill(segment)  # type: ignore[arg-type]
    watched = int((segment.held != 7).sum())
    places = sum(len(planned.leaves[RANK]) + 1 for planned in block.sets)
    assert 0 < watched <= places * (MAX_BEHIND_BYTES + 2 * RED_ZONE_BYTES)
