"""The overhead of a block that its calls have no part in."""

from __future__ import annotations

from pkb_gym.engine.stages import overhead
from pkb_gym.engine.stages.overhead import Overhead
from tests.engine.stages.fake_gangs import FakeCandidateGang, FakeReferenceGang


def gangs(reference_us: list[float], candidate_us: list[float]) -> tuple[FakeReferenceGang, FakeCandidateGang]:
    log: list[str] = []
    return FakeReferenceGang(log, blocks_us=reference_us), FakeCandidateGang(log, blocks_us=candidate_us)


def test_the_gate_is_the_shortest_empty_block() -> None:
    reference, _ = gangs([150, 140, 900, 141, 150], [])
    assert overhead.gate_us(reference, "native") == 140  # type: ignore[arg-type]
    assert reference.log == ["baseline 0 native"] * overhead.EMPTY_BLOCKS


def test_the_context_switch_is_what_the_candidates_gang_takes_more() -> None:
    reference, candidate = gangs([170, 160, 400, 160, 161, 160, 190, 160], [20_000, 300, 280, 280, 281, 280, 270, 900])
    assert overhead.context_switch_us(reference, candidate) == 120  # type: ignore[arg-type]
    turn = ["stage", "null block of the candidate", "null block of the reference"]
    assert reference.log == turn * overhead.NULL_BLOCKS, "as before a block that is timed, so that the GPUs must switch"


def test_there_is_no_context_switch_below_nothing() -> None:
    reference, candidate = gangs([200.0] * 8, [190.0] * 8)
    assert overhead.context_switch_us(reference, candidate) == 0  # type: ignore[arg-type]


def test_the_context_switch_is_the_candidates_alone() -> None:
    assert Overhead(gate_us=30.0, context_switch_us=12.0).candidate_us == 42.0
