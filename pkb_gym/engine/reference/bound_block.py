"""A block's inputs, and the baseline's arguments that are bound to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from pkb_gym.engine.compare.layout import BlockPlan, delivered_leaves
from pkb_gym.engine.errors import DeclarationError
from pkb_gym.engine.problem import InPlace, Problem, Tensor, TensorList
from pkb_gym.engine.problem.tensors import Leaf, argument_leaves, flatten_value, output_leaves
from pkb_gym.engine.rankside.devices import AnyHeap
from pkb_gym.engine.rankside.results import Delivery
from pkb_gym.engine.reference.handover_script import Script, write_script
from pkb_gym.engine.wire.arguments import CallSpec
from pkb_gym.engine.wire.orders import Dialect

if TYPE_CHECKING:
    import torch

ResultsByName: TypeAlias = "dict[str, torch.Tensor]"
"""Leaf name -> tensor."""


@dataclass(frozen=True)
class BoundBlock:
    """A block's inputs, and the baseline's arguments that are bound to them.

    Attributes:
        problem: Declaration of the problem.
        plan: Places of the block's tensors in the heap.
        rank: Number of this process's rank.
        heap: The reference heap, which holds the inputs.
        calls: Calls in the form that the baseline makes them.
        arguments: Arguments of each call; private copies of those that the baseline may overwrite.
        solution: The baseline.
        seed: Seed of the lines that are handed over call by call.
    """

    problem: Problem
    plan: BlockPlan
    rank: int
    heap: AnyHeap
    calls: Sequence[CallSpec]
    arguments: Sequence[Sequence[Any]]
    solution: Callable[..., object]
    seed: int

    @cached_property
    def script(self) -> Script:
        """The handovers of the block, which both sides get; first asked for while the heap holds the inputs."""
        return write_script(self.problem, self.plan, self.rank, self.heap, self.seed)

    def call(self, index: int) -> object:
        """Runs the baseline on the inputs of one call."""
        return self.solution(*self.arguments[index])

    def delivery(self, index: int, dialect: Dialect) -> Delivery:
        """The delivery of the results of one call, where a candidate of this dialect delivers too."""
        ax = self.plan.sets[index].axes[self.rank]
        delivered = {leaf.owner for leaf in delivered_leaves(self.problem, ax, dialect)}
        return Delivery(self.heap, self.problem.returns, self.calls[index].results, delivered)

    def results_by_name(self, index: int, returned: Sequence[Sequence[torch.Tensor]]) -> ResultsByName:
        """The results of one call by leaf name, in-place ones included, where the heap is: some are in host memory.

        Raises:
            DeclarationError: The reference returned another shape or dtype than declared; candidates are held to that.
        """
        device = self.heap.bytes().device
        ax = self.plan.sets[index].axes[self.rank]
        named: ResultsByName = {}
        for out, tensors in zip(self.problem.returned, returned, strict=True):
            for leaf, tensor in zip(output_leaves(out, ax), tensors, strict=True):
                _check_declared(self.problem, leaf, tensor)
                named[leaf.name] = tensor.detach().to(device)
        position = {arg.name: place for place, arg in enumerate(self.problem.args)}
        for in_place in self.problem.outputs:
            if isinstance(in_place, InPlace):
                arg = self.problem.args[position[in_place.name]]
                assert isinstance(arg, Tensor | TensorList)
                value = self.arguments[index][position[in_place.name]]
                for leaf, tensor in zip(argument_leaves(arg, ax), flatten_value(value), strict=True):
                    named[leaf.name] = tensor.detach()
        return named


def _check_declared(problem: Problem, leaf: Leaf, tensor: torch.Tensor) -> None:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    declared = shape if leaf.shape is None else leaf.shape
    if (shape, dtype) != (declared, leaf.dtype):
        raise DeclarationError(
            f"{problem.name}: reference.py returned {leaf.name} of shape {shape}, {dtype}; problem.py declares "
            f"{declared}, {leaf.dtype}"
        )
