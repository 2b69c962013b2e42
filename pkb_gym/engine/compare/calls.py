"""One call of a candidate as its comparison sees it: where its tensors lie, and what they should hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pkb_gym.engine.compare.layout import SetPlan
from pkb_gym.engine.compare.stacked import word_slot
from pkb_gym.engine.problem import InPlace, Linear, Output, OutputList, Problem, Sparse, Tensor, TensorList
from pkb_gym.engine.problem.tensors import Leaf, argument_leaves
from pkb_gym.engine.wire.arguments import TensorSlot

if TYPE_CHECKING:
    import torch

    from pkb_gym.engine.problem import Value
    from pkb_gym.engine.problem.rules import Check
    from pkb_gym.engine.rankside.devices import AnyHeap
    from pkb_gym.engine.wire.orders import Claim

ReadSlot: TypeAlias = "Callable[[TensorSlot, int], torch.Tensor]"
"""(slot, rank) -> the tensor that lies there."""


@dataclass(frozen=True)
class Call:
    """One rank's side of one call.

    Attributes:
        problem: Declaration of the problem.
        plan: Placement of the call's tensors.
        rank: Rank whose outputs are compared.
        protocol: "robust" or "published".
        expected: Baseline results by leaf name.
        reference_heap: Heap with the inputs as they were made.
        candidate_heap: Heap with the inputs and outputs after the candidate's call.
        claims: Claims of tensors that were copied into the heap, by leaf name; preallocated outputs have none.
    """

    problem: Problem
    plan: SetPlan
    rank: int
    protocol: str
    expected: Mapping[str, torch.Tensor]
    reference_heap: AnyHeap
    candidate_heap: AnyHeap
    claims: Mapping[str, Claim | None]


def rule_of(out: Output | OutputList | InPlace, protocol: str) -> Check | None:
    """The rule of an output under a protocol; None where it is not compared."""
    return out.check if protocol == "robust" else out.published


def arguments(problem: Problem, plan: SetPlan, rank: int, read: ReadSlot) -> dict[str, Value]:
    """A rank's data arguments by name, as `read` finds them."""
    ax, placed = plan.axes[rank], plan.leaves[rank]
    values: dict[str, Value] = {}
    for arg in problem.data_args:
        tensors = [read(placed[leaf.name].slot, rank) for leaf in argument_leaves(arg, ax)]
        if isinstance(arg, Tensor):
            values[arg.name] = tensors[0] if tensors else None
        elif isinstance(arg, Linear):
            values[arg.name] = (tensors[0], tensors[1] if arg.bias else None)
        elif isinstance(arg, Sparse):
            values[arg.name] = (tensors[0], tensors[1])
        else:
            present = iter(tensors)
            values[arg.name] = [None if shape is None else next(present) for shape in ax.shapes(arg.shapes)]
    return values


def immutable_leaves(problem: Problem, plan: SetPlan, rank: int) -> Iterator[tuple[Leaf, TensorSlot]]:
    """The arguments that must still hold, bit for bit, what was put there; each with the slot of all its bytes."""
    for arg in problem.data_args:
        if isinstance(arg, Tensor | TensorList) and arg.mutable:
            continue
        for leaf in argument_leaves(arg, plan.axes[rank]):
            yield leaf, word_slot(plan.leaves[rank][leaf.name].offset, leaf.capacity_bytes)
