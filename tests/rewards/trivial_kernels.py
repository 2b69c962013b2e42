"""Kernels that do nothing of use, on every problem: what they leave in the outputs, compared as an evaluation does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from pkb_gym.authoring import wrong_collectives
from pkb_gym.engine.compare import check
from pkb_gym.engine.compare.calls import Call
from pkb_gym.engine.compare.check import RankCheck, compare_all, merge
from pkb_gym.engine.compare.layout import Workload, placed_results
from pkb_gym.engine.compare.poison import poison_of
from pkb_gym.engine.compare.trivial import tensors_of
from pkb_gym.engine.gangs.heaps import sealed_memory
from pkb_gym.engine.problem import InPlace, Problem
from pkb_gym.engine.problem.tensors import argument_leaves
from pkb_gym.engine.rankside.heap import Heap
from pkb_gym.engine.records.check_report import CheckReport
from pkb_gym.engine.wire.orders import Claim
from pkb_gym.problems.catalogue import find_problem
from tests.problems.support import KEY, Job, MadeInRanks, Run, run_jobs
from tests.problems.wrong_solutions import reference_of

TRIALS = (0, 1, 3, 4, 6, 7)
"""Trials of all patterns of routing but that in which nothing crosses a link, whose calls count for nothing."""

WORLD_SIZE = 2

Outputs: TypeAlias = dict[str, torch.Tensor]
Kernel: TypeAlias = Callable[[Run, int], Outputs]
"""(run of the reference, rank) -> the rank's outputs by leaf name; a leaf that is missing is left as it was."""


def own_tensors(run: Run, rank: int) -> list[torch.Tensor]:
    """A rank's tensor arguments; a zero where it has none."""
    return list(tensors_of(run.args[rank])) or [torch.zeros(1)]


def nothing(run: Run, rank: int) -> Outputs:
    """Leaves every output as it was."""
    return {}


def filled(value: float) -> Kernel:
    """Fills every output with one value."""
    return lambda run, rank: {name: torch.full_like(out, value) for name, out in run.outputs[rank].items()}


def argument(place: int) -> Kernel:
    """Copies an argument of the own rank, repeated or cut where it does not fit."""

    def kernel(run: Run, rank: int) -> Outputs:
        source = own_tensors(run, rank)[place].reshape(-1)
        return {name: _fitted(source, out) for name, out in run.outputs[rank].items()}

    return kernel


def own_share(run: Run, rank: int) -> Outputs:
    """Copies the rank's share of its first argument."""
    source = torch.tensor_split(own_tensors(run, rank)[0].reshape(-1), WORLD_SIZE)[rank]
    return {name: _fitted(source, out) for name, out in run.outputs[rank].items()}


def one_rank_alone(run: Run, rank: int) -> Outputs:
    """Right on the first rank, and zeros on the others."""
    return dict(run.outputs[0]) if rank == 0 else filled(0)(run, rank)


KERNELS: dict[str, Kernel] = {
    "empty": nothing,
    "zeros": filled(0),
    "ones": filled(1),
    "first argument": argument(0),
    "last argument": argument(-1),
    "own share": own_share,
    "one rank alone": one_rank_alone,
}


def without_communication(name: str, others: bool) -> Callable[..., object]:
    """The reference whose collectives give each rank its own data, for others' too or zeros in their place."""
    solution = reference_of(find_problem(name))

    def alone(*args: Any) -> object:
        with wrong_collectives.replaced(lambda number, name: True, others):
            return solution(*args)

    return alone


