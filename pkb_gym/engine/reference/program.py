"""The rank program of a reference gang: makes the inputs, runs the baseline, compares. It never sees candidate code.

Its orders are in `reference/orders.py`.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from pkb_gym.engine.compare.call_specs import call_runs
from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.check import compare_all
from pkb_gym.engine.compare.layout import Workload, delivered_leaves
from pkb_gym.engine.problem import Tensor, TensorList
from pkb_gym.engine.problem.drawn_together import DrawnTogether
from pkb_gym.engine.problem.tensors import argument_leaves, flatten_value
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.engine.problem.values import tensors_made_on
from pkb_gym.engine.rankside.devices import Device, make_device
from pkb_gym.engine.rankside.failures import OUT_OF_MEMORY, kind_of
from pkb_gym.engine.rankside.process_groups import ProcessGroups
from pkb_gym.engine.rankside.python import execute, make_argument
from pkb_gym.engine.reference.baseline_blocks import BaselineBlocks, OwnHandovers
from pkb_gym.engine.reference.block_conditioner import make_conditioner
from pkb_gym.engine.reference.bound_block import BoundBlock, ResultsByName
from pkb_gym.engine.reference.candidate_block import (
    CandidateBlock,
    CandidateHandovers,
    PlainBlock,
    ServedBlock,
    stage_inputs,
)
from pkb_gym.engine.reference.conductor import Conductor
from pkb_gym.engine.reference.delivery_time import delivery_us
from pkb_gym.engine.reference.dumped_outputs import dump
from pkb_gym.engine.reference.gpu_pulses import GpuPulses
from pkb_gym.engine.reference.handover_script import null_script
from pkb_gym.engine.reference.handover_server import HandoverLibrary
from pkb_gym.engine.reference.kept_block import keep_rank
from pkb_gym.engine.reference.orders import (
    AllocateHeaps,
    BlockEnded,
    BlockSettled,
    Captured,
    CaptureGraphs,
    ClearCandidateHeap,
    Compared,
    CompareOutputs,
    ConductCalls,
    DeliveryTimed,
    DumpTensors,
    EndBlock,
    KeepBlock,
    MakeInputs,
    MapHeaps,
    Ready,
    Release,
    ReplayGraphs,
    RunBaseline,
    ServeHandovers,
    ServeNullBlock,
    Staged,
    StageInputs,
    Start,
    TakeWorkload,
    TimeDelivery,
    WarmUp,
)
from pkb_gym.engine.reference.preemption import GpuPreemption, Preemption
from pkb_gym.engine.reference.rank_heaps import RankHeaps
from pkb_gym.engine.reference.tensor_copies import TensorCopies
from pkb_gym.engine.wire.arguments import unroll
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.messages import WireMessage
from pkb_gym.engine.wire.orders import Claims, Dialect, Failed, RunNullBlock


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one evaluator until the connection ends."""
    start, _, (rendezvous, *libraries) = wire.receive_with_fds(Start)
    device = make_device(start.device, rank, world_size, start.threads, start.ranks_per_gpu)
    device.prepare()  # before the process group starts its threads, which inherit the processors
    device.join(f"file:///proc/self/fd/{rendezvous}")
    dist.barrier()
    gc.collect()
    gc.freeze()  # the collection before each block then passes over what was imported here
    wire.send(Ready())
    own = processors_of_blocks(start.timed_processors)
    reference = ReferenceRank(wire, device, rank, world_size, [f"/proc/self/fd/{fd}" for fd in libraries], own)
    while True:
        order, _, fds = wire.receive_with_fds(*reference.orders)
        try:
            reply, reply_fds = reference.carry_out(order, fds)
        except Exception as error:  # noqa: BLE001  # the evaluator reports it as infrastructure, not as the candidate's
            kind = kind_of(error)
            reply, reply_fds = Failed(kind if kind == OUT_OF_MEMORY else "infrastructure", traceback.format_exc()), ()
        wire.send(reply, fds=reply_fds)


def processors_of_blocks(timed: Collection[int]) -> list[int]:
    """Those of this process's processors that only blocks run on; all of them where it has none of those."""
    own = sorted(os.sched_getaffinity(0))
    return [processor for processor in own if processor in timed] or own


