"""The evaluator's handle on the process that emulates a candidate's ranks; its other end is `rankside/emulated.py`.

It takes the place of a `CandidateGang`: the same blocks on the same heap, conducted by the same reference gang.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import Self

from pkb_gym.engine.compare.call_specs import call_runs
from pkb_gym.engine.compare.layout import BlockPlan, SetPlan, placed_results
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.candidate_gang import PREPARE_TIMEOUT_S, BlockSetting, Job
from pkb_gym.engine.gangs.confinement import Confinement
from pkb_gym.engine.gangs.crash_trace import traces_of, without_traces
from pkb_gym.engine.gangs.failure_attribution import GangFailed
from pkb_gym.engine.gangs.gang import Gang
from pkb_gym.engine.gangs.handover_ends import HandoverEnds
from pkb_gym.engine.gangs.heaps import SymmetricHeap, memory_file
from pkb_gym.engine.gangs.rank_processes import Processors
from pkb_gym.engine.gangs.untrusted_report import limited
from pkb_gym.engine.gangs.zygote import Zygote
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import ITEMSIZE
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.engine.problem.tensors import output_leaves
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.feedback import Failure
from pkb_gym.engine.support.dynamic_symbols import dynamic_symbols
from pkb_gym.engine.wire.emulated_orders import (
    BindRanks,
    CallMemory,
    LoadCopies,
    NamedTensor,
    OpenWorld,
    RanksDone,
    RunRanks,
    Schedule,
    WorldOpened,
)
from pkb_gym.engine.wire.orders import Bound, Claims, Dialect, Loaded

LOAD_TIMEOUT_S = 120.0
GRACE_S = 30.0
"""Seconds between the deadline that the emulator keeps itself, and the end of its process."""

EMULATOR_BYTES = 6 << 30
"""Address space of the emulator beside what ranks allocate: threads, shadow memory of the detector."""

_LACKING = re.compile(r"the emulated driver has no (cu\w{1,80}): its address is null")
"""What the emulator prints (`src/runtime_cuda_driver.cpp`): a process that calls a null pointer says nothing more."""

MAX_CAUSES = 4
"""Findings of the detector that are named before a fault, which they may have caused, at most."""

TOGETHER = Schedule("together", 0)

_NAMED = {
    failure.value: failure
    for failure in (
        Failure.DEADLOCK,
        Failure.TIMEOUT,
        Failure.LOAD_ERROR,
        Failure.OUT_OF_MEMORY,
        Failure.WRONG_SHAPE_OR_DTYPE,
        Failure.INTEGRITY,
    )
}
"""Kinds of faults that are reported as such; all others are runtime errors."""


class EmulatedGang:
    """One process that runs all ranks of one candidate; a context manager that ends it.

    Args:
        zygote: Sandboxed zygote.
        world_size: Number of ranks, 1 to 16.
        emulator: Compiled emulator.
        detect_races: Whether each access is checked for what orders it.
        strict: Whether that is done to the letter of PTX's memory model.
        starts_libraries: Whether the candidate uses NVSHMEM or NCCL.

    Attributes:
        timeout_s: Deadline of the next order in seconds.
        done: Report on the last block; None before the first.
    """

    def __init__(
        self,
        zygote: Zygote,
        world_size: int,
        emulator: bytes,
        *,
        detect_races: bool = False,
        strict: bool = False,
        starts_libraries: bool = False,
    ) -> None:
        self.timeout_s = PREPARE_TIMEOUT_S
        self.done: RanksDone | None = None
        self._world_size, self._emulator = world_size, emulator
        self._detect_races, self._strict, self._starts_libraries = detect_races, strict, starts_libraries
        self._epoch = 1
        self._problem: Problem | None = None
        self._heap: SymmetricHeap | None = None
        self._gang = Gang(zygote, ".emulated", 1, Confinement(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gang.close()

    @property
    def output(self) -> str:
        """The tail of what the ranks wrote; the emulator puts the rank in front of each line."""
        return re.sub(r"^rank 0: ", "", without_traces(self._gang.output), flags=re.MULTILINE)

    @property
    def pidfds(self) -> Sequence[int]:
        """Process descriptors of the ranks: none, since no rank has a process of its own."""
        return ()

    def output_of(self, rank: int) -> str:
        """Output of one rank: the place of its host code when it crashed."""
        return traces_of(self._gang.output_of(0), rank)

    def map_heap(
        self,
        dialect: Dialect,  # noqa: ARG002  # as `CandidateGang.map_heap`
        heap: SymmetricHeap,
        handovers: HandoverEnds,
    ) -> None:
        """Hands the process the heap that it shares with the reference gang, and each rank's end of the handovers.

        Raises:
            InfrastructureError: The emulator could not be started.
        """
        self._heap = heap
        emulator = memory_file("pkb-emulator", self._emulator)
        order = OpenWorld(
            self._world_size, heap.segment_bytes, self._detect_races, self._strict, self._starts_libraries
        )
        eventfds = [fd for pair in handovers.eventfds for fd in pair]
        try:
            self._gang.exchange([order], WorldOpened, timeout_s=LOAD_TIMEOUT_S, fds=(*heap.fds, emulator, *eventfds))
        except GangFailed as failed:
            raise InfrastructureError(f"the emulator could not be started: {failed}\n{self._gang.output}") from None
        finally:
            os.close(emulator)

    def load(self, job: Job, artifact: Artifact, source: str) -> None:  # noqa: ARG002  # as `CandidateGang.load`
        """Loads a copy of the candidate on each rank.

        Raises:
            GangFailed: The candidate could not be loaded.
        """
        assert artifact.binary is not None, "native sources alone are emulated"
        binary = with_emulated_names(artifact.binary)
        self._problem = job.problem
        memory_bytes = job.memory_bytes * self._world_size + EMULATOR_BYTES
        traced = job.stack_trace is not None
        order = LoadCopies(job.scratch_bytes, memory_bytes, cpp_signature(job.problem), traced)
        copies: list[int] = []
        try:
            while len(copies) < self._world_size:
                copies.append(memory_file("candidate", binary))
            if job.stack_trace is not None:
                copies.append(memory_file("pkb-stack-trace", job.stack_trace))
            self._gang.exchange([order], Loaded, timeout_s=LOAD_TIMEOUT_S, fds=copies)
        except GangFailed as failed:
            raise self._of_all(failed) from None
        finally:
            for fd in copies:
                os.close(fd)

    def bind(self, plan: BlockPlan) -> None:
        """Makes the arguments of a block.

        Raises:
            GangFailed: The process ended.
        """
        assert self._problem is not None
        problem, ranks = self._problem, range(self._world_size)
        runs = tuple(call_runs(problem, plan, rank, "native") for rank in ranks)
        calls = tuple(call_memory(problem, planned) for planned in plan.sets)
        order = BindRanks(runs, plan.partitions, calls, (plan.scratch_end, min(call.offset for call in calls)))
        try:
            self._gang.exchange([order], Bound, timeout_s=LOAD_TIMEOUT_S)
        except GangFailed as failed:
            raise self._of_all(failed) from None

    def run(
        self, sets: Sequence[int], stage: Callable[[], Processors | None], setting: BlockSetting
    ) -> tuple[int, list[Sequence[Claims]]]:
        """Calls the candidate on every rank, once on each of these sets; see `CandidateGang.run`.

        Raises:
            GangFailed: A rank failed, the deadline passed, or a report does not fit the calls.
        """
        order = RunRanks(tuple(sets), self._epoch, setting.schedule or TOGETHER, ceil(self.timeout_s))
        self._epoch += len(sets)

        def stage_here() -> None:
            stage()  # which processors are at full speed does not matter

        try:
            nanoseconds, (done,) = self._gang.run_block(
                [order], RanksDone, timeout_s=self.timeout_s + GRACE_S, stage=stage_here
            )
        except GangFailed as failed:
            raise self._of_all(failed) from None
        self.done = done = limited(done, self._world_size)
        if done.fault is not None:
            failure = _NAMED.get(done.fault.kind, Failure.RUNTIME_ERROR)
            causes = [finding.text for finding in done.findings if finding.finding_class != "benign"][:MAX_CAUSES]
            text = self._with_lacking(failure, "\n".join([*causes, done.fault.text]))
            raise GangFailed(failure, done.fault.rank, text)
        if len(done.claims) != self._world_size or any(len(claims) != len(sets) for claims in done.claims):
            raise GangFailed(Failure.INTEGRITY, None, f"a rank reported other calls than the {len(sets)} that it made")
        self._gang.processes.freeze()
        return nanoseconds, list(done.claims)

    def run_on(self, seconds: float) -> None:
        """Lets the frozen process go on for a while.

        Raises:
            GangFailed: The process cannot be frozen again.
        """
        self._gang.processes.thaw()
        time.sleep(seconds)
        self._gang.processes.freeze()

    def thaw(self) -> None:
        """Lets the process go on."""
        self._gang.processes.thaw()

    def kill(self) -> None:
        """Ends the process; its output stays."""
        self._gang.processes.kill()

    def processor_ticks(self) -> int:
        """Processor time so far, in clock ticks."""
        return self._gang.processes.processor_ticks()

    def loopback_bytes(self) -> int:
        """Bytes that ranks have sent each other by the network: they have none in one process."""
        return 0

    def frozen_segments(self) -> int:
        """TCP segments that frozen ranks have sent: they have no network in one process."""
        return 0

    def _with_lacking(self, failure: Failure, text: str) -> str:
        """A failure of host code, after the functions of the driver that it has asked the emulator for in vain."""
        names = dict.fromkeys(_LACKING.findall(self._gang.output))
        if failure is not Failure.RUNTIME_ERROR or not names:
            return text
        return f"the emulated driver has no {', '.join(names)}\n{text}"

    def _of_all(self, failed: GangFailed) -> GangFailed:
        """A failure of the process, which the gang takes for that of its only rank: the one whose host code ran."""
        ranks = range(self._world_size) if self._heap is not None else ()
        running = [rank for rank in ranks if self._heap is not None and "in call" in self._heap.place(rank)]
        rank = running[0] if len(running) == 1 else None
        who = "the process of all ranks" if rank is None else f"rank {rank}"
        from rank_emulator.symbol_names import original_names

        text = self._with_lacking(failed.failure, original_names(str(failed).replace("rank 0", who, 1)))
        return GangFailed(failed.failure, rank, text, killed=failed.killed)


def with_emulated_names(binary: bytes) -> bytes:
    """A candidate's library that finds the emulator's CUDA runtime alone.

    Raises:
        ELFError: It is no ELF file.
    """
    from rank_emulator.symbol_names import emulated_names

    symbols = dynamic_symbols(binary)
    if symbols is None:
        return binary
    return emulated_names(binary, (symbols.names_at + name for name, is_defined in symbols if not is_defined))


def call_memory(problem: Problem, planned: SetPlan) -> CallMemory:
    """The places of the tensors of a call, by name."""
    tensors = []
    for rank, (ax, placed) in enumerate(zip(planned.axes, planned.leaves, strict=True)):
        outputs = {leaf.name for out in problem.returned for leaf in output_leaves(out, ax)}
        results = {result.leaf.name for _, result in placed_results(problem, planned, rank)}
        tensors.append(
            tuple(
                NamedTensor(
                    name,
                    each.offset,
                    each.leaf.capacity_bytes,
                    ITEMSIZE[each.leaf.dtype],
                    is_output=name in outputs,
                    is_updated=name in results - outputs,
                )
                for name, each in placed.items()
                if each.leaf.capacity_bytes
            )
        )
    return CallMemory(planned.offset, planned.nbytes, tuple(tensors))
