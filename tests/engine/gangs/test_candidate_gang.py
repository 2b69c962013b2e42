"""A candidate's gang before it has a candidate: null blocks, and where its ranks run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.gang_pool import GangPool
from pkb_gym.engine.evaluators.local import LocalEvaluator
from pkb_gym.engine.gangs import candidate_gang
from pkb_gym.engine.gangs.candidate_gang import CandidateGang
from pkb_gym.engine.gangs.gang import Gang
from pkb_gym.engine.gangs.handover_ends import HandoverEnds
from pkb_gym.engine.gangs.heaps import SharedHeap
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.pidfds import pid_of
from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import Bind, RunNullBlock
from pkb_gym.problems.catalogue import find_problem

SEGMENT_BYTES = abi.SCRATCH_OFFSET + (1 << 20)
NULL_BLOCK = RunNullBlock(3, "none", 0)


@pytest.fixture
def gang(gang_pool: GangPool) -> Iterator[CandidateGang]:
    with (
        CandidateGang(gang_pool.zygote(trusted=False), "cpu", 2) as gang,
        SharedHeap(SEGMENT_BYTES, 2) as heap,
        HandoverEnds(2, gang_pool.handovers("cpu")) as ends,
    ):
        gang.prepare("native")
        gang.map_heap("native", heap, ends)
        yield gang


def test_a_gang_is_staged_for_and_timed_before_it_has_a_candidate(gang: CandidateGang) -> None:
    staged = []
    blocks = [gang.run_null_block(NULL_BLOCK, lambda: staged.append(True)) for _ in range(3)]
    assert len(staged) == 3 and all(0 < block < 1_000_000_000 for block in blocks)
    assert gang.is_whole


def test_ranks_run_on_the_processors_of_their_order(gang: CandidateGang) -> None:
    own = sorted(os.sched_getaffinity(0))
    places = [[own[-1]], [own[0]]]
    gang.run_null_block(NULL_BLOCK, lambda: places)
    gang.run_null_block(NULL_BLOCK, lambda: None)
    gang.thaw()
    for pidfd, place in zip(gang._gang.processes.pidfds, places, strict=True):
        threads = [int(entry.name) for entry in Path(f"/proc/{pid_of(pidfd)}/task").iterdir()]
        assert threads and all(os.sched_getaffinity(thread) == set(place) for thread in threads)


def test_a_rank_that_falls_while_its_inputs_are_staged_cannot_be_moved_and_that_is_all(gang: CandidateGang) -> None:
    own = sorted(os.sched_getaffinity(0))

    def stage() -> list[list[int]]:
        signal.pidfd_send_signal(gang._gang.processes.pidfds[0], signal.SIGKILL)
        return [own, own]

    with pytest.raises(InfrastructureError, match="before its candidate was loaded"):
        gang.run_null_block(NULL_BLOCK, stage)


def test_a_gang_that_falls_before_it_has_a_candidate_is_no_candidates_fault(gang: CandidateGang) -> None:
    signal.pidfd_send_signal(gang._gang.processes.pidfds[0], signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="before its candidate was loaded"):
        gang.run_null_block(NULL_BLOCK, lambda: None)


def test_a_gang_that_cannot_be_prepared_is_no_candidates_fault(gang_pool: GangPool) -> None:
    with CandidateGang(gang_pool.zygote(trusted=False), "cpu", 2) as gang:
        signal.pidfd_send_signal(gang._gang.processes.pidfds[1], signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="a gang could not be prepared: rank 1 was killed"):
            gang.prepare("python")


SLEEPS_BEFORE_ITS_BLOCKS = """
import gc, time, torch, torch.distributed as dist
gc.callbacks.append(lambda phase, _: time.sleep(0.4) if phase == "start" else None)
def solution(tensor):
    out = tensor.clone()
    dist.all_reduce(out)
    return out
"""


def test_what_lies_between_blocks_is_short_in_all(
    local_evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that took 9 s to bind and to come to the gate, each time, took 300 s of a service, which then gave up."""
    in_all_s, before_a_block_s = 3.0, 1.0
    monkeypatch.setattr(candidate_gang, "MIN_BETWEEN_S", in_all_s)
    monkeypatch.setattr(candidate_gang, "TIMEOUTS_BETWEEN", 0)
    source = SLEEPS_BEFORE_ITS_BLOCKS.replace("0.4", str(before_a_block_s))
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="time", timeout_s=60.0)
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, config)
    assert feedback.failure in (Failure.TIMEOUT, Failure.DEADLOCK), feedback.message
    # Which block it is depends on what else the machine does.
    deadline = re.match(r"no end after ([\d.e-]+) s", feedback.message)
    assert deadline is not None, feedback.message
    assert float(deadline[1]) <= in_all_s - before_a_block_s, "by itself, the time before a block is within the limit"
    places = re.findall(r"rank \d: (before its first call|done|in call|waits)", feedback.message)
    assert places and set(places) <= {"before its first call", "done"}, feedback.message


def test_loading_has_several_deadlines(local_evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.compile` at module level, on each of 4 ranks, took longer than a block may on a busy machine."""
    source = SLEEPS_BEFORE_ITS_BLOCKS.replace("0.4", "0")
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="check")
    monkeypatch.setattr(candidate_gang, "LOAD_TIMEOUTS", 0)
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, config)
    assert feedback.failure in (Failure.TIMEOUT, Failure.DEADLOCK) and "loading" in feedback.message, feedback.message
    monkeypatch.undo()
    assert local_evaluator.evaluate(find_problem("AllReduce"), source, config).passed


def test_the_first_binding_has_several_deadlines(
    local_evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the groups of the arguments, which took NCCL 10 s on a busy driver: an honest module was a deadlock."""
    deadlines_s: list[float] = []
    exchange = Gang.exchange

    def noted(self: Gang, orders: Sequence[WireMessage], *rest: Any, timeout_s: float, **named: Any) -> list[Any]:
        if isinstance(orders[0], Bind):
            deadlines_s.append(timeout_s)
        return exchange(self, orders, *rest, timeout_s=timeout_s, **named)

    monkeypatch.setattr(Gang, "exchange", noted)
    config = EvalConfig(device="cpu", world_size=2, size="tiny", until="time", timeout_s=40.0, timing_budget_s=0.05)
    source = SLEEPS_BEFORE_ITS_BLOCKS.replace("0.4", "0")
    feedback = local_evaluator.evaluate(find_problem("AllReduce"), source, config)
    assert feedback.passed, feedback.message
    first_s, *later_s = deadlines_s
    assert first_s >= 3 * 40.0 and later_s and max(later_s) < 2 * 40.0


@pytest.mark.skipif(not bubblewrap_works(), reason="ranks share the network of the machine")
def test_segments_that_are_sent_for_frozen_ranks_are_counted(gang: CandidateGang) -> None:
    sent = iter((100, 140))
    assert gang._gang.processes.segments_sent() == 0, "native ranks have no connections"
    assert gang.frozen_segments() == 0
    gang._segments_when_frozen = next(sent)
    gang._gang.processes.segments_sent = lambda: next(sent)  # type: ignore[method-assign]
    assert gang.frozen_segments() == 40
    gang._gang.processes.segments_sent = lambda: 150  # type: ignore[method-assign]
    gang.run_on(0.0)
    assert gang.frozen_segments() == 0, "sent while the ranks ran"
