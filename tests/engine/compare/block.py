"""A block of calls on two heaps of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.check import TOGETHER, RankCheck, compare_all
from pkb_gym.engine.compare.layout import BlockPlan, Workload, placed_results
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.problem.axes import AxisValue
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.wire.orders import Claim
from pkb_gym.problems.catalogue import find_problem

COPIES = find_problem("AllGather")
"""Its one output must have the same bits; its argument stays as it is."""
CALLS = 2 * TOGETHER + 3
RANK = 1


class Block:
    """Calls of a problem whose outputs are all right, until a test changes something."""

    def __init__(self, problem: Problem, calls: int, size: str | dict[str, AxisValue] = "tiny") -> None:
        self.problem = problem
        workload = Workload(problem, size, 2, problem.dtypes[0], "robust", b"key", 0, 0)
        self.plan: BlockPlan = workload.plan(range(calls), False, 0)
        self.reference_heap, self.candidate_heap = (
            Heap(sealed_memory("test", 2 * self.plan.end), self.plan.end, 2, RANK) for _ in range(2)
        )
        self.expected: list[dict[str, torch.Tensor]] = []
        self.claims: list[dict[str, Claim | None]] = [{} for _ in range(calls)]
        for planned in self.plan.sets:
            results = {}
            for number, (_, placed) in enumerate(placed_results(problem, planned, RANK)):
                output = self.candidate_heap.tensor(placed.slot)
                output.copy_(torch.arange(output.numel()).add(planned.trial + number).remainder(13).view(output.shape))
                results[placed.leaf.name] = output.clone()
            self.expected.append(results)

    def output(self, call: int) -> torch.Tensor:
        """The candidate's first output of a call."""
        _, placed = placed_results(self.problem, self.plan.sets[call], RANK)[0]
        return self.candidate_heap.tensor(placed.slot)

    def argument(self, call: int, *, mutable: bool = False) -> torch.Tensor:
        """The candidate's first argument of a call."""
        planned = self.plan.sets[call]
        arg = next(arg for arg in self.problem.data_args if getattr(arg, "mutable", False) is mutable)
        leaf = argument_leaves(arg, planned.axes[RANK])[0]
        return self.candidate_heap.tensor(planned.leaves[RANK][leaf.name].slot)

    def calls(self, protocol: str = "robust") -> Iterator[Call]:
        for planned, expected, claims in zip(self.plan.sets, self.expected, self.claims, strict=True):
            yield Call(
                self.problem, planned, RANK, protocol, expected, self.reference_heap, self.candidate_heap, claims
            )

    def found(self, protocol: str = "robust") -> RankCheck:
        return compare_all(RANK, self.calls(protocol))
