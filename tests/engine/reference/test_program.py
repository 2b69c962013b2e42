"""What a reference rank does, in which order; its wire, device and conditioner are stand-ins, its heaps real."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from pkb_gym.engine.compare.layout import BlockPlan, Workload
from pkb_gym.engine.compare.poison import POISON
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.handover import build_handovers
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.reference import program as reference
from pkb_gym.engine.reference.candidate_block import CandidateHandovers
from pkb_gym.engine.reference.handover_script import Script
from pkb_gym.engine.reference.orders import (
    BlockEnded,
    BlockFinished,
    BlockSettled,
    EndBlock,
    MakeInputs,
    MapHeaps,
    Ready,
    Release,
    ServeHandovers,
    Staged,
    StageInputs,
    TakeWorkload,
)
from pkb_gym.engine.reference.program import ReferenceRank
from pkb_gym.engine.reference.workload_spec import WorkloadSpec
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import Armed, Go, RunNullBlock
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")
SCRATCH_BYTES = 8192


class Machine:
    """Wire, device and conditioner of a rank; logs their calls, in order."""

    name, torch_device, server_processor = "cpu", "cpu", 0

    def __init__(self) -> None:
        self.log: list[str] = []
        self.heaps: list[Heap] = []

    def send(self, message: WireMessage) -> None:
        self.log.append(f"send {type(message).__name__}")

    def receive(self, kind: type[WireMessage]) -> None:
        self.log.append(f"receive {kind.__name__}")

    def heap(self, fds: Sequence[int], segment_bytes: int) -> Heap:
        self.heaps.append(Heap(fds[0], segment_bytes, 1, 0))
        return self.heaps[-1]

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def release(self) -> None:
        self.log.append("release")

    def trim(self) -> None:
        self.log.append("trim")

    def answer_us(self) -> float:
        self.log.append("answer")
        return 20.0

    def flush_cache(self) -> None:
        self.log.append("flush cache")

    def choose_processors(self) -> tuple[int, ...]:
        self.log.append("choose processors")
        return (3,)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(reference, "make_conditioner", lambda *_: machine)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: machine.log.append("barrier"))
    return machine


def test_blocks_run_on_processors_that_nothing_else_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference.os, "sched_getaffinity", lambda _: {7, 4, 5, 6})
    assert reference.processors_of_blocks((5, 4, 0, 1)) == [4, 5]
    assert reference.processors_of_blocks((0, 1)) == [4, 5, 6, 7], "a rank that shares another's GPU"
    assert reference.processors_of_blocks(()) == [4, 5, 6, 7], "a machine that is not divided"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Path of the compiled server of handovers."""
    libraries = build_handovers("cpu", CompileCache.in_folder(None))
    yield f"/proc/self/fd/{libraries.reference_fds[0]}"
    libraries.close()


@pytest.fixture
def rank(machine: Machine, server: str) -> ReferenceRank:
    return ReferenceRank(machine, machine, 0, 1, [server], [0])  # type: ignore[arg-type]


def take(rank: ReferenceRank, calls: int) -> BlockPlan:
    """Gives it inputs of so many calls; the plan of the block."""
    workload = Workload(PROBLEM, "tiny", 1, "float32", "robust", b"key", 0, 0)
    segment_bytes = workload.plan(range(calls), True, SCRATCH_BYTES).end
    fds = [sealed_memory("test", segment_bytes) for _ in range(2)]
    source = Path(PROBLEM.declared_in).with_name("reference.py").read_text(encoding="utf-8")
    assert rank.carry_out(MapHeaps(segment_bytes), fds) == (Ready(), ())
    eventfds = [os.eventfd(0), os.eventfd(0)]
    rank.carry_out(TakeWorkload(WorkloadSpec.of(workload), source, SCRATCH_BYTES, segment_bytes), eventfds)
    rank.carry_out(MakeInputs(tuple(range(calls)), True), [])
    return workload.plan(range(calls), True, SCRATCH_BYTES, segment_bytes)


def test_processors_are_chosen_last_of_all_before_the_gate(machine: Machine, rank: ReferenceRank) -> None:
    take(rank, 1)
    machine.log.clear()
    settled, _ = rank.carry_out(RunNullBlock(0, "none", 0), [])
    assert isinstance(settled, BlockSettled) and settled.idle_us == 20.0 and settled.host_ns > 0
    before = ["barrier", "answer", "flush cache", "synchronize", "choose processors"]
    gate = [f"send {Armed.__name__}", f"receive {Go.__name__}"]
    assert machine.log == [*before, *gate, "synchronize", f"send {BlockFinished.__name__}"]


def test_staging_copies_inputs_poisons_outputs_and_names_the_processors(machine: Machine, rank: ReferenceRank) -> None:
    plan = take(rank, 3)
    machine.log.clear()
    assert rank.carry_out(StageInputs(), []) == (Staged(20.0, (3,)), ())
    assert (machine.log[0], machine.log[-1]) == ("answer", "choose processors")
    mine, theirs = machine.heaps
    seen = []
    for planned in plan.sets:
        for name, placed in planned.leaves[0].items():
            if placed.offset < planned.outputs_offset:
                assert torch.equal(theirs.tensor(placed.slot), mine.tensor(placed.slot)), name
                seen.append(mine.tensor(placed.slot).clone())
            else:
                assert (theirs.tensor(placed.slot).view(torch.uint8) == POISON).all(), name
    assert len(seen) == 3 and not torch.equal(seen[0], seen[1]), "each call has inputs of its own"
    assert rank.carry_out(EndBlock(), []) == (BlockEnded(complete=True, late=()), ())
    machine.log.clear()
    assert rank.carry_out(Release(), []) == (Ready(), ())
    assert machine.log == ["release", "trim"], "of the conditioner, and of the device"


def test_outputs_that_are_taken_away_are_not_sampled(rank: ReferenceRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample would differ from what is left of them, and an honest rank be accused."""
    take(rank, 1)
    sampled: list[bool] = []
    monkeypatch.setattr(CandidateHandovers, "sampling", lambda *_, **__: sampled.append(True))
    scripts: list[Script] = []
    monkeypatch.setattr(CandidateHandovers, "serve", lambda _, script, *__: scripts.append(script))
    for takes_outputs in (False, True):
        rank.carry_out(ServeHandovers(takes_outputs=takes_outputs), [])
    assert [script.takes_outputs for script in scripts] == [False, True] and sampled == [True]
