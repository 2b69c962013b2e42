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

import traceback
from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.engine.check import compare_rank
from pkb_gym.engine.inputs import Value, make_inputs
from pkb_gym.engine.layout import BlockPlan, Workload, delivered_leaves, rank_spec
from pkb_gym.engine.leaves import argument_leaves, flatten_value, output_leaves
from pkb_gym.engine.problem import InPlace, Linear, Problem, Tensor, TensorList
from pkb_gym.engine.rankside import results
from pkb_gym.engine.rankside.gloo_compat import install
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.rankside.python import make_argument
from pkb_gym.engine.rankside.wire import Wire

POISON = 0xB5
"""Byte that fills the candidate's outputs before a block: a large negative number in every float format."""


def main(wire: Wire, rank: int, world_size: int) -> None:
    """Serves one evaluator until the connection ends."""
    hello, _ = wire.receive()
    torch.set_num_threads(int(hello["threads"]))  # type: ignore[call-overload]  # sent by our own evaluator
    dist.init_process_group("gloo", init_method=f"file://{hello['rendezvous']}", rank=rank, world_size=world_size)
    install()
    dist.barrier()
    wire.send({"ready": True})
    reference = Reference(wire, rank, world_size)
    while True:
        message, _, fds = wire.receive_with_fds()
        try:
            reply = reference.handle(dict(message), fds)
        except Exception:  # the evaluator reports it as infrastructure, never as the candidate's failure
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
            values = make_inputs(
                self._problem, ax, self._workload.trial_key(planned.trial, timed), self._workload.protocol
            )
            for arg, value in zip(self._problem.data_args, values, strict=True):
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(arg, value), strict=True):
                    self._mine.tensor(planned.slots[self._rank][leaf.name].to_json()).copy_(tensor)
        groups = [self._group(partition) for partition in plan.partitions]
        self._arguments = []
        for planned in plan.sets:
            spec = rank_spec(self._problem, plan, planned, self._rank, "python")
            arguments = [make_argument(self._mine, arg, groups) for arg in spec["args"]]
            self._arguments.append([self._private(arg, value) for arg, value in zip(self._problem.args, arguments, strict=True)])
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
        """Runs the baseline on the first sets of the block; the evaluator's clock runs from go to done."""
        assert self._plan is not None
        dialect = "native" if native else "python"
        plan = self._plan.sets[:count]
        names = [
            {leaf.name for leaf in delivered_leaves(self._problem, planned.axes[self._rank], dialect)}  # type: ignore[arg-type]
            for planned in plan
        ]
        landing = self._landing(names, plan)
        outputs = [self._output_specs(planned) for planned in plan]
        dist.barrier()
        self._wire.send({"armed": True})
        self._wire.receive()
        tensors = []
        for index in range(count):
            result = self._solution(*self._arguments[index])
            parts = results.split(self._problem.returns, outputs[index], result)
            if landing is not None:
                for output, part in zip(outputs[index], parts, strict=True):
                    self._deliver(landing, names[index], output, part)
            tensors.append(parts)
        self._wire.send({"done": True})
        self._expected = [self._named(index, parts) for index, parts in enumerate(tensors)]
        return {"finished": True}

    def _warm(self, calls: int) -> dict[str, Any]:
        """Runs the baseline over and over on the block's inputs; in-place arguments evolve meanwhile."""
        for call in range(calls):
            self._solution(*self._arguments[call % len(self._arguments)])
        return {"warmed": True}

    def _landing(self, names: list[set[str]], plan: Any) -> torch.Tensor | None:
        """A buffer that takes what a candidate would have to deliver, so that both sides pay for the copy."""
        largest = max(
            (
                slot.leaf.capacity_bytes
                for planned, delivered in zip(plan, names, strict=True)
                for name, slot in planned.slots[self._rank].items()
                if name in delivered
            ),
            default=0,
        )
        return torch.zeros(largest, dtype=torch.uint8) if largest else None

    @staticmethod
    def _deliver(landing: torch.Tensor, names: set[str], output: dict[str, Any], parts: list[torch.Tensor]) -> None:
        for index, tensor in enumerate(parts):
            name = f"{output['name']}[{index}]" if output["list"] else output["name"]
            if name in names:
                flat = landing[: tensor.numel() * tensor.element_size()].view(tensor.dtype)
                flat.view(tensor.shape).copy_(tensor.detach())

    def _output_specs(self, planned: Any) -> list[dict[str, Any]]:
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
        for out in self._problem.outputs:
            if isinstance(out, InPlace):
                arg = self._problem.args[position[out.name]]
                assert isinstance(arg, Tensor | TensorList)
                value = self._arguments[index][position[out.name]]
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(arg, value), strict=True):
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

    def _values(self, planned: Any, rank: int) -> dict[str, Value]:
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
            else:
                shapes: Any = ax[arg.shapes]
                present = iter(tensors)
                values[arg.name] = [None if shape is None else next(present) for shape in shapes]
        return values
