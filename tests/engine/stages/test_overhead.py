"""What is taken off a block's time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.ranks.candidate_gang import CandidateGang
from pkb_gym.engine.ranks.pidfds import pid_of
from pkb_gym.engine.stages import overhead
from pkb_gym.engine.stages.baseline_cache import ENTRIES, Known
from pkb_gym.engine.stages.timing_statistics import per_call_us


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
    assert overhead.gate_us(Gang(150, 140, 900, 141, 150), native=True) == 140  # type: ignore[arg-type]


def test_the_entry_is_what_the_candidates_gang_takes_more() -> None:
    reference = Gang(170, 160, 400, 160, 161, 160, 190, 160)
    candidate = Gang(20_000, 300, 280, 280, 281, 280, 270, 900)
    assert overhead.entry_us(reference, candidate) == 120  # type: ignore[arg-type]
    assert reference.staged == overhead.TOUCHES, "as before a block that is timed, so that the GPUs have to turn"


def test_there_is_no_entry_below_nothing() -> None:
    reference, candidate = Gang(*[200] * 8), Gang(*[190] * 8)
    assert overhead.entry_us(reference, candidate) == 0  # type: ignore[arg-type]


def test_the_middle_of_the_first_entries_counts() -> None:
    """A disturbed measurement must not be taken off a candidate's time."""
    known, measured = Known(), iter((120, 110, 400, 90, 115, 116, 117, 118))
    found = [known.entry_us((2, True), lambda: next(measured)) for _ in range(ENTRIES + 2)]
    assert found[:5] == [120, 115, 120, 115, 115] and found[-3:] == [116.5] * 3
    assert known.entry_us((4, True), lambda: 200) == 200


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


def test_ranks_run_on_the_processors_that_they_are_told(gang: CandidateGang) -> None:
    own = sorted(os.sched_getaffinity(0))
    places = [[own[-1]], [own[0]]]
    gang.touch(lambda: places)
    gang.touch(lambda: None)
    gang.thaw()
    for pidfd, place in zip(gang._gang._pidfds, places, strict=True):
        threads = [int(entry.name) for entry in Path(f"/proc/{pid_of(pidfd)}/task").iterdir()]
        assert threads and all(os.sched_getaffinity(thread) == set(place) for thread in threads)


def test_a_rank_that_falls_while_its_inputs_are_staged_cannot_be_moved_and_that_is_all(gang: CandidateGang) -> None:
    own = sorted(os.sched_getaffinity(0))

    def stage() -> list[list[int]]:
        signal.pidfd_send_signal(gang._gang._pidfds[0], signal.SIGKILL)
        return [own, own]

    with pytest.raises(InfrastructureError, match="before its candidate was loaded"):
        gang.touch(stage)


def test_a_gang_that_falls_before_it_has_a_candidate_is_no_candidates_fault(gang: CandidateGang) -> None:
    signal.pidfd_send_signal(gang._gang._pidfds[0], signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="before its candidate was loaded"):
        gang.touch(lambda: None)
