"""The rank program of a reference gang: makes the inputs, runs the baseline, compares. It never sees candidate code.

Messages from the evaluator, and the reply to each:

    {"workload": ...} + fds         -> {"ready": true}      the problem, and both heaps
    {"make": trials, "timed": ...}  -> {"made": n}          inputs into the reference heap
    {"stage": true}                 -> {"staged": true}     inputs into the candidate's heap, its outputs poisoned
    {"warm": calls}                 -> {"warmed": true}
    {"run": n, "native": ...}       -> {"armed": true}, then {"go": true} -> {"done": true}, {"finished": true}
    {"compare": [...]}              -> {"report": ...}
    {"release": true}               -> {"released": true}

Two heaps of one layout: the reference heap, which only this gang maps, keeps every rank's inputs as they were made.
"""

from __future__ import annotations

import ctypes
import gc
import traceback
from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.engine.check import compare_rank
from pkb_gym.engine.inputs import Value, make_inputs
from pkb_gym.engine.layout import BlockPlan, Dialect, SetPlan, delivered_leaves, rank_spec
from pkb_gym.engine.leaves import argument_leaves, flatten_value, output_leaves
from pkb_gym.engine.problem import InPlace, Linear, Problem, Sparse, Tensor, TensorList
from pkb_gym.engine.rankside import results
from pkb_gym.engine.rankside.gloo_compat import install
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.rankside.processors import bind_rank
from pkb_gym.engine.rankside.python import make_argument
from pkb_gym.engine.rankside.wire import Wire

