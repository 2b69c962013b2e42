"""The rank program of a reference gang: makes the inputs, runs the baseline, compares. It never sees candidate code.

Messages from the evaluator, and the reply to each:

    {"allocate": bytes}             -> {"allocated": true} + fds   a segment of each heap (GPUs alone)
    {"map": bytes} + fds            -> {"mapped": true}     both heaps
    {"zero": true}                  -> {"zeroed": true}     the candidate's heap (GPUs, where it is used again)
    {"workload": ...}               -> {"ready": true}      the problem
    {"make": trials, "timed": ...}  -> {"made": n}          inputs into the reference heap
    {"stage": true}                 -> {"staged": true, ...}  inputs into the candidate's heap, its outputs poisoned
    {"warm": calls}                 -> {"warmed": true}
    {"run": n, "native": ...}       -> {"armed": true}, then {"go": true} -> {"done": true}, {"finished": true, ...}
    {"touch": true}                 -> as "run", of the least that there is to do
    {"capture": calls}              -> {"captured": ..., "sound": ...}  the baseline as CUDA graphs, on the first sets
    {"replay": n}                   -> as "run", of the graphs
    {"compare": [...]}              -> {"report": ...}
    {"release": true}               -> {"released": true}

Two heaps of one layout: the reference heap, which only this gang maps, keeps every rank's inputs as they were made.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.check import compare_all
from pkb_gym.engine.compare.layout import BlockPlan, Dialect, delivered_leaves, rank_runs
from pkb_gym.engine.compare.stacked import WORD_BYTES, raw_slot, stacked
from pkb_gym.engine.problem import InPlace, Problem, Tensor, TensorList
from pkb_gym.engine.problem.axes import ITEMSIZE
from pkb_gym.engine.problem.tensors import argument_leaves, flatten_value, output_leaves
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.engine.ranks import graphs
from pkb_gym.engine.ranks.block_conditioner import make_quiet
from pkb_gym.engine.rankside.devices import AnyHeap, Device, make_device
from pkb_gym.engine.rankside.python import make_argument
from pkb_gym.engine.rankside.results import Delivery
from pkb_gym.engine.rankside.runs import unroll
from pkb_gym.engine.rankside.wire import Wire

if TYPE_CHECKING:
    from pkb_gym.engine.rankside.cuda_memory import Segment

FDS = "fds"
"""Key of a reply whose value is sent as descriptors beside it."""

POISON = 0xF5
"""Byte that fills the candidate's outputs before a block: a large negative number in every float format."""