def _fitted(source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if not source.numel() or not like.numel():
        return torch.zeros_like(like)
    if source.is_complex() and not like.is_complex():
        source = source.real
    times = -(-like.numel() // source.numel())
    return source.repeat(times)[: like.numel()].reshape(like.shape).to(like.dtype)


def runs_of(name: str) -> tuple[list[Run], dict[str, list[Run]]]:
    """The reference's runs, and those of what one rank computes by itself, where that does not fall over."""
    runs = run_jobs([Job(name, world_size=WORLD_SIZE, trial=trial) for trial in TRIALS])
    alone = {}
    for words, others in (("own data for others'", True), ("zeros for others'", False)):
        solution = MadeInRanks(partial(without_communication, others=others), name)
        jobs = [Job(name, world_size=WORLD_SIZE, trial=trial, solution=solution) for trial in TRIALS]
        try:
            alone[f"no communication, {words}"] = run_jobs(jobs, deadline_s=4.0)
        except RuntimeError:
            continue
    return runs, alone


@dataclass
class Calls:
    """The calls of a problem in two heaps of the tests' own, filled with the reference's arguments.

    Args:
        runs: Runs of the reference, one for each of `TRIALS`.
    """

    runs: Sequence[Run]

    def __post_init__(self) -> None:
        self._earnable: dict[int, tuple[tuple[int, str], ...]] = {}
        self.problem: Problem = self.runs[0].problem
        workload = Workload(self.problem, "tiny", WORLD_SIZE, self.problem.dtypes[0], "robust", KEY, 0, 0)
        self.plan = workload.plan(TRIALS, False, 0)
        memory = [sealed_memory("test", WORLD_SIZE * self.plan.end) for _ in range(2)]
        self._reference, self._candidate = (Heap(fd, self.plan.end, WORLD_SIZE, 0) for fd in memory)
        for run, planned in zip(self.runs, self.plan.sets, strict=True):
            for rank in range(WORLD_SIZE):
                assert planned.axes[rank] == run.axes[rank]
                for arg in self.problem.data_args:
                    leaves = argument_leaves(arg, run.axes[rank])
                    for leaf, tensor in zip(leaves, tensors_of({"": run.args[rank][arg.name]}), strict=True):
                        slot = planned.leaves[rank][leaf.name].slot
                        self._reference.tensor(slot, rank).copy_(tensor)

    def report(self, kernel: Callable[[Run, int, int], Mapping[str, torch.Tensor]]) -> CheckReport:
        """The comparison of a kernel's outputs, given as (run, rank, number of the call) -> outputs by leaf name."""
        checks = []
        for rank in range(WORLD_SIZE):
            calls = []
            for call, (run, planned) in enumerate(zip(self.runs, self.plan.sets, strict=True)):
                whole = slice(planned.offset, planned.offset + planned.nbytes)
                self._candidate.bytes(rank)[whole] = self._reference.bytes(rank)[whole]
                got, claims = kernel(run, rank, call), {}
                for out, placed in placed_results(self.problem, planned, rank):
                    left = got.get(placed.leaf.name)
                    slot = placed.slot
                    if placed.leaf.shape is None:  # as large as the kernel has made it, or as it should be
                        made = run.outputs[rank][placed.leaf.name] if left is None else left
                        claims[placed.leaf.name] = Claim(tuple(made.shape), str(made.dtype).removeprefix("torch."))
                        slot = slot.shaped(tuple(made.shape))
                    there = self._candidate.tensor(slot, rank)
                    if not isinstance(out, InPlace) and there.numel():
                        there.view(-1).view(torch.uint8).fill_(poison_of(rank))
                    if left is not None:
                        there.copy_(left)
                calls.append(
                    Call(
                        self.problem,
                        planned,
                        rank,
                        "robust",
                        run.outputs[rank],
                        self._reference,
                        self._candidate,
                        claims,
                    )
                )
            checks.append(self._compared(rank, calls))
        return merge(checks, len(self.runs))

    def _compared(self, rank: int, calls: Sequence[Call]) -> RankCheck:
        """The comparison of one rank; what can be earned is the same for all kernels, and found out once."""
        if rank not in self._earnable:
            found = compare_all(rank, calls)
            if found.mismatches:
                self._earnable[rank] = found.earnable
            return found
        with patch.object(check, "MAX_EARNING_CALLS", 0):
            found = compare_all(rank, calls)
        return found.model_copy(update={"earnable": self._earnable[rank] if found.mismatches else ()})
