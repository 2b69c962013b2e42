"""Checked calls as a reference rank conducts them, with ranks of a candidate that the test plays itself."""

import contextlib
import fcntl
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from pkb_gym.engine.compare.layout import PAGE_BYTES, BlockPlan, Workload
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.rankside.devices import CpuDevice
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.reference import turns
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.reference.conductor import POISONS, Conductor
from pkb_gym.engine.reference.handover_script import POISON
from pkb_gym.engine.reference.orders import BlockEnded, CheckedCall, EndBlock
from pkb_gym.engine.support.eventfds import drain
from pkb_gym.engine.wire import abi
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.problems.catalogue import find_problem
from tests.waiting import PATIENCE_S, until

WORLD_SIZE = 2
LATER_S = 0.1
TOGETHER = CheckedCall(together=True)
APART = CheckedCall(together=False)


class FakePreemption:
    """A rank that stands still when a test says so."""

    def __init__(self) -> None:
        self.is_immediate = True
        self.began, self.ended = queue.SimpleQueue[float](), queue.SimpleQueue[None]()
        self.stands_still = threading.Event()

    def begin(self, duration_s: float) -> None:
        self.began.put(duration_s)

    def has_begun(self) -> bool:
        return self.stands_still.is_set()

    def end(self) -> None:
        self.ended.put(None)


class Rank:
    """Both sides of one rank."""

    def __init__(self, gang: "Gang", rank: int, calls: Sequence[CheckedCall]) -> None:
        self.preemption = FakePreemption()
        self.heap, self.mine = gang.heap(gang.theirs_fd, rank), gang.heap(gang.mine_fd, rank)
        self.request_fd, self.reply_fd = (os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2))
        ours, theirs = socket.socketpair()
        self.evaluator, self.wire = Wire(ours), Wire(theirs)
        block = BoundBlock(gang.problem, gang.plan, rank, self.mine, (), (), lambda: None, 0)
        fds = (self.request_fd, self.reply_fd)
        device = CpuDevice(rank, WORLD_SIZE, 1)
        self.conductor = Conductor(block, calls, WORLD_SIZE, self.heap, device, fds, preemption=self.preemption)
        self.conductor.stage()
        self._thread = threading.Thread(target=self.conductor.conduct, args=(self.wire,))
        self._thread.start()

    def cross(self) -> None:
        """Crosses from one call to the next, like the candidate's rank."""
        self.ask()
        assert self.is_answered(PATIENCE_S), "no answer"

    def ask(self) -> None:
        os.eventfd_write(self.request_fd, 1)

    def is_answered(self, seconds: float = LATER_S) -> bool:
        if not select.select([self.reply_fd], [], [], seconds)[0]:
            return False
        os.eventfd_read(self.reply_fd)
        return True

    def end(self) -> BlockEnded:
        self.evaluator.send(EndBlock())
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.conductor.end()

    def close(self) -> None:
        if self._thread.is_alive():
            self.evaluator.send(EndBlock())
            self._thread.join(PATIENCE_S)
        for fd in (self.request_fd, self.reply_fd):
            os.close(fd)
        self.evaluator.close()
        self.wire.close()


