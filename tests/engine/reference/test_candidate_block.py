"""A served block whose outputs are taken away after their call, in main memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pkb_gym.engine.compare.layout import BlockPlan, Workload, placed_results
from pkb_gym.engine.compare.poison import POISON
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.handover import build_handovers
from pkb_gym.engine.gangs.handover_ends import HandoverLibraries
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.rankside.devices import CpuDevice
from pkb_gym.engine.rankside.handover import WaitingHandover
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.reference.bound_block import BoundBlock
from pkb_gym.engine.reference.candidate_block import CandidateHandovers, ServedBlock, stage_inputs
from pkb_gym.engine.reference.handover_script import write_script
from pkb_gym.engine.reference.handover_server import HandoverLibrary
from pkb_gym.engine.reference.orders import BlockEnded, LateOutput
from pkb_gym.problems.catalogue import find_problem

PROBLEM = find_problem("AllReduce")
CALLS = 3


@pytest.fixture(scope="module")
def handovers() -> Iterator[HandoverLibraries]:
    built = build_handovers("cpu", CompileCache.in_folder(None))
    yield built
    built.close()


class Rank:
    """The rank of a block, and what its outputs hold."""

    def __init__(self) -> None:
        workload = Workload(PROBLEM, "tiny", 1, "float32", "robust", b"key", 0, 0)
        self.plan: BlockPlan = workload.plan(range(CALLS), True, 8192)
        self.mine, self.heap = (
            Heap(sealed_memory("test", self.plan.end), self.plan.end, 1, 0) for _ in ("reference", "candidate")
        )

    def output(self, call: int):
        """The bytes of a call's output."""
        ((_, leaf),) = placed_results(PROBLEM, self.plan.sets[call], 0)
        return self.heap.bytes()[leaf.offset : leaf.offset + leaf.leaf.capacity_bytes]

    def run(self, handovers: HandoverLibraries, late_call: int | None = None) -> BlockEnded:
        """Runs the block; output `c` is c + 1 everywhere, and one comes after the next call has begun."""
        bound = BoundBlock(PROBLEM, self.plan, 0, self.mine, [], [], lambda: None, 5)
        stage_inputs(self.plan, self.mine, self.heap)
        script = replace(write_script(PROBLEM, self.plan, 0, self.mine, bound.seed), takes_outputs=True)
        block = ServedBlock(bound, script, self.heap)
        trusted = CandidateHandovers(HandoverLibrary(f"/proc/self/fd/{handovers.reference_fds[0]}"))
        trusted.take([os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2)])
        handover = WaitingHandover(CpuDevice(0, 1, 1), *trusted.fds)
        block.serve(trusted, -1)
        handover.cross()
        for call in range(CALLS):
            self.output(call).fill_(call + 1)
            handover.cross()
            assert (self.output(call) == POISON).any(), "a peer could still read all of it"
            if call == late_call:
                self.output(call).fill_(call + 1)
        ended = block.end()
        trusted.close()
        return ended


def test_outputs_are_compared_as_they_were_when_their_call_ended(handovers: HandoverLibraries) -> None:
    rank = Rank()
    ended = rank.run(handovers)
    assert ended.complete and ended.late == ()
    for call in range(CALLS):
        assert set(rank.output(call).tolist()) == {call + 1}


def test_an_output_that_is_written_after_its_call_is_late(handovers: HandoverLibraries) -> None:
    """The same bytes again: only what was taken away shows it."""
    assert Rank().run(handovers, late_call=1).late == (LateOutput(1, "out"),)