class ReferenceRank:
    """One reference rank's state for the evaluation in hand.

    Args:
        wire: Connection to the evaluator.
        device: Device of this rank, with its process group.
        rank: Number of this rank.
        world_size: Number of ranks.
        libraries: Paths of the compiled handovers: the server, and on GPUs the rank's side and the sampler of outputs.
        processors: Processors on which its blocks may run.

    Attributes:
        orders: Kinds of orders that it carries out.
    """

    def __init__(
        self,
        wire: Wire,
        device: Device,
        rank: int,
        world_size: int,
        libraries: Sequence[str],
        processors: Sequence[int],
    ) -> None:
        self._wire, self._device, self._rank, self._world_size = wire, device, rank, world_size
        server = HandoverLibrary(libraries[0])
        rank_library, sampler = (*libraries[1:], None, None)[:2]
        self._own_handovers = OwnHandovers(device, server, rank_library)
        self._candidate_handovers = CandidateHandovers(server, sampler)
        self._processors = processors
        self._conditioner = make_conditioner(device.name, processors)
        self._baseline = BaselineBlocks(wire, device, self._own_handovers, self._conditioner)
        self._groups = ProcessGroups(rank)
        self._solutions: dict[str, Any] = {}
        self._heaps = RankHeaps(device)
        self._workload: Workload | None = None
        self._solution: Callable[..., object] | None = None
        self._scratch_bytes = self._segment_bytes = 0
        self._bound: BoundBlock | None = None
        self._expected: list[ResultsByName] = []
        self._candidate_block: CandidateBlock = PlainBlock()
        self._handlers: Mapping[type[WireMessage], Callable[[Any], WireMessage]] = {
            MakeInputs: self._make_inputs,
            StageInputs: self._stage_inputs,
            ServeHandovers: self._serve_handovers,
            ServeNullBlock: self._serve_null_block,
            ConductCalls: self._conduct_calls,
            EndBlock: self._end_block,
            WarmUp: self._warm_up,
            TimeDelivery: self._time_delivery,
            RunBaseline: self._run_baseline,
            RunNullBlock: self._run_null_block,
            CaptureGraphs: self._capture_graphs,
            ReplayGraphs: self._baseline.replay,
            KeepBlock: self._keep_block,
            DumpTensors: self._dump_tensors,
            CompareOutputs: self._compare_outputs,
            Release: self._release,
        }
        self._taking_fds: Mapping[type[WireMessage], Callable[[Any, list[int]], WireMessage]] = {
            MapHeaps: self._map_heaps,
            ClearCandidateHeap: self._clear_candidate_heap,
            TakeWorkload: self._take_workload,
        }
        self.orders: tuple[type[WireMessage], ...] = (AllocateHeaps, *self._taking_fds, *self._handlers)

    def carry_out(self, order: WireMessage, fds: list[int]) -> tuple[WireMessage, Sequence[int]]:
        """Carries out one order; its reply, and the descriptors that go with it."""
        if isinstance(order, AllocateHeaps):
            return Ready(), self._allocate_heaps(order)
        if type(order) in self._taking_fds:
            return self._taking_fds[type(order)](order, fds), ()
        return self._handlers[type(order)](order), ()

    # ---- heaps and workloads ----------------------------------------------------------------------------------------

    def _allocate_heaps(self, order: AllocateHeaps) -> list[int]:
        """Frees the heaps that there were, allocates new ones; returns their descriptors."""
        self._heaps.close()
        self._conditioner.release()
        self._device.release()
        return self._heaps.allocate(order.segment_bytes)

    def _map_heaps(self, order: MapHeaps, fds: list[int]) -> Ready:
        self._heaps.map(fds, order.segment_bytes)
        self._own_handovers.map(self._heaps.own, self._world_size)
        return Ready()

    def _clear_candidate_heap(self, _: ClearCandidateHeap, fds: list[int]) -> Ready:
        self._heaps.clear_candidate(fds[0])
        return Ready()

    def _take_workload(self, order: TakeWorkload, fds: list[int]) -> Ready:
        self._forget()
        self._candidate_handovers.take(fds)
        self._workload = order.workload.load()
        self._scratch_bytes, self._segment_bytes = order.scratch_bytes, order.segment_bytes
        if order.source not in self._solutions:
            module = ModuleType("reference")
            execute(order.source, module, "reference.py")
            self._solutions[order.source] = module.solution
        self._solution = self._solutions[order.source]
        return Ready()

    def _release(self, _: Release) -> Ready:
        self._forget()
        self._heaps.release()
        self._conditioner.release()
        self._device.trim()
        return Ready()

    def _forget(self) -> None:
        self._bound = None
        self._expected = []
        self._baseline.forget()
        self._candidate_block = PlainBlock()
        self._candidate_handovers.close()

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def _make_inputs(self, order: MakeInputs) -> Ready:
        """Draws this rank's inputs of a block and binds the baseline's arguments to them."""
        assert self._workload is not None and self._solution is not None
        problem = self._workload.problem
        plan = self._workload.plan(
            order.trials, order.timed, self._scratch_bytes, self._segment_bytes, order.offsets, order.recurrences
        )
        self._bound, self._expected = None, []
        together = DrawnTogether() if order.timed and not self._workload.timed_axes_vary else None
        copies = TensorCopies()
        for planned in plan.sets:
            ax = planned.axes[self._rank]
            key = self._workload.trial_key(planned.trial, order.timed, planned.recurrence)
            drawn = make_inputs(problem, ax, key, self._workload.protocol, self._device.torch_device, together)
            for arg, value in zip(problem.data_args, drawn, strict=True):
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                    copies.add(self._heaps.own.tensor(planned.leaves[self._rank][leaf.name].slot), tensor)
        copies.make()
        if together is not None:
            together.forget()
        groups = [self._groups.of(partition) for partition in plan.partitions]
        calls = unroll(call_runs(problem, plan, self._rank, "python"))
        arguments = []
        for call in calls:
            values = [make_argument(self._heaps.own.tensor, argument, groups) for argument in call.arguments]
            arguments.append([_private(arg, value) for arg, value in zip(problem.args, values, strict=True)])
        seed = self._workload.trial_key(order.trials[0], order.timed).derive_seed("handover", self._rank)
        self._bound = BoundBlock(problem, plan, self._rank, self._heaps.own, calls, arguments, self._solution, seed)
        self._device.synchronize()  # rules read other ranks' inputs, once the evaluator has all of their replies
        return Ready()

    def _block_in_hand(self) -> BoundBlock:
        assert self._bound is not None
        return self._bound

    # ---- blocks of the candidate ------------------------------------------------------------------------------------

    def _stage_inputs(self, _: StageInputs) -> Staged:
        idle_us = self._stage_whole_inputs()
        self._candidate_block = PlainBlock()
        return self._staged(idle_us)

    def _serve_handovers(self, order: ServeHandovers) -> Staged:
        idle_us = self._stage_whole_inputs()
        block = self._block_in_hand()
        script = replace(block.script.late_by(order.delays_us), takes_outputs=order.takes_outputs)
        pulses = GpuPulses(self._device.torch_device, order.pulses_us) if order.pulses_us else None
        is_disturbed = pulses is not None or any(order.delays_us)
        sampling = None if order.takes_outputs else self._candidate_handovers.sampling(block, is_disturbed=is_disturbed)
        return self._served(ServedBlock(block, script, self._heaps.candidate, pulses, sampling), idle_us)

    def _serve_null_block(self, order: ServeNullBlock) -> Staged:
        idle_us = self._conditioner.answer_us()
        block = self._block_in_hand()
        script = null_script(block.plan.sets[0], order.calls)
        return self._served(ServedBlock(block, script, self._heaps.candidate), idle_us)

    def _served(self, block: ServedBlock, idle_us: float | None) -> Staged:
        staged = self._staged(idle_us)
        server = self._conditioner.server_processor
        taken = {server, *(staged.processors or ())}
        others = [processor for processor in self._processors if processor not in taken]
        block.serve(self._candidate_handovers, server, others)
        self._candidate_block = block
        return staged

    def _conduct_calls(self, order: ConductCalls) -> BlockEnded:
        block = self._block_in_hand()
        handovers = self._candidate_handovers
        conductor = Conductor(
            block,
            order.calls,
            self._world_size,
            self._heaps.candidate,
            self._device,
            handovers.fds,
            handovers.interruptions,
            self._preemption(),
        )
        idle_us = self._conditioner.answer_us()
        conductor.stage()
        self._wire.send(self._staged(idle_us))
        conductor.conduct(self._wire)
        self._wire.receive(EndBlock)
        return conductor.end()

    def _preemption(self) -> Preemption | None:
        if self._device.name == "cuda":
            return GpuPreemption(self._device.torch_device)
        return self._candidate_handovers.stopped_process

    def _end_block(self, _: EndBlock) -> BlockEnded:
        ended = self._candidate_block.end()
        self._device.synchronize()
        self._candidate_block = PlainBlock()
        return ended

    def _stage_whole_inputs(self) -> float | None:
        """Returns what the device took to answer just before; see `Staged`."""
        idle_us = self._conditioner.answer_us()
        block = self._block_in_hand()
        stage_inputs(block.plan, block.heap, self._heaps.candidate)
        return idle_us

    def _staged(self, idle_us: float | None) -> Staged:
        self._conditioner.flush_cache()
        self._device.synchronize()
        return Staged(idle_us, self._conditioner.choose_processors())

    # ---- blocks of the baseline -------------------------------------------------------------------------------------

    def _run_baseline(self, order: RunBaseline) -> BlockSettled:
        settled, self._expected = self._baseline.run(self._block_in_hand(), order)
        return settled

    def _run_null_block(self, order: RunNullBlock) -> BlockSettled:
        return self._baseline.run_null_block(self._block_in_hand(), order)

    def _capture_graphs(self, order: CaptureGraphs) -> Captured:
        return self._baseline.capture(self._block_in_hand(), order)

    def _warm_up(self, order: WarmUp) -> Ready:
        """Runs the baseline over and over on the block's inputs; in-place arguments evolve meanwhile."""
        block = self._block_in_hand()
        for call in range(order.calls):
            block.call(call % len(block.arguments))
        self._device.synchronize()
        return Ready()

    def _time_delivery(self, order: TimeDelivery) -> DeliveryTimed:
        return DeliveryTimed(delivery_us(self._block_in_hand(), order.dialect, self._device.synchronize))

    # ---- comparison -------------------------------------------------------------------------------------------------

    def _keep_block(self, order: KeepBlock) -> Ready:
        keep_rank(Path(order.folder), self._block_in_hand(), self._expected, order.calls)
        return Ready()

    def _dump_tensors(self, order: DumpTensors) -> Ready:
        for call, tensor in zip(order.calls, order.tensors, strict=True):
            block, theirs = self._block_in_hand(), self._heaps.candidate
            dump(Path(order.folder), block, theirs, self._expected[call], call, tensor)
        return Ready()

    def _compare_outputs(self, order: CompareOutputs) -> Compared:
        with tensors_made_on(self._device.torch_device):
            check = compare_all(self._rank, self._compared_calls(order.claims, order.dialect))
        return Compared(check.model_dump(mode="json"))

    def _compared_calls(self, claims: Sequence[Claims], dialect: Dialect) -> Iterator[Call]:
        assert self._workload is not None
        block = self._block_in_hand()
        for planned, of_call, expected in zip(block.plan.sets, claims, self._expected, strict=False):
            leaves = delivered_leaves(block.problem, planned.axes[self._rank], dialect)
            yield Call(
                block.problem,
                planned,
                self._rank,
                protocol=self._workload.protocol,
                expected=expected,
                reference_heap=block.heap,
                candidate_heap=self._heaps.candidate,
                claims={leaf.name: claim for leaf, claim in zip(leaves, of_call, strict=False)},
            )


def _private(arg: object, value: Any) -> Any:
    """A copy of what the baseline may overwrite, so that the inputs stay as they were made."""
    if isinstance(arg, TensorList) and arg.mutable:
        return [None if tensor is None else tensor.clone() for tensor in value]
    return value.clone() if isinstance(arg, Tensor) and arg.mutable and value is not None else value
