"""What is taken off a block's time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from pkb_gym.engine import gates
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.known import Known
from pkb_gym.engine.local import LocalEvaluator
from pkb_gym.engine.ranks.candidate_gang import CandidateGang
from pkb_gym.engine.timing import per_call_us


class Gang:
    """Made up: takes these microseconds for one block after the other."""

    def __init__(self, *blocks_us: float) -> None:
        self.blocks = [round(1e3 * block) for block in blocks_us]
        self.staged = 0

    def touch(self, stage: Callable[[], None] | None = None) -> int:
        if stage is not None:
            stage()
        return self.blocks.pop(0)

    def run(self, calls: int, *, native: bool) -> int:
        assert calls == 0
        return self.blocks.pop(0)

    def stage(self) -> None:
        self.staged += 1


def test_the_gate_is_the_shortest_empty_block() -> None:
    assert gates.gate_us(Gang(150, 140, 900, 141, 150), native=True) == 140  # type: ignore[arg-type]


def test_the_entry_is_what_the_candidates_gang_takes_more() -> None:
    reference, candidate = Gang(170, 160, 400, 165, 161), Gang(20_000, 300, 280, 290, 281)
    assert gates.entry_us(reference, candidate) == 120  # type: ignore[arg-type]
    assert reference.staged == gates.RUNS, "as before a block that is timed, so that the GPUs have to turn"


def test_there_is_no_entry_below_nothing() -> None:
    reference, candidate = Gang(*[200] * 5), Gang(*[190] * 5)
    assert gates.entry_us(reference, candidate) == 0  # type: ignore[arg-type]


def test_the_least_entry_of_all_evaluations_counts() -> None:
    """A disturbed measurement must not be taken off a candidate's time."""
    known = Known()
    found = [known.least_entry_us((2, True), measured) for measured in (120, 400, 90, 100)]
    assert found == [120, 120, 90, 90]
    assert known.least_entry_us((4, True), 200) == 200


def test_half_of_a_block_is_work_whatever_is_taken_off() -> None:
    assert per_call_us(1_000_000, 10, 300) == pytest.approx(70)
    assert per_call_us(1_000_000, 10, 900) == pytest.approx(50)


@pytest.fixture
def gang(local_evaluator: LocalEvaluator) -> Iterator[CandidateGang]:
    with CandidateGang(local_evaluator._zygote(trusted=False), "cpu", 2) as gang:
        gang.prepare(join=False)
        yield gang


def test_a_gang_is_staged_for_and_timed_before_it_has_a_candidate(gang: CandidateGang) -> None:
    staged = []
    blocks = [gang.touch(lambda: staged.append(True)) for _ in range(3)]
    assert len(staged) == 3 and all(0 < block < 1_000_000_000 for block in blocks)
    assert gang.is_whole


def test_a_gang_that_falls_before_it_has_a_candidate_is_no_candidates_fault(gang: CandidateGang) -> None:
    signal.pidfd_send_signal(gang._gang._pidfds[0], signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="before its candidate was loaded"):
        gang.touch(lambda: None)
