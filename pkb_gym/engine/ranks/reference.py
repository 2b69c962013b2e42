"""The rank program of a reference gang: makes the inputs, runs the baseline, compares. It never sees candidate code.

See `reference_orders` for what it is ordered to do.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pkb_gym.engine.compare.call_specs import call_runs
from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.check import compare_all
from pkb_gym.engine.compare.layout import BlockPlan, Workload, delivered_leaves
from pkb_gym.engine.problem import ITEMSIZE, InPlace, Problem, Tensor, TensorList
from pkb_gym.engine.problem.tensors import argument_leaves, flatten_value, output_leaves
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.engine.ranks import graphs
from pkb_gym.engine.ranks.block_conditioner import make_conditioner
from pkb_gym.engine.ranks.candidate_block import CandidateBlock, PlainBlock, ServedBlock, stage_inputs
from pkb_gym.engine.ranks.conductor import Conductor
from pkb_gym.engine.ranks.handover_script import Script, null_script, put_lines, write_script
from pkb_gym.engine.ranks.handover_server import HandoverLibrary, HandoverServer
from pkb_gym.engine.ranks.reference_orders import (
    AllocateHeaps,
    BlockEnded,
    BlockFinished,
    BlockSettled,
    Captured,
    CaptureGraphs,
    ClearCandidateHeap,
    Compared,
    CompareOutputs,
    ConductCalls,
    EndBlock,
    MakeInputs,
    MapHeaps,
    Ready,
    Release,
    ReplayGraphs,
    RunBaseline,
    ServeHandovers,
    Staged,
    StageInputs,
    Start,
    TakeWorkload,
    WarmUp,
)
from pkb_gym.engine.rankside.arguments import CallSpec, Result, unroll
from pkb_gym.engine.rankside.devices import AnyHeap, Device, make_device
from pkb_gym.engine.rankside.handover import EnqueuedHandover, Handover, WaitingHandover
from pkb_gym.engine.rankside.messages import Message
from pkb_gym.engine.rankside.orders import Armed, Claims, Dialect, Failed, Go, RunNullBlock
from pkb_gym.engine.rankside.python import make_argument
from pkb_gym.engine.rankside.results import Delivery
from pkb_gym.engine.rankside.wire import Wire

if TYPE_CHECKING:
    from pkb_gym.engine.rankside.cuda_memory import Segment


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one evaluator until the connection ends."""
    start, _, (rendezvous, *libraries) = wire.receive_with_fds(Start)
    device = make_device(start.device, rank, world_size, start.threads)
    device.prepare()  # before the process group starts its threads, which inherit the processors
    device.join(f"file:///proc/self/fd/{rendezvous}")
    dist.barrier()
    gc.collect()
    gc.freeze()  # the collection before each block then passes over what was imported here
    wire.send(Ready())
    reference = ReferenceRank(wire, device, rank, world_size, [f"/proc/self/fd/{fd}" for fd in libraries])
    while True:
        order, _, fds = wire.receive_with_fds(*reference.orders)
        try:
            reply, reply_fds = reference.carry_out(order, fds)
        except Exception:  # noqa: BLE001  # the evaluator reports it as infrastructure, never as the candidate's failure
            reply, reply_fds = Failed("infrastructure", traceback.format_exc()), ()
        wire.send(reply, fds=reply_fds)


