"""What the evaluator makes of a reference gang's replies; the gang itself is a stand-in."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pkb_gym.engine.compare.check import RankCheck
from pkb_gym.engine.compare.layout import Workload
from pkb_gym.engine.errors import InfrastructureError, ReferenceOutOfMemory
from pkb_gym.engine.gangs import reference_gang
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.gang import Replies
from pkb_gym.engine.gangs.reference_gang import ReferenceGang
from pkb_gym.engine.hardware.division import Division
from pkb_gym.engine.records.config import Device
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.reference.orders import (
    BlockEnded,
    BlockFinished,
    BlockSettled,
    Captured,
    CaptureGraphs,
    Compared,
    CompareOutputs,
    EndBlock,
    LateOutput,
    Ready,
    Release,
    ReplayGraphs,
    RunBaseline,
    ServeHandovers,
    Staged,
    StageInputs,
    Start,
)
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import Claim, RunNullBlock
from pkb_gym.problems.catalogue import find_problem


class FakeGang:
    """Answers orders by a function of the rank; `fails` makes the next one fail."""

    output = "Traceback of rank 1"

    def __init__(self, *_: object) -> None:
        self.orders: list[WireMessage] = []
        self.answer: Callable[[int], WireMessage] = lambda rank: Ready()
        self.fails = self.closed = False
        self.signals: list[signal.Signals] = []
        self.processes = SimpleNamespace(
            pidfds=[7, 8], signal=self.signals.append, thaw=lambda: self.signals.append(signal.SIGCONT)
        )

    def exchange(
        self,
        orders: Sequence[WireMessage],
        expect: type[WireMessage],
        *,
        timeout_s: float,
        fds: Sequence[int] = (),
        own_fds: Sequence[Sequence[int]] = (),
    ) -> list[Any]:
        self.orders += orders
        self.timeout_s = timeout_s
        if self.fails:
            raise GangFailed(Failure.RUNTIME_ERROR, 1, "rank 1 was killed by SIGBUS")
        return [self.answer(rank) for rank in range(2)]

    def run_block(
        self,
        orders: Sequence[WireMessage],
        expect: type[WireMessage],
        *,
        timeout_s: float,
        stage: Callable[[], None],
    ) -> tuple[int, list[Any]]:
        assert expect is BlockFinished
        stage()
        return 1000, self.exchange(orders, expect, timeout_s=timeout_s)

    def collect(self, expect: type[WireMessage], *, timeout_s: float) -> Replies[Any]:
        assert expect is BlockSettled
        return Replies([BlockSettled(20.0, 700), BlockSettled(30.0, 600)], [b"", b""], 0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGang:
    fake = FakeGang()
    monkeypatch.setattr(reference_gang, "Gang", lambda *_: fake)
    return fake


@pytest.fixture
def gang(fake: FakeGang) -> ReferenceGang:
    before = set(os.listdir("/proc/self/fd"))
    libraries = SimpleNamespace(reference_fds=())
    gang = ReferenceGang(None, "cuda", 2, 3, libraries, 2)  # type: ignore[arg-type]
    assert set(os.listdir("/proc/self/fd")) == before, "where ranks meet is theirs alone"
    assert fake.orders == [Start("cuda", 3, 2)] * 2
    fake.orders.clear()
    return gang


@pytest.mark.parametrize(("device", "expected"), [("cpu", ()), ("cuda", (0, 1, 8))])
def test_ranks_on_gpus_learn_which_processors_only_blocks_run_on(
    fake: FakeGang, monkeypatch: pytest.MonkeyPatch, device: Device, expected: tuple[int, ...]
) -> None:
    monkeypatch.setattr(reference_gang, "division", lambda: Division(frozenset({8, 0, 1}), frozenset({2})))
    ReferenceGang(None, device, 2, 1, SimpleNamespace(reference_fds=()))  # type: ignore[arg-type]
    assert {order.timed_processors for order in fake.orders if isinstance(order, Start)} == {expected}


@pytest.mark.parametrize(("device", "expected"), [("cpu", [signal.SIGSTOP, signal.SIGCONT]), ("cuda", [])])
def test_between_evaluations_ranks_of_the_cpu_are_stopped(
    fake: FakeGang, device: Device, expected: list[signal.Signals]
) -> None:
    gang = ReferenceGang(None, device, 2, 3, SimpleNamespace(reference_fds=()))  # type: ignore[arg-type]
    gang.warm_up(1)
    gang.release()
    assert fake.signals == expected[:1]
    gang.warm_up(1)
    gang.warm_up(1)
    assert fake.signals == expected


def test_staging_returns_the_slowest_answer_and_every_ranks_processors(fake: FakeGang, gang: ReferenceGang) -> None:
    fake.answer = lambda rank: Staged(20.0 + rank, (3 + rank,))
    orders = [ServeHandovers((50,)), ServeHandovers()]
    assert gang.stage(orders) == [(3,), (4,)]
    assert fake.orders == orders and gang.idle_us == 21.0
    fake.answer = lambda rank: Staged(None, None)
    assert gang.stage([StageInputs()] * 2) is None, "on the CPU ranks need all of them"
    assert gang.idle_us is None


def test_what_is_staged_has_to_be_ended(fake: FakeGang, gang: ReferenceGang) -> None:
    assert not gang.has_staged
    fake.answer = lambda rank: Staged(None, None)
    gang.stage([StageInputs()] * 2)
    assert gang.has_staged
    ended = [BlockEnded(True, ()), BlockEnded(True, (LateOutput(3, "out"),))]
    fake.answer = lambda rank: ended[rank]
    assert gang.end_block() == ended and fake.orders[2:] == [EndBlock()] * 2
    assert not gang.has_staged


def test_every_kind_of_block_takes_the_time_of_the_clock(fake: FakeGang, gang: ReferenceGang) -> None:
    null_block = RunNullBlock(5, "enqueued", 300)
    handed_over = gang.run(4, "native", handovers=True, pad_ns=300)
    assert [handed_over, gang.run(4, "native"), gang.run_null_block(null_block), gang.replay(9)] == [1000] * 4
    assert fake.orders[:4:2] == [RunBaseline(4, "native", True, 300), RunBaseline(4, "native", False, 0)]
    assert fake.orders[4::2] == [null_block, ReplayGraphs(9)]
    assert (gang.idle_us, gang.host_ns) == (30.0, 700), "of the slowest rank"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_staging_traffic_comes_before_blocks_beside_a_candidate_on_the_cpu(
    gang: ReferenceGang, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    caused: list[tuple[Sequence[int], int]] = []
    monkeypatch.setattr(gang._staging_traffic, "cause", lambda *of: caused.append(of))
    gang.device = device
    gang.run(4, "native")
    gang.run_null_block(RunNullBlock(5, "waiting", 0))
    assert not caused
    gang.run(4, "native", handovers=True, staged_bytes=4096)
    assert caused == ([([7, 8], 4096)] if device == "cpu" else [])


def test_claims_go_to_their_rank_and_checks_come_back(fake: FakeGang, gang: ReferenceGang) -> None:
    checks = [RankCheck(rank=rank, outputs=1, elements=2, elements_right=2, mismatches=()) for rank in range(2)]
    fake.answer = lambda rank: Compared(checks[rank].model_dump(mode="json"))
    claims = [[(None,)], [(Claim((2,), "int64"),)]]
    assert gang.compare(claims, "python") == checks
    assert fake.orders == [CompareOutputs(tuple(of_rank), "python") for of_rank in claims]


@pytest.mark.parametrize(
    ("replies", "captured", "sound"),
    [
        ((Captured(True, True), Captured(True, True)), True, True),
        ((Captured(False, True), Captured(True, True)), False, True),
        ((Captured(False, False), Captured(False, True)), False, False),
    ],
)
def test_a_gang_whose_capture_cost_a_context_is_of_no_further_use(
    fake: FakeGang, gang: ReferenceGang, replies: tuple[Captured, ...], captured: bool, sound: bool
) -> None:
    fake.answer = lambda rank: replies[rank]
    assert gang.capture(4, "python") is captured
    assert (gang.is_sound, fake.closed) == (sound, not sound)
    assert fake.orders == [CaptureGraphs(4, "python")] * 2


def test_ranks_wait_but_shortly_for_one_that_cannot_register_its_memory(fake: FakeGang, gang: ReferenceGang) -> None:
    fake.answer = lambda _: Captured(True, True)
    assert gang.capture(4, "native", registered=True)
    assert fake.orders == [CaptureGraphs(4, "native", registered=True)] * 2 and fake.timeout_s < 120


def test_a_fallen_gang_is_a_fault_of_this_machine(fake: FakeGang, gang: ReferenceGang) -> None:
    fake.fails = True
    with pytest.raises(InfrastructureError, match=r"reference gang failed: rank 1 was killed by SIGBUS\nTraceback of"):
        gang.stage([StageInputs()] * 2)
    assert not gang.is_sound and fake.closed and not gang.has_staged
    fake.orders.clear()
    gang.release()
    assert fake.orders == [], "it holds nothing any more"


@pytest.mark.parametrize(("killed", "kind"), [(False, ReferenceOutOfMemory), (True, InfrastructureError)])
def test_a_gang_without_memory_says_so(
    fake: FakeGang, gang: ReferenceGang, monkeypatch: pytest.MonkeyPatch, killed: bool, kind: type[InfrastructureError]
) -> None:
    """A candidate may have taken it; what the kernel ended for main memory may be anybody's doing."""

    def fail(*_: object, **__: object) -> None:
        raise GangFailed(Failure.OUT_OF_MEMORY, 1, "rank 1: CUDA out of memory", killed=killed)

    monkeypatch.setattr(fake, "exchange", fail)
    with pytest.raises(InfrastructureError) as caught:
        gang.stage([StageInputs()] * 2)
    assert type(caught.value) is kind and not gang.is_sound