POISON_WORD = int.from_bytes(bytes([POISON] * WORD_BYTES), sys.byteorder, signed=True)


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one evaluator until the connection ends."""
    hello, _, fds = wire.receive_with_fds()
    threads: Any = hello["threads"]
    device = make_device(str(hello["device"]), rank, world_size, threads)
    device.prepare()  # before the process group starts its threads, which inherit the processors
    device.join(f"file:///proc/self/fd/{fds[0]}")
    dist.barrier()
    gc.collect()
    gc.freeze()  # the collection before each block then passes over what was imported here
    wire.send({"ready": True})
    reference = Reference(wire, device, rank, world_size)
    while True:
        message, _, fds = wire.receive_with_fds()
        try:
            reply = reference.handle(dict(message), fds)
        except Exception:  # noqa: BLE001  # the evaluator reports it as infrastructure, never as the candidate's failure
            reply = {"error": {"message": traceback.format_exc()}}
        wire.send(reply, fds=reply.pop(FDS, ()))


class Reference:
    """One reference rank's state for the evaluation in hand."""

    def __init__(self, wire: Wire, device: Device, rank: int, world_size: int) -> None:
        self._wire, self._device = wire, device
        self._rank, self._world_size = rank, world_size
        self._groups: dict[object, Any] = {}
        self._solutions: dict[str, Any] = {}
        self._mine: AnyHeap | None = None
        self._theirs: AnyHeap | None = None
        self._processors = sorted(os.sched_getaffinity(0))
        self._quiet = make_quiet(device.name, self._processors)
        self._segments: list[Segment] = []
        self._forget()

    def _forget(self) -> None:
        self._expected: list[dict[str, torch.Tensor]] = []
        self._arguments: list[list[Any]] = []
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._plan: BlockPlan | None = None
        self._specs: list[dict[str, Any]] = []

    def handle(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Carries out one order."""
        if "allocate" in message:
            return self._allocate(message["allocate"])
        if "map" in message:
            return self._map(message["map"], fds)
        if "zero" in message:
            return self._zero()
        if "workload" in message:
            return self._take_workload(message)
        if "make" in message:
            return self._make(message["make"], message["timed"])
        if "stage" in message:
            return self._stage()
        if "warm" in message:
            return self._warm(message["warm"])
        if "run" in message:
            return self._run(message["run"], message["native"])
        if "touch" in message:
            return self._gated(self._device.touch)
        if "capture" in message:
            return self._capture(message["capture"])
        if "replay" in message:
            return self._replay(message["replay"])
        if "compare" in message:
            return self._compare(message["compare"], message["native"])
        self._forget()
        if self._device.name == "cpu":  # where the next evaluation brings heaps of its own
            self._mine = self._theirs = None
        self._device.release()
        self._quiet = make_quiet(self._device.name, self._processors)
        return {"released": True}

    def _allocate(self, segment_bytes: int) -> dict[str, Any]:
        """Frees the heaps that there were, allocates new ones; the reply is followed by their descriptors."""
        from pkb_gym.engine.rankside.cuda_memory import Segment

        for heap in (self._mine, self._theirs):
            if heap is not None:
                heap.close()
        for segment in self._segments:
            segment.close()
        self._mine = self._theirs = None
        self._device.release()
        self._quiet = make_quiet(self._device.name, self._processors)
        self._segments = [Segment(segment_bytes, self._rank) for _ in range(2)]
        return {"allocated": True, FDS: [segment.fd for segment in self._segments]}

    def _map(self, segment_bytes: int, fds: list[int]) -> dict[str, Any]:
        half = len(fds) // 2
        self._mine = self._device.heap(fds[:half], segment_bytes)
        self._theirs = self._device.heap(fds[half:], segment_bytes)
        if self._segments:
            self._zero()
        return {"mapped": True}

    def _zero(self) -> dict[str, Any]:
        """Leaves nothing of an earlier candidate in the candidate's heap."""
        assert self._theirs is not None
        self._theirs.zero()
        self._device.synchronize()
        return {"zeroed": True}

    def _take_workload(self, message: dict[str, Any]) -> dict[str, Any]:
        from pkb_gym.engine.ranks.workload import workload_from_json

        self._forget()
        self._workload = workload_from_json(message["workload"])
        self._scratch_bytes: int = message["scratch_bytes"]
        source: str = message["source"]
        if source not in self._solutions:
            namespace: dict[str, Any] = {"__name__": "reference"}
            exec(compile(source, "reference.py", "exec"), namespace)
            self._solutions[source] = namespace["solution"]
        self._solution = self._solutions[source]
        return {"ready": True}

    @property
    def _problem(self) -> Problem:
        return self._workload.problem

    def _make(self, trials: list[int], timed: bool) -> dict[str, Any]:
        """Draws this rank's inputs of a block and binds the baseline's arguments to them."""
        assert self._mine is not None
        plan = self._plan = self._workload.plan(trials, timed, self._scratch_bytes)
        self._expected = []
        where = self._device.torch_device
        for planned in plan.sets:
            ax = planned.axes[self._rank]
            key = self._workload.trial_key(planned.trial, timed)
            with torch.device(where):  # of tensors that a problem's inputs make without saying where
                drawn = make_inputs(self._problem, ax, key, self._workload.protocol, where)
            for arg, value in zip(self._problem.data_args, drawn, strict=True):
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                    self._mine.tensor(planned.slots[self._rank][leaf.name].to_json()).copy_(tensor)
        groups = [self._group(partition) for partition in plan.partitions]
        self._arguments = []
        self._specs = unroll(rank_runs(self._problem, plan, self._rank, "python"))
        for spec in self._specs:
            values = [make_argument(self._mine, arg, groups) for arg in spec["args"]]
            pairs = zip(self._problem.args, values, strict=True)
            self._arguments.append([self._private(arg, value) for arg, value in pairs])
        self._device.synchronize()
        dist.barrier()  # rules read other ranks' inputs
        return {"made": len(trials)}

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

    def _stage(self) -> dict[str, Any]:
        """Copies this rank's inputs into the candidate's heap and poisons its outputs."""
        assert self._plan is not None and self._mine is not None and self._theirs is not None
        idle_us = self._quiet.answer_us()
        for run in self._plan.runs:
            first, count = run[0], len(run)
            arguments = raw_slot(first.offset, first.outputs_offset - first.offset)
            outputs = raw_slot(first.outputs_offset, first.offset + first.nbytes - first.outputs_offset)
            inputs, theirs = (stacked(heap, arguments, count, first.nbytes) for heap in (self._mine, self._theirs))
            theirs.copy_(inputs)
            stacked(self._theirs, outputs, count, first.nbytes).fill_(POISON_WORD)  # pages are whole words
        self._quiet.flush_cache()
        self._device.synchronize()
        return {"staged": True, "idle_us": idle_us, "processors": self._quiet.settle()}

    def _run(self, count: int, native: bool) -> dict[str, Any]:
        """Runs the baseline on the first sets of the block; the evaluator's clock runs from go to done.

        What a candidate of this dialect has to deliver into its heap, the baseline delivers into the reference heap
        inside the clock, so that both sides pay alike; other results are kept as they were returned.
        """
        assert self._plan is not None and self._mine is not None
        plan = self._plan.sets[:count]
        dialect: Dialect = "native" if native else "python"
        outputs, deliveries = [], []
        for planned, spec in zip(plan, self._specs, strict=False):
            delivered = {leaf.owner for leaf in delivered_leaves(self._problem, planned.axes[self._rank], dialect)}
            outputs.append(spec["outputs"])
            deliveries.append(Delivery(self._mine, self._problem.returns, outputs[-1], delivered))
        for planned in plan:
            self._mine.populate(planned.outputs_offset, planned.offset + planned.nbytes - planned.outputs_offset)
        self._quiet.reserve([slot["capacity"] * ITEMSIZE[slot["dtype"]] for slot in self._kept_slots(outputs)])
        solution, arguments = self._solution, self._arguments
        kept: list[list[list[torch.Tensor]]] = []

        def block() -> None:
            kept.extend(deliveries[index].deliver(solution(*arguments[index]))[0] for index in range(count))

        finished = self._gated(block)
        self._expected = [self._named(index, parts) for index, parts in enumerate(kept)]
        return finished

    def _gated(self, block: Callable[[], None]) -> dict[str, Any]:
        """Does some work between the evaluator's go and this rank's done."""
        gc.collect()
        gc.disable()
        dist.barrier()
        idle_us = self._quiet.answer_us()
        self._quiet.flush_cache()
        self._device.synchronize()
        self._quiet.settle()
        self._wire.send({"armed": True})
        self._wire.receive()
        block()
        self._device.synchronize()
        self._wire.send({"done": True})
        gc.enable()
        return {"finished": True, "idle_us": idle_us}

    def _capture(self, calls: int) -> dict[str, Any]:
        """Captures the baseline's calls on the first sets, on all ranks or on none."""
        waits = graphs.host_wait(lambda: self._solution(*self._arguments[0])) is not None
        anywhere = torch.tensor(waits, dtype=torch.int32, device=self._device.torch_device)
        dist.all_reduce(anywhere)  # the ranks must go on alike: what is captured is run once before
        if anywhere.item():
            return {"captured": False, "sound": True}
        self._graphs, obstacle = graphs.capture(self._solution, self._arguments[:calls])
        return {"captured": obstacle is None, "sound": obstacle is None or graphs.context_is_sound()}

    def _replay(self, calls: int) -> dict[str, Any]:
        """Launches the graphs in turn; the evaluator's clock runs from go to done."""

        def block() -> None:
            for call in range(calls):
                self._graphs[call % len(self._graphs)].replay()

        return self._gated(block)

    def _kept_slots(self, outputs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Of all results that a block's calls return."""
        return [slot for call in outputs for output in call for slot in output["leaves"]]

    def _warm(self, calls: int) -> dict[str, Any]:
        """Runs the baseline over and over on the block's inputs; in-place arguments evolve meanwhile."""
        for call in range(calls):
            self._solution(*self._arguments[call % len(self._arguments)])
        self._device.synchronize()
        return {"warmed": True}

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

    def _compare(self, said: list[list[dict[str, Any]]], native: bool) -> dict[str, Any]:
        """Judges this rank's outputs of a block; `said` holds what the candidate claims of the outputs it returned."""
        with torch.device(self._device.torch_device):  # of tensors that a rule makes without saying where
            report = compare_all(self._rank, self._calls(said, native))
        return {"report": report.model_dump(mode="json")}

    def _calls(self, said: list[list[dict[str, Any]]], native: bool) -> Iterator[Call]:
        assert self._plan is not None and self._mine is not None and self._theirs is not None
        for planned, claims, expected in zip(self._plan.sets, said, self._expected, strict=False):
            leaves = delivered_leaves(self._problem, planned.axes[self._rank], "native" if native else "python")
            yield Call(
                self._problem,
                planned,
                self._rank,
                protocol=self._workload.protocol,
                expected=expected,
                mine=self._mine,
                theirs=self._theirs,
                said={leaf.name: claim for leaf, claim in zip(leaves, claims, strict=False)},
            )