class ReferenceRank:
    """One reference rank's state for the evaluation in hand.

    Args:
        wire: to the evaluator.
        device: of this rank, with its process group.
        rank: number of this rank.
        world_size: number of ranks.
        libraries: paths of the compiled handovers: the server, and on GPUs the rank's side.

    Attributes:
        orders: kinds of orders that it carries out.
    """

    def __init__(self, wire: Wire, device: Device, rank: int, world_size: int, libraries: Sequence[str]) -> None:
        self._wire, self._device, self._rank, self._world_size = wire, device, rank, world_size
        self._handovers = HandoverLibrary(libraries[0])
        self._rank_library = libraries[1] if len(libraries) > 1 else None
        self._own_fds = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(2)]
        self._own_handover: Handover | None = None
        self._candidate_fds: list[int] = []
        self._candidate_sequence = 0
        self._block: CandidateBlock = PlainBlock()
        self._groups: dict[object, Any] = {}
        self._solutions: dict[str, Any] = {}
        self._mine: AnyHeap | None = None
        self._theirs: AnyHeap | None = None
        self._processors = sorted(os.sched_getaffinity(0))
        self._conditioner = make_conditioner(device.name, self._processors)
        self._segments: list[Segment] = []
        self._workload: Workload | None = None
        self._solution: Callable[..., object] | None = None
        self._scratch_bytes = self._segment_bytes = 0
        self._expected: list[dict[str, torch.Tensor]] = []
        self._arguments: list[list[Any]] = []
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._plan: BlockPlan | None = None
        self._calls: list[CallSpec] = []
        self._handlers: Mapping[type[Message], Callable[[Any], Message]] = {
            MakeInputs: self._make_inputs,
            StageInputs: self._stage_inputs,
            ServeHandovers: self._serve_handovers,
            ConductCalls: self._conduct_calls,
            EndBlock: self._end_block,
            WarmUp: self._warm_up,
            RunBaseline: self._run_baseline,
            RunNullBlock: self._run_null_block,
            CaptureGraphs: self._capture_graphs,
            ReplayGraphs: self._replay_graphs,
            CompareOutputs: self._compare_outputs,
            Release: self._release,
        }
        self._taking_fds: Mapping[type[Message], Callable[[Any, list[int]], Message]] = {
            MapHeaps: self._map_heaps,
            ClearCandidateHeap: self._clear_candidate_heap,
            TakeWorkload: self._take_workload,
        }
        self.orders: tuple[type[Message], ...] = (AllocateHeaps, *self._taking_fds, *self._handlers)

    def carry_out(self, order: Message, fds: list[int]) -> tuple[Message, Sequence[int]]:
        """Carries out one order; its reply, and the descriptors that go with it."""
        if isinstance(order, AllocateHeaps):
            return Ready(), self._allocate_heaps(order)
        if type(order) in self._taking_fds:
            return self._taking_fds[type(order)](order, fds), ()
        return self._handlers[type(order)](order), ()

    def _forget(self) -> None:
        self._expected = []
        self._arguments = []
        self._graphs = []
        self._plan = None
        self._calls = []
        self._block = PlainBlock()
        for fd in self._candidate_fds:
            os.close(fd)
        self._candidate_fds = []

    def _release(self, _: Release) -> Ready:
        self._forget()
        if self._device.name == "cpu":  # where the next evaluation brings heaps of its own
            self._mine = self._theirs = None
        self._give_memory_back()
        return Ready()

    def _give_memory_back(self) -> None:
        self._device.release()
        self._conditioner = make_conditioner(self._device.name, self._processors)

    def _allocate_heaps(self, order: AllocateHeaps) -> list[int]:
        """Frees the heaps that there were, allocates new ones; returns their descriptors."""
        from pkb_gym.engine.rankside.cuda_memory import Segment

        for heap in (self._mine, self._theirs):
            if heap is not None:
                heap.close()
        for segment in self._segments:
            segment.close()
        self._mine = self._theirs = None
        self._give_memory_back()
        self._segments = [Segment(order.segment_bytes, self._rank) for _ in range(2)]
        return [segment.fd for segment in self._segments]

    def _map_heaps(self, order: MapHeaps, fds: list[int]) -> Ready:
        half = len(fds) // 2
        self._mine = self._device.heap(fds[:half], order.segment_bytes)
        self._theirs = self._device.heap(fds[half:], order.segment_bytes)
        self._own_handover = self._make_handover(self._mine)
        if self._segments:
            self._zero_candidate_heap()
        return Ready()

    def _make_handover(self, heap: AnyHeap) -> Handover:
        """That between the baseline's calls, whose trusted side is a thread of this process."""
        if self._rank_library is None:
            return WaitingHandover(self._device, *self._own_fds)
        stream = self._device.stream or 0
        return EnqueuedHandover(self._rank_library, stream, heap.mailbox, heap.segment(self._rank))

    def _clear_candidate_heap(self, _: ClearCandidateHeap, fds: list[int]) -> Ready:
        assert self._theirs is not None
        self._theirs.replace_control(fds[0])
        self._zero_candidate_heap()
        return Ready()

    def _zero_candidate_heap(self) -> None:
        assert self._theirs is not None
        self._theirs.zero()
        self._device.synchronize()

    def _take_workload(self, order: TakeWorkload, fds: list[int]) -> Ready:
        self._forget()
        self._candidate_fds = fds
        self._candidate_sequence = 0
        self._workload = order.workload.load()
        self._scratch_bytes, self._segment_bytes = order.scratch_bytes, order.segment_bytes
        if order.source not in self._solutions:
            namespace: dict[str, Any] = {"__name__": "reference"}
            exec(compile(order.source, "reference.py", "exec"), namespace)
            self._solutions[order.source] = namespace["solution"]
        self._solution = self._solutions[order.source]
        return Ready()

    @property
    def _problem(self) -> Problem:
        assert self._workload is not None
        return self._workload.problem

    def _call(self, index: int) -> object:
        """Runs the baseline on the block's inputs of one call."""
        assert self._solution is not None
        return self._solution(*self._arguments[index])

    def _make_inputs(self, order: MakeInputs) -> Ready:
        """Draws this rank's inputs of a block and binds the baseline's arguments to them."""
        assert self._mine is not None and self._workload is not None
        plan = self._plan = self._workload.plan(order.trials, order.timed, self._scratch_bytes, self._segment_bytes)
        self._expected = []
        where = self._device.torch_device
        for planned in plan.sets:
            ax = planned.axes[self._rank]
            key = self._workload.trial_key(planned.trial, order.timed)
            with torch.device(where):  # of tensors that a problem's inputs make without saying where
                drawn = make_inputs(self._problem, ax, key, self._workload.protocol, where)
            for arg, value in zip(self._problem.data_args, drawn, strict=True):
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                    self._mine.tensor(planned.leaves[self._rank][leaf.name].slot).copy_(tensor)
        groups = [self._group(partition) for partition in plan.partitions]
        self._arguments = []
        self._calls = unroll(call_runs(self._problem, plan, self._rank, "python"))
        for call in self._calls:
            values = [make_argument(self._mine, argument, groups) for argument in call.arguments]
            pairs = zip(self._problem.args, values, strict=True)
            self._arguments.append([self._private(arg, value) for arg, value in pairs])
        self._device.synchronize()
        dist.barrier()  # rules read other ranks' inputs
        return Ready()

    def _private(self, arg: object, value: Any) -> Any:
        """A copy of what the baseline may overwrite, so that the inputs stay as they were made."""
        if isinstance(arg, TensorList) and arg.mutable:
            return [None if tensor is None else tensor.clone() for tensor in value]
        return value.clone() if isinstance(arg, Tensor) and arg.mutable and value is not None else value

    def _group(self, partition: tuple[tuple[int, ...], ...]) -> Any:
        if partition not in self._groups:
            for ranks in partition:
                group = dist.new_group(list(ranks))
                if self._rank in ranks:
                    self._groups[partition] = group
        return self._groups.get(partition)

    # ---- blocks of the candidate ------------------------------------------------------------------------------------

    def _stage_inputs(self, _: StageInputs) -> Staged:
        plan, mine, theirs = self._staged_heaps()
        idle_us = self._conditioner.answer_us()
        stage_inputs(plan, mine, theirs)
        self._block = PlainBlock()
        return self._staged(idle_us)

    def _serve_handovers(self, order: ServeHandovers) -> Staged:
        plan, mine, theirs = self._staged_heaps()
        idle_us = self._conditioner.answer_us()
        stage_inputs(plan, mine, theirs)
        script = write_script(self._problem, plan, self._rank, mine, self._script_seed(), order.delays_us)
        self._block = ServedBlock(self._problem, plan, self._rank, script, mine, theirs, self._serve_candidate)
        return self._staged(idle_us)

    def _serve_candidate(self, script: Script) -> HandoverServer:
        assert self._theirs is not None
        first = self._candidate_sequence + 1
        self._candidate_sequence += script.calls + 1
        if self._rank_library is None:
            return self._handovers.serve_on_cpu(script, self._theirs.segment(self._rank), *self._candidate_fds)
        return self._handovers.serve_on_gpu(script, self._theirs.mailbox, first)

    def _conduct_calls(self, order: ConductCalls) -> BlockEnded:
        plan, mine, theirs = self._staged_heaps()
        request_fd, reply_fd = self._candidate_fds
        conductor = Conductor(
            self._problem,
            plan.sets,
            order.calls,
            self._rank,
            self._world_size,
            mine,
            theirs,
            self._device,
            request_fd,
            reply_fd,
        )
        idle_us = self._conditioner.answer_us()
        conductor.stage()
        self._wire.send(self._staged(idle_us))
        conductor.conduct(self._wire)
        self._wire.receive(EndBlock)
        return conductor.end()

    def _end_block(self, _: EndBlock) -> BlockEnded:
        ended = self._block.end()
        self._device.synchronize()
        self._block = PlainBlock()
        return ended

    def _staged_heaps(self) -> tuple[BlockPlan, AnyHeap, AnyHeap]:
        assert self._plan is not None and self._mine is not None and self._theirs is not None
        return self._plan, self._mine, self._theirs

    def _staged(self, idle_us: float | None) -> Staged:
        self._conditioner.flush_cache()
        self._device.synchronize()
        return Staged(idle_us, self._conditioner.choose_processors())

    def _script_seed(self) -> int:
        """Of the lines that are withheld: other ones on every rank and in every block."""
        assert self._workload is not None and self._plan is not None
        first = self._plan.sets[0].trial
        return self._workload.trial_key(first, True).derive_seed("handover", self._rank)

    # ---- blocks of the baseline -------------------------------------------------------------------------------------

    def _run_baseline(self, order: RunBaseline) -> BlockSettled:
        """Runs the baseline on the first calls of the block.

        What a candidate of this dialect has to deliver into its heap, the baseline delivers into the reference heap
        inside the clock, so that both sides pay alike; other results are kept as they were returned.
        """
        assert self._plan is not None and self._mine is not None
        results = [call.results for call in self._calls[: order.calls]]
        deliveries = [self._delivery(index, order.dialect) for index in range(order.calls)]
        for planned in self._plan.sets[: order.calls]:
            self._mine.populate(planned.outputs_offset, planned.offset + planned.nbytes - planned.outputs_offset)
        self._conditioner.reserve([size for of_call in results for size in _sizes(of_call)])
        kept: list[list[list[torch.Tensor]]] = []

        def call(index: int) -> None:
            kept.append(deliveries[index].deliver(self._call(index))[0])

        if order.handovers:
            script = write_script(self._problem, self._plan, self._rank, self._mine, self._script_seed())
            put_lines(self._mine, script.arrivals.lines, script.decoys)
            settled = self._run_served(script, order.calls, order.pad_ns, call)
            put_lines(self._mine, script.arrivals.lines, script.values)
        else:
            settled = self._run_gated(lambda: _each(range(order.calls), call))
        self._expected = [self._named(index, parts) for index, parts in enumerate(kept)]
        return settled

    def _run_served(self, script: Script, calls: int, pad_ns: int, call: Callable[[int], None]) -> BlockSettled:
        """Runs calls with handovers between them, which a thread of this process serves."""
        assert self._mine is not None and self._own_handover is not None
        handover = self._own_handover
        if isinstance(handover, EnqueuedHandover):
            handover.pad_ns = pad_ns
            server = self._handovers.serve_on_gpu(script, self._mine.mailbox, handover.sequence + 1)
        else:
            server = self._handovers.serve_on_cpu(script, self._mine.segment(self._rank), *self._own_fds)

        def block() -> None:
            for index in range(calls):
                handover.cross()
                call(index)
            handover.cross()

        try:
            return self._run_gated(block)
        finally:
            server.finish()

    def _delivery(self, index: int, dialect: Dialect) -> Delivery:
        assert self._plan is not None and self._mine is not None
        ax = self._plan.sets[index].axes[self._rank]
        delivered = {leaf.owner for leaf in delivered_leaves(self._problem, ax, dialect)}
        return Delivery(self._mine, self._problem.returns, self._calls[index].results, delivered)

    def _run_null_block(self, order: RunNullBlock) -> BlockSettled:
        if order.handovers == "none":
            return self._run_gated(self._device.enqueue_nothing)
        assert self._plan is not None
        script = null_script(self._problem, self._plan.sets[0], self._rank, order.calls)
        self._device.enqueue_nothing()
        return self._run_served(script, order.calls, order.pad_ns, lambda _: None)

    def _run_gated(self, block: Callable[[], None]) -> BlockSettled:
        """Does some work between the evaluator's go and this rank's report that it is finished."""
        gc.collect()
        gc.disable()
        dist.barrier()
        idle_us = self._conditioner.answer_us()
        self._conditioner.flush_cache()
        self._device.synchronize()
        self._conditioner.choose_processors()
        self._wire.send(Armed())
        self._wire.receive(Go)
        began_ns = time.perf_counter_ns()
        block()
        host_ns = time.perf_counter_ns() - began_ns
        self._device.synchronize()
        self._wire.send(BlockFinished())
        gc.enable()
        return BlockSettled(idle_us, host_ns)

    def _capture_graphs(self, order: CaptureGraphs) -> Captured:
        """Captures the baseline's calls on the first sets, on all ranks or on none."""
        assert self._solution is not None
        waits = graphs.host_wait(lambda: self._call(0)) is not None
        anywhere = torch.tensor(waits, dtype=torch.int32, device=self._device.torch_device)
        dist.all_reduce(anywhere)  # the ranks must go on alike: what is captured is run once before
        if anywhere.item():
            return Captured(captured=False, sound=True)
        self._graphs, obstacle = graphs.capture(self._solution, self._arguments[: order.calls])
        return Captured(captured=obstacle is None, sound=obstacle is None or graphs.context_is_sound())

    def _replay_graphs(self, order: ReplayGraphs) -> BlockSettled:
        def block() -> None:
            for call in range(order.calls):
                self._graphs[call % len(self._graphs)].replay()

        return self._run_gated(block)

    def _warm_up(self, order: WarmUp) -> Ready:
        """Runs the baseline over and over on the block's inputs; in-place arguments evolve meanwhile."""
        for call in range(order.calls):
            self._call(call % len(self._arguments))
        self._device.synchronize()
        return Ready()

    def _named(self, index: int, parts: list[list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The baseline's results by leaf name, in-place ones included."""
        assert self._plan is not None
        ax = self._plan.sets[index].axes[self._rank]
        named: dict[str, torch.Tensor] = {}
        for out, tensors in zip(self._problem.returned, parts, strict=True):
            for leaf, tensor in zip(output_leaves(out, ax), tensors, strict=True):
                named[leaf.name] = tensor.detach()
        position = {arg.name: place for place, arg in enumerate(self._problem.args)}
        for in_place in self._problem.outputs:
            if isinstance(in_place, InPlace):
                arg = self._problem.args[position[in_place.name]]
                assert isinstance(arg, Tensor | TensorList)
                value = self._arguments[index][position[in_place.name]]
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                    named[leaf.name] = tensor.detach()
        return named

    def _compare_outputs(self, order: CompareOutputs) -> Compared:
        with torch.device(self._device.torch_device):  # of tensors that a rule makes without saying where
            check = compare_all(self._rank, self._compared_calls(order.claims, order.dialect))
        return Compared(check.model_dump(mode="json"))

    def _compared_calls(self, claims: Sequence[Claims], dialect: Dialect) -> Iterator[Call]:
        assert self._plan is not None and self._mine is not None and self._theirs is not None
        assert self._workload is not None
        for planned, of_call, expected in zip(self._plan.sets, claims, self._expected, strict=False):
            leaves = delivered_leaves(self._problem, planned.axes[self._rank], dialect)
            yield Call(
                self._problem,
                planned,
                self._rank,
                protocol=self._workload.protocol,
                expected=expected,
                reference_heap=self._mine,
                candidate_heap=self._theirs,
                claims={leaf.name: claim for leaf, claim in zip(leaves, of_call, strict=False)},
            )


def _each(indices: Iterable[int], call: Callable[[int], None]) -> None:
    for index in indices:
        call(index)


def _sizes(results: Sequence[Result]) -> Iterator[int]:
    """Bytes of every tensor that a call returns."""
    for result in results:
        for slot in result.slots:
            yield slot.capacity * ITEMSIZE[slot.dtype]