def test_inputs_are_made_while_something_else_happens(
    fake: FakeGang, gang: ReferenceGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replies are taken in whatever happens: an order without them would leave the gang of no further use."""
    log: list[str] = []
    monkeypatch.setattr(fake, "send", lambda orders: log.append(f"send {len(orders)}"), raising=False)
    monkeypatch.setattr(fake, "collect", lambda expect, *, timeout_s: log.append(f"collect {expect.__name__}"))
    plan = Workload(find_problem("AllReduce"), "tiny", 2, "bfloat16", "robust", b"key", 0, 0).plan([0, 1], True, 0)
    with gang.making(plan, timed=True):
        log.append("meanwhile")
    with pytest.raises(GangFailed), gang.making(plan, timed=True):
        raise GangFailed(Failure.RUNTIME_ERROR, 0, "a candidate's")
    assert log == ["send 2", "meanwhile", "collect Ready", "send 2", "collect Ready"] and gang.is_sound


def test_a_block_that_fails_is_a_fault_of_this_machine(fake: FakeGang, gang: ReferenceGang) -> None:
    fake.fails = True
    with pytest.raises(InfrastructureError, match="the reference gang failed"):
        gang.run(1, "python")
    assert not gang.is_sound


def test_a_gang_that_ctrl_c_left_in_the_middle_of_an_order_gets_no_other_one(
    fake: FakeGang, gang: ReferenceGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while inputs were staged: frozen or waiting ranks were asked to let go of heaps, until the deadline."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, "exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gang.stage([StageInputs()] * 2)
    assert not gang.is_sound and fake.closed
    gang.release()  # asks nothing


def test_a_sound_gang_lets_go_of_what_it_holds(fake: FakeGang, gang: ReferenceGang) -> None:
    gang.release()
    assert fake.orders == [Release()] * 2