class Gang:
    """Two ranks and their heaps; the inputs are numbers that differ from place to place."""

    def __init__(self, calls: Sequence[CheckedCall], name: str = "AllReduce") -> None:
        self.problem: Problem = find_problem(name)
        workload = Workload(self.problem, "tiny", WORLD_SIZE, "float32", "robust", b"key", 0, 0)
        self.plan: BlockPlan = workload.plan(range(len(calls)), False, 0)
        self.segment_bytes = -(-self.plan.end // PAGE_BYTES) * PAGE_BYTES
        self.mine_fd, self.theirs_fd = (sealed_memory("test", WORLD_SIZE * self.segment_bytes) for _ in range(2))
        for rank in range(WORLD_SIZE):
            heap = self.heap(self.mine_fd, rank)
            for planned in self.plan.sets:
                for place in planned.leaves[rank].values():
                    values = heap.tensor(place.slot)
                    values.copy_(torch.arange(values.numel()).view(values.shape) + 100 * planned.trial + rank + 1)
        self.ranks = [Rank(self, rank, calls) for rank in range(WORLD_SIZE)]

    def heap(self, fd: int, rank: int) -> Heap:
        return Heap(os.dup(fd), self.segment_bytes, WORLD_SIZE, rank)

    def argument(self, rank: int, call: int, *, expected: bool = False) -> torch.Tensor:
        return self._tensor(rank, call, self.problem.data_args[0].name, expected)

    def output(self, rank: int, call: int) -> torch.Tensor:
        return self._tensor(rank, call, self.problem.returned[0].name, False)

    def _tensor(self, rank: int, call: int, name: str, expected: bool) -> torch.Tensor:
        heap = self.ranks[rank].mine if expected else self.ranks[rank].heap
        return heap.tensor(self.plan.sets[call].leaves[rank][name].slot)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        os.close(self.mine_fd)
        os.close(self.theirs_fd)


@pytest.fixture
def gang(request) -> Iterator[Gang]:
    made = Gang(*request.param) if isinstance(request.param, tuple) else Gang(request.param)
    yield made
    made.close()


def conducts(*calls: CheckedCall):
    return pytest.mark.parametrize("gang", [list(calls)], indirect=True)


def is_poison(tensor: torch.Tensor, *poisons: int) -> bool:
    held = set(tensor.contiguous().view(torch.uint8).unique().tolist())
    return len(held) == 1 and held <= set(poisons)


@conducts(APART, APART)
def test_arguments_are_there_during_their_call_alone(gang: Gang) -> None:
    rank = gang.ranks[0]
    assert all(is_poison(gang.argument(0, call), *POISONS) for call in (0, 1))
    rank.cross()
    assert torch.equal(gang.argument(0, 0), gang.argument(0, 0, expected=True))
    assert is_poison(gang.argument(0, 1), *POISONS), "the next call's arguments are here already"
    assert is_poison(gang.argument(1, 0), *POISONS), "the peer has not begun"
    assert is_poison(gang.output(0, 0), POISON)
    rank.cross()
    assert is_poison(gang.argument(0, 0), *POISONS), "the first call's arguments are still here"
    assert torch.equal(gang.argument(0, 1), gang.argument(0, 1, expected=True))


def test_poison_alternates_so_that_none_of_it_can_be_ignored() -> None:
    gang = Gang([APART, APART])
    try:
        assert {gang.argument(0, call).view(torch.uint8)[0, 0].item() for call in (0, 1)} == set(POISONS)
        assert not gang.argument(0, 1).eq(0).any()
    finally:
        gang.close()


@conducts(TOGETHER)
def test_ranks_begin_and_depart_together(gang: Gang) -> None:
    first, second = gang.ranks
    first.ask()
    assert not first.is_answered(), "a rank began before all arguments were there"
    second.ask()
    assert first.is_answered(PATIENCE_S) and second.is_answered(PATIENCE_S)
    first.ask()
    assert not first.is_answered(), "a rank departed before all had finished"
    assert torch.equal(gang.argument(0, 0), gang.argument(0, 0, expected=True)), "peers may still read it"
    second.ask()
    assert first.is_answered(PATIENCE_S) and second.is_answered(PATIENCE_S)


@conducts(CheckedCall(together=False, late_rank=0, delay_s=60), APART, APART)
def test_a_late_rank_waits_until_the_others_are_as_far_ahead_as_they_come(gang: Gang) -> None:
    """Scratch of two halves is used again too early by a rank that is two calls ahead."""
    late, other = gang.ranks
    late.ask()
    for _ in range(3):
        other.cross()
        assert not late.is_answered(), "it is not late"
    other.cross()
    assert late.is_answered(PATIENCE_S), "it is late for longer than need be"


@conducts(CheckedCall(together=False, late_rank=0, delay_s=60), TOGETHER)
def test_a_late_rank_does_not_wait_for_one_that_has_come_to_a_call_that_all_begin_together(gang: Gang) -> None:
    late, other = gang.ranks
    late.ask()
    other.cross()
    assert not late.is_answered()
    other.ask()
    assert late.is_answered(PATIENCE_S)


@conducts(CheckedCall(False, late_rank=0, delay_s=60), CheckedCall(False, late_rank=1, delay_s=60), APART)
def test_of_two_late_ranks_the_one_ahead_goes_on_first(gang: Gang) -> None:
    """Each would wait for the other until both delays end, and nobody come two calls ahead."""
    behind, ahead = gang.ranks
    behind.ask()
    ahead.cross()
    ahead.ask()
    assert ahead.is_answered(PATIENCE_S), "it waits for a rank that is late itself"
    assert not behind.is_answered()
    ahead.cross()
    ahead.cross()
    assert behind.is_answered(PATIENCE_S)


@conducts(CheckedCall(together=False, late_rank=0, delay_s=60))
def test_a_late_rank_waits_no_longer_than_the_others_wait_for_it(gang: Gang) -> None:
    late, other = gang.ranks
    late.ask()
    other.cross()
    assert not late.is_answered()
    other.heap.place(1).state = abi.State.WAITING
    assert late.is_answered(PATIENCE_S)


@conducts(CheckedCall(together=False, is_held=True))
def test_a_held_rank_is_released_once_the_others_go_no_further(gang: Gang) -> None:
    """A hold of several calls of the baseline is 60 ms where many ranks share a processor."""
    held, other = gang.ranks
    held.cross()
    other.cross()
    hold = held.heap.hold(0)
    hold.number = 1
    time.sleep(LATER_S)
    assert hold.released == 0, "the other one goes on"
    other.heap.place(1).state = abi.State.WAITING
    until(lambda: hold.released == 1)
    hold.number = 3
    until(lambda: hold.released == 3, "each hold ends by itself")


@conducts(CheckedCall(False, is_held=True), CheckedCall(False, late_rank=1, delay_s=60), APART)
def test_a_late_rank_does_not_wait_for_one_that_is_held_in_an_earlier_call(gang: Gang) -> None:
    held, late = gang.ranks
    held.cross()
    late.cross()
    held.heap.hold(0).number = 1
    late.ask()
    assert late.is_answered(PATIENCE_S)
    assert held.heap.hold(0).released == 0, "the other one has just begun"


@conducts(CheckedCall(together=False, late_rank=0, delay_s=0.05))
def test_a_late_rank_is_late_for_a_limited_time(gang: Gang) -> None:
    gang.ranks[0].ask()
    assert gang.ranks[0].is_answered(PATIENCE_S)


@conducts(APART, APART)
def test_an_output_that_changes_after_its_call_is_reported_and_put_back(gang: Gang) -> None:
    rank = gang.ranks[0]
    rank.cross()
    gang.output(0, 0).fill_(5)
    rank.cross()
    gang.output(0, 0)[0, 0] = 6
    gang.output(0, 1).fill_(7)
    rank.cross()
    ended = rank.end()
    assert ended.complete
    assert [(late.call, late.output) for late in ended.late] == [(0, "out")]
    assert (gang.output(0, 0) == 5).all() and (gang.output(0, 1) == 7).all()
    assert len(ended.calls_us) == 2 and min(ended.calls_us) > 0


@conducts(APART, CheckedCall(together=False, withdrawn=("tensor",)))
def test_outputs_are_taken_when_their_rank_has_departed(gang: Gang) -> None:
    """Peers that still read them then, as in the second shot of an all-reduce, read what others make of them."""
    rank = gang.ranks[0]
    for call in (0, 1):
        rank.cross()
        gang.output(0, call).fill_(5)
    rank.cross()
    assert is_poison(gang.output(0, 0), *POISONS)
    assert (gang.output(0, 1) == 5).all(), "only what is named is withdrawn"
    assert rank.end().late == ()
    assert (gang.output(0, 0) == 5).all()


def test_whole_numbers_of_outputs_change_places_when_they_are_taken() -> None:
    """They may be indices, as those of arguments."""
    gang = Gang([APART], "DistributedKNN")
    try:
        rank = gang.ranks[0]
        leaf = gang.plan.sets[0].leaves[0]["labels"]
        output = rank.heap.tensor(leaf.slot)
        rank.cross()
        output.copy_(torch.arange(output.numel()).view(output.shape))
        rank.cross()
        assert sorted(output.view(-1).tolist()) == [*range(output.numel())]
        assert output.view(-1)[0] != 0
        assert rank.end().late == () and output.view(-1)[0] == 0
    finally:
        gang.close()


class RecordedInterruptions:
    """Notes which calls are interrupted, and whether their rank had been stopped."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float, bool]] = []
        self.is_stopped = False

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.is_stopped = True
        yield
        self.is_stopped = False

    def interrupt(self, run_s: float, progress: object, call: int, fds: tuple[int, int]) -> int:
        self.calls.append((call, run_s, self.is_stopped))
        return 0


@conducts(APART, CheckedCall(together=False, run_s=1e-3), APART)
def test_a_rank_is_stopped_before_its_interrupted_call_begins(gang: Gang) -> None:
    """A short call would be over before the first stop otherwise."""
    rank, recorded = gang.ranks[0], RecordedInterruptions()
    rank.conductor._interruptions = recorded  # type: ignore[assignment]
    for _ in range(4):
        rank.cross()
    assert rank.end().complete
    assert recorded.calls == [(1, 1e-3, True)] and not recorded.is_stopped


@conducts(APART)
def test_arguments_are_left_as_the_call_left_them(gang: Gang) -> None:
    """They are compared afterwards: a call may not modify them."""
    rank = gang.ranks[0]
    rank.cross()
    gang.argument(0, 0)[1, 2] = -1
    rank.cross()
    assert rank.end().complete
    expected = gang.argument(0, 0, expected=True).clone()
    expected[1, 2] = -1
    assert torch.equal(gang.argument(0, 0), expected)


@conducts(APART, APART)
def test_a_block_that_is_broken_off_is_not_complete(gang: Gang) -> None:
    gang.ranks[0].cross()
    assert not gang.ranks[0].end().complete
    assert not gang.ranks[1].end().complete


@conducts(
    CheckedCall(together=False, withheld=("tensor",), withdrawn=()),
    CheckedCall(together=False, withheld=(), withdrawn=("tensor",)),
)
def test_a_tensor_is_withheld_before_its_call_or_after_it(gang: Gang) -> None:
    rank = gang.ranks[0]
    assert is_poison(gang.argument(0, 0), *POISONS)
    assert torch.equal(gang.argument(0, 1), gang.argument(0, 1, expected=True))
    rank.cross()
    rank.cross()
    assert torch.equal(gang.argument(0, 0), gang.argument(0, 0, expected=True))
    rank.cross()
    assert is_poison(gang.argument(0, 1), *POISONS)


def test_whole_numbers_are_withheld_behind_those_of_another_call() -> None:
    """They may be indices; nonsense would end in a crash instead of a wrong result."""
    gang = Gang([APART, APART], "VocabParallelLogProb")
    try:
        leaf = next(
            name for name, place in gang.plan.sets[0].leaves[0].items() if place.leaf.dtype in ("int64", "int32")
        )
        held = [gang._tensor(0, call, leaf, False).clone() for call in (0, 1)]
        own = [gang._tensor(0, call, leaf, True) for call in (0, 1)]
        assert torch.equal(held[0], own[1]) and torch.equal(held[1], own[0])
        assert not torch.equal(held[0], own[0])
    finally:
        gang.close()


@conducts(APART)
def test_a_request_that_the_rank_takes_back_keeps_nobody_waiting(gang: Gang) -> None:
    """Conductors that read it blocked, since the rank holds the eventfd too."""
    for rank in gang.ranks:
        for _ in range(200):
            rank.ask()
            with contextlib.suppress(BlockingIOError):
                os.preadv(rank.request_fd, [bytearray(8)], -1, os.RWF_NOWAIT)
    for rank in gang.ranks:
        rank.end()


@conducts(APART)
@pytest.mark.parametrize("flags", [0, os.O_NONBLOCK], ids=["blocking", "non-blocking"])
def test_a_rank_that_fills_up_its_replies_keeps_nobody_waiting(gang: Gang, flags: int) -> None:
    for rank in gang.ranks:
        fcntl.fcntl(rank.reply_fd, fcntl.F_SETFL, flags)
        os.eventfd_write(rank.reply_fd, 2**64 - 2)
        rank.ask()
    for rank in gang.ranks:
        time.sleep(LATER_S)
        drain(rank.reply_fd)  # as `HandoverEnds.drain`
        assert not rank.end().complete


PREEMPTED = CheckedCall(together=False, preempted_rank=0, preempted_s=60)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_PREEMPTION_S", 2 * PATIENCE_S)


@pytest.mark.usefixtures("patient")
@conducts(PREEMPTED, APART)
def test_peers_begin_a_call_once_one_rank_stands_still_in_it(gang: Gang) -> None:
    preempted, other = gang.ranks
    other.ask()
    assert not other.is_answered(), "the rank that is to stand still has not begun"
    preempted.cross()
    assert preempted.preemption.began.get(timeout=PATIENCE_S) == 60
    assert not other.is_answered(), "the rank still runs"
    preempted.preemption.stands_still.set()
    assert other.is_answered(PATIENCE_S)
    other.cross()  # into the call between, at once
    assert preempted.preemption.ended.empty(), "the other rank goes further"
    other.ask()
    preempted.preemption.ended.get(timeout=PATIENCE_S)
    assert other.preemption.began.empty(), "it has finished the call before"


@pytest.mark.usefixtures("patient")
@conducts(PREEMPTED, APART)
def test_peers_that_wait_for_the_rank_give_way_to_it(gang: Gang) -> None:
    """It is in its next call before they have seen that it went on."""
    preempted, other = gang.ranks
    preempted.preemption.stands_still.set()
    for rank in gang.ranks:
        rank.ask()
        assert rank.is_answered(PATIENCE_S)
    other.heap.place(other.heap.rank).state = abi.State.WAITING
    assert other.preemption.began.get(timeout=PATIENCE_S) == 60
    time.sleep(LATER_S)
    assert preempted.preemption.ended.empty(), "it goes on while the other runs"
    other.preemption.stands_still.set()
    preempted.preemption.ended.get(timeout=PATIENCE_S)
    preempted.cross()
    assert other.preemption.ended.empty(), "the rank goes further"
    preempted.ask()
    other.preemption.ended.get(timeout=PATIENCE_S)


@conducts(CheckedCall(together=False, preempted_rank=0, preempted_s=0.002))
def test_a_gpu_that_gives_way_slice_by_slice_does_not_do_so_in_turn(gang: Gang) -> None:
    other = gang.ranks[1]
    other.preemption.is_immediate = False
    for rank in gang.ranks:
        rank.ask()
        assert rank.is_answered(PATIENCE_S)
    gang.ranks[0].preemption.ended.get(timeout=PATIENCE_S)
    other.cross()
    assert other.preemption.began.empty()


@conducts(CheckedCall(together=False, preempted_rank=0, preempted_s=0.002))
def test_a_rank_that_cannot_be_stopped_is_not_waited_for_in_vain(gang: Gang) -> None:
    for rank in gang.ranks:
        rank.ask()
    assert all(rank.is_answered(PATIENCE_S) for rank in gang.ranks)
