"""The overhead of blocks, found from blocks of null calls."""

from __future__ import annotations

import pytest

from pkb_gym.engine.records.config import Device
from pkb_gym.engine.stages.null_blocks import FEW_CALLS, MANY_CALLS, NULL_BLOCKS, measure_overhead
from pkb_gym.engine.stages.overhead import Overhead
from tests.engine.stages.fake_gangs import FakeCandidateGang, FakeReferenceGang


class Gangs:
    """Two that share a log."""

    def __init__(self, device: Device, **of_candidate: float) -> None:
        self.log: list[str] = []
        self.reference = FakeReferenceGang(self.log, device, block_us=30.0, handover_us=10.0)
        self.candidate = FakeCandidateGang(self.log, **of_candidate)  # type: ignore[arg-type]

    def overhead(self) -> Overhead:
        return measure_overhead(self.reference, self.candidate)  # type: ignore[arg-type]


def test_the_cost_of_a_block_is_separated_from_that_of_each_handover() -> None:
    found = Gangs("cpu", block_us=30.0, handover_us=12.0).overhead()
    assert (found.gate_us, found.context_switch_us) == (pytest.approx(30), 0.0)
    assert (found.baseline_handover_us, found.candidate_handover_us) == (pytest.approx(10), pytest.approx(12))
    assert found.baseline_us(5) == pytest.approx(30 + 6 * 10)


def test_the_context_switch_is_what_the_candidates_blocks_take_more() -> None:
    found = Gangs("cuda", block_us=150.0, handover_us=10.0).overhead()
    assert (found.gate_us, found.context_switch_us) == (pytest.approx(30), pytest.approx(120))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_below_nothing(device: Device) -> None:
    found = Gangs(device, block_us=10.0, handover_us=-1.0).overhead()
    assert (found.context_switch_us, found.candidate_handover_us) == (0.0, 0.0)


def test_blocks_of_both_sides_take_turns_and_inputs_are_staged_by_the_reference_gang() -> None:
    """A block that is timed has the same staging before it, so that GPUs must switch contexts."""
    gangs = Gangs("cpu")
    gangs.overhead()
    many = MANY_CALLS["cpu"]
    turns = []
    for kind, staged in (("none", "StageInputs"), ("waiting", "ServeNullBlock")):
        for calls in (FEW_CALLS, many):
            of_case = f"{calls} {kind}"
            turns += [f"null block of the reference {of_case}", f"stage {staged}"]
            turns += [f"null block of the candidate {of_case}", "end block"]
    assert gangs.log == turns * NULL_BLOCKS


def test_one_long_block_does_not_count() -> None:
    gangs = Gangs("cpu", block_us=30.0, handover_us=10.0)
    few, many = FEW_CALLS, MANY_CALLS["cpu"]
    undisturbed = [30.0, 30.0, 30 + 10.0 * (few + 1), 30 + 10.0 * (many + 1)]
    gangs.reference.blocks_us = [*undisturbed[:3], 5 * undisturbed[3], *undisturbed]
    assert gangs.overhead().baseline_handover_us == pytest.approx(10)


def test_on_gpus_what_a_handover_takes_the_device_longer_than_the_host_is_padded() -> None:
    gangs = Gangs("cuda")
    gangs.reference.host_ns = 0
    found = gangs.overhead()
    assert found.pad_ns == pytest.approx(10_000, rel=0.01), "the host took no time at all here"
    assert Gangs("cpu").overhead().pad_ns == 0