POISON = 0xF5
"""Byte that fills the candidate's outputs before a block: a large negative number in every float format."""


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one evaluator until the connection ends."""
    hello, _, fds = wire.receive_with_fds()
    threads = hello["threads"]
    assert isinstance(threads, int)
    torch.set_num_threads(threads)
    bind_rank(rank, world_size)  # before the process group starts its threads, which inherit it
    store = f"file:///proc/self/fd/{fds[0]}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    install()
    dist.barrier()
    wire.send({"ready": True})
    reference = Reference(wire, rank, world_size)
    while True:
        message, _, fds = wire.receive_with_fds()
        try:
            reply = reference.handle(dict(message), fds)
        except Exception:  # noqa: BLE001  # the evaluator reports it as infrastructure, never as the candidate's failure
            reply = {"error": {"message": traceback.format_exc()}}
        wire.send(reply)


class Reference:
    """One reference rank's state for the evaluation in hand."""

    def __init__(self, wire: Wire, rank: int, world_size: int) -> None:
        self._wire, self._rank, self._world_size = wire, rank, world_size
        self._groups: dict[object, Any] = {}
        self._solutions: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._expected: list[dict[str, torch.Tensor]] = []
        self._arguments: list[list[Any]] = []
        self._plan: BlockPlan | None = None
        self._mine: Heap | None = None
        self._theirs: Heap | None = None

    def handle(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Carries out one order."""
        if "workload" in message:
            return self._take_workload(message, fds)
        if "make" in message:
            return self._make(message["make"], message["timed"])
        if "stage" in message:
            return self._stage()
        if "warm" in message:
            return self._warm(message["warm"])
        if "run" in message:
            return self._run(message["run"], message["native"])
        if "compare" in message:
            return self._compare(message["compare"], message["native"])
        self._forget()
        ctypes.CDLL(None).malloc_trim(0)  # memory that blocks reuse (see the zygote) goes back between evaluations
        return {"released": True}

    def _take_workload(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        from pkb_gym.engine.ranks.workload import workload_from_json

        self._forget()
        self._workload = workload_from_json(message["workload"])
        self._scratch_bytes: int = message["scratch_bytes"]
        self._mine = Heap(fds[0], message["segment_bytes"], self._world_size, self._rank)
        self._theirs = Heap(fds[1], message["segment_bytes"], self._world_size, self._rank)
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
        for planned in plan.sets:
            ax = planned.axes[self._rank]
            key = self._workload.trial_key(planned.trial, timed)
            drawn = make_inputs(self._problem, ax, key, self._workload.protocol)
            for arg, value in zip(self._problem.data_args, drawn, strict=True):
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                    self._mine.tensor(planned.slots[self._rank][leaf.name].to_json()).copy_(tensor)
        groups = [self._group(partition) for partition in plan.partitions]
        self._arguments = []
        for planned in plan.sets:
            spec = rank_spec(self._problem, plan, planned, self._rank, "python")
            values = [make_argument(self._mine, arg, groups) for arg in spec["args"]]
            pairs = zip(self._problem.args, values, strict=True)
            self._arguments.append([self._private(arg, value) for arg, value in pairs])
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
        for planned in self._plan.sets:
            for heap_range, poison in (
                ((planned.offset, planned.outputs_offset), False),
                ((planned.outputs_offset, planned.offset + planned.nbytes), True),
            ):
                begin, end = heap_range
                slot = {"offset": begin, "shape": [end - begin], "dtype": "uint8"}
                theirs = self._theirs.tensor(slot)
                theirs.fill_(POISON) if poison else theirs.copy_(self._mine.tensor(slot))
        return {"staged": True}

    def _run(self, count: int, native: bool) -> dict[str, Any]:
        """Runs the baseline on the first sets of the block; the evaluator's clock runs from go to done.

        What a candidate of this dialect has to deliver into its heap, the baseline delivers into the reference heap
        inside the clock, so that both sides pay alike; other results are kept as they were returned.
        """
        assert self._plan is not None and self._mine is not None
        plan = self._plan.sets[:count]
        outputs = [self._output_specs(planned) for planned in plan]
        dialect: Dialect = "native" if native else "python"
        delivered = [
            {leaf.owner for leaf in delivered_leaves(self._problem, planned.axes[self._rank], dialect)}
            for planned in plan
        ]
        for planned in plan:
            self._mine.populate(planned.outputs_offset, planned.offset + planned.nbytes - planned.outputs_offset)
        gc.collect()
        gc.disable()
        dist.barrier()
        self._wire.send({"armed": True})
        self._wire.receive()
        kept: list[list[list[torch.Tensor]]] = []
        for index in range(count):
            parts = results.split(self._problem.returns, outputs[index], self._solution(*self._arguments[index]))
            for output, tensors in zip(outputs[index], parts, strict=True):
                if output["name"] in delivered[index]:
                    tensors[:] = results.deliver_one(self._mine, output, tensors)
            kept.append(parts)
        self._wire.send({"done": True})
        gc.enable()
        self._expected = [self._named(index, parts) for index, parts in enumerate(kept)]
        return {"finished": True}

    def _warm(self, calls: int) -> dict[str, Any]:
        """Runs the baseline over and over on the block's inputs; in-place arguments evolve meanwhile."""
        for call in range(calls):
            self._solution(*self._arguments[call % len(self._arguments)])
        return {"warmed": True}

    def _output_specs(self, planned: SetPlan) -> list[dict[str, Any]]:
        assert self._plan is not None
        specs: list[dict[str, Any]] = rank_spec(self._problem, self._plan, planned, self._rank, "python")["outputs"]
        return specs

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
        assert self._plan is not None and self._mine is not None and self._theirs is not None
        reports = []
        for planned, claims, expected in zip(self._plan.sets, said, self._expected, strict=False):
            leaves = delivered_leaves(self._problem, planned.axes[self._rank], "native" if native else "python")
            report = compare_rank(
                self._problem,
                planned,
                self._rank,
                protocol=self._workload.protocol,
                args=[self._values(planned, rank) for rank in range(self._world_size)],
                expected=expected,
                mine=self._mine,
                theirs=self._theirs,
                said={leaf.name: claim for leaf, claim in zip(leaves, claims, strict=False)},
            )
            reports.append(report.model_dump(mode="json"))
        return {"report": reports}

    def _values(self, planned: SetPlan, rank: int) -> dict[str, Value]:
        """A rank's data arguments as they were made, by name."""
        assert self._mine is not None
        ax, slots = planned.axes[rank], planned.slots[rank]
        values: dict[str, Value] = {}
        for arg in self._problem.data_args:
            tensors = [self._mine.tensor(slots[leaf.name].to_json(), rank) for leaf in argument_leaves(arg, ax)]
            if isinstance(arg, Tensor):
                values[arg.name] = tensors[0] if tensors else None
            elif isinstance(arg, Linear):
                values[arg.name] = (tensors[0], tensors[1] if arg.bias else None)
            elif isinstance(arg, Sparse):
                values[arg.name] = (tensors[0], tensors[1])
            else:
                shapes: Any = ax[arg.shapes]
                present = iter(tensors)
                values[arg.name] = [None if shape is None else next(present) for shape in shapes]
        return values
