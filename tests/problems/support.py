"""Runs a problem's reference on forked gloo ranks and hands back every rank's axes, arguments and outputs."""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pkb_gym
from pkb_gym.engine.problem import Axes, InPlace, Linear, Problem, Scalar, Sparse, Tensor, TensorList, snake_case
from pkb_gym.engine.problem.axes import resolve_shape
from pkb_gym.engine.problem.inputs import Draw, TrialKey
from pkb_gym.engine.problem.rules import Check, CheckContext, as_integers
from pkb_gym.engine.problem.tensors import Leaf, argument_leaves, output_leaves
from pkb_gym.engine.problem.trial_inputs import make_inputs
from pkb_gym.engine.rankside import gloo_compat
from tests.problems.lasting_ranks import LastingRanks

DEADLINE_S = 60.0
KEY = b"tests"


@dataclass(frozen=True)
class Run:
    """What one call of a reference saw and gave.

    Attributes:
        problem: its declaration.
        axes: per rank.
        args: per rank, data arguments by name, as they were before the call.
        outputs: per rank, results by leaf name, in-place results included.
        protocol: which of the two.
    """

    problem: Problem
    axes: list[Axes]
    args: list[dict[str, Any]]
    outputs: list[dict[str, torch.Tensor]]
    protocol: str = "robust"

    def wrong(self, rank: int, leaf: str, got: torch.Tensor | None = None) -> torch.Tensor:
        """The elements that the problem's own check marks wrong in `got` (default: in the reference's output)."""
        owner = leaf.split("[")[0]
        out = next(out for out in self.problem.outputs if out.name == owner)
        check: Check | None = out.check if self.protocol == "robust" else out.published
        mine = self.outputs[rank]
        got = mine[leaf] if got is None else got
        if check is None:
            return torch.zeros_like(got, dtype=torch.bool)
        return check.wrong(got, CheckContext(self.axes[rank], mine[leaf], self.args, mine, mine | {leaf: got}, leaf))

    def assert_passes_own_checks(self) -> None:
        """The reference's outputs satisfy the problem's checks on every rank."""
        for rank, outputs in enumerate(self.outputs):
            for leaf, value in outputs.items():
                wrong = int(self.wrong(rank, leaf).sum())
                assert wrong == 0, f"{self.problem.name} rank {rank} {leaf}: {wrong} of {value.numel()} marked wrong"


def find_problem(name: str) -> Problem:
    """The declaration of the problem called `name`, for example "AllReduce"."""
    return importlib.import_module(f"{_module(name)}.problem").PROBLEM


def make_axes(
    problem: Problem,
    *,
    size: str | Mapping[str, Any] = "tiny",
    world_size: int = 4,
    protocol: str = "robust",
    trial: int = 0,
    timed: bool = False,
    dtype: str | None = None,
) -> list[Axes]:
    """Every rank's axes of one trial, without running anything."""
    draw = TrialKey(KEY, 0, problem.name, 0, trial, timed)
    return [
        problem.axes(size=size, world_size=world_size, rank=r, dtype=dtype, protocol=protocol, draw=Draw(draw))
        for r in range(world_size)
    ]


@dataclass(frozen=True)
class Job:
    """One call of one `solution` on every rank.

    Attributes:
        args: replaces the drawn data arguments (per rank, by name; shapes as declared), for edge cases.
        solution: replaces the reference; what it keeps at module level lasts as long as the gang.
    """

    name: str
    size: str | Mapping[str, Any] = "tiny"
    world_size: int = 4
    protocol: str = "robust"
    trial: int = 0
    timed: bool = False
    dtype: str | None = None
    args: list[dict[str, Any]] | None = None
    solution: Callable[..., Any] | None = None

    def prepare(self) -> Run:
        """Axes and arguments; outputs are still missing."""
        problem = find_problem(self.name)
        axes = make_axes(
            problem,
            size=self.size,
            world_size=self.world_size,
            protocol=self.protocol,
            trial=self.trial,
            timed=self.timed,
            dtype=self.dtype,
        )
        key = TrialKey(KEY, 0, self.name, 0, self.trial, self.timed)
        names = [arg.name for arg in problem.data_args]
        args = self.args
        if args is None:
            args = [dict(zip(names, make_inputs(problem, ax, key, self.protocol), strict=True)) for ax in axes]
        return Run(problem, axes, args, [], self.protocol)


def run_reference(name: str, **options: Any) -> Run:
    """Calls the problem's `solution` once on gloo ranks; options as in `Job`.

    Raises:
        RuntimeError: a rank raised, died or took too long; holds its traceback.
    """
    return run_jobs([Job(name, **options)])[0]


def run_jobs(jobs: Sequence[Job], deadline_s: float = DEADLINE_S) -> list[Run]:
    """Carries out jobs of one world size, one after another, in one gang.

    A gang that runs other solutions than references is forked for it, since they may be hostile or keep something.

    Raises:
        RuntimeError: a rank raised, died or took too long; holds its traceback.
    """
    runs = [job.prepare() for job in jobs]
    world_size = jobs[0].world_size
    if all(job.solution is None for job in jobs):
        outputs = _REFERENCE_RANKS.run(runs, world_size, deadline_s)
    else:
        outputs = _run_in_forked_ranks(jobs, runs, world_size, deadline_s)
    for run, of_ranks in zip(runs, outputs, strict=True):
        run.outputs.extend(of_ranks)
    return runs


class _ReferenceRanks:
    """Ranks that call references, kept from one test to the next: a gang for each world size."""

    def __init__(self) -> None:
        self._gangs: dict[int, tuple[LastingRanks, tempfile.TemporaryDirectory[str]]] = {}

    def run(self, runs: Sequence[Run], world_size: int, deadline_s: float) -> list[list[Any]]:
        """Outputs of each rank in each run."""
        calls = [[(run.problem.name, run.axes[rank], run.args[rank]) for run in runs] for rank in range(world_size)]
        try:
            outputs = self._gang(world_size).ask(calls, deadline_s)
        except BaseException:
            self._end(world_size)
            raise
        return [list(of_ranks) for of_ranks in zip(*outputs, strict=True)]

    def _gang(self, world_size: int) -> LastingRanks:
        if world_size not in self._gangs:
            folder = tempfile.TemporaryDirectory()  # the store is read whenever a group is made
            join = functools.partial(_join, f"{folder.name}/store", world_size)
            self._gangs[world_size] = LastingRanks(world_size, join, _call_references), folder
        return self._gangs[world_size][0]

    def _end(self, world_size: int) -> None:
        gang, folder = self._gangs.pop(world_size)
        gang.close()
        folder.cleanup()

    def pids(self) -> list[int]:
        """Of all ranks."""
        return [pid for gang, _ in self._gangs.values() for pid in gang.pids]

    def close(self) -> None:
        """Ends all ranks."""
        for world_size in list(self._gangs):
            self._end(world_size)


_REFERENCE_RANKS = _ReferenceRanks()


def _call_references(rank: int, calls: Sequence[tuple[str, Axes, dict[str, Any]]]) -> list[dict[str, torch.Tensor]]:
    """What one rank's references give, called one after another."""
    return [_call(find_problem(name), axes, args, rank, None) for name, axes, args in calls]


def lasting_pids() -> list[int]:
    """Of processes that may outlive a test."""
    return _REFERENCE_RANKS.pids()


def end_lasting_processes() -> None:
    """Ends what may outlive a test."""
    _REFERENCE_RANKS.close()


def _run_in_forked_ranks(
    jobs: Sequence[Job], runs: Sequence[Run], world_size: int, deadline_s: float
) -> list[list[Any]]:
    """Outputs of each rank in each run."""
    torch.set_num_threads(1)  # a forked process has no OpenMP threads, and must not wait for any
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=_rank, args=(rank, jobs, runs, folder)) for rank in range(world_size)]
        try:
            for process in ranks:
                process.start()
            _wait(ranks, Path(folder), deadline_s)
            return [
                [torch.load(f"{folder}/{index}-{rank}.pt", weights_only=True) for rank in range(world_size)]
                for index in range(len(runs))
            ]
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _wait(ranks: list[Any], folder: Path, deadline_s: float) -> None:
    """Waits until every rank has ended well."""
    deadline = time.monotonic() + deadline_s
    running = list(ranks)
    while running:
        wait([process.sentinel for process in running], timeout=max(0.0, deadline - time.monotonic()))
        exits = [process.exitcode for process in ranks]  # once: a process may end at any moment
        for rank, status in enumerate(exits):
            if status:
                error = folder / f"{rank}.error"
                raise RuntimeError(error.read_text() if error.exists() else f"rank {rank}: exit {status}")
        running = [process for process, status in zip(ranks, exits, strict=True) if status is None]
        if running and time.monotonic() > deadline:
            raise RuntimeError(f"{len(running)} ranks still run after {deadline_s} s")


def _rank(rank: int, jobs: Sequence[Job], runs: Sequence[Run], folder: str) -> None:
    """One rank: joins the gang, calls each job's `solution` (the reference by default), stores its outputs."""
    status = 1
    gc.disable()  # a collection would touch, and so copy, all that the fork shares with the test process
    try:
        _join(f"{folder}/store", len(runs[0].axes), rank)
        for index, (job, run) in enumerate(zip(jobs, runs, strict=True)):
            outputs = _call(run.problem, run.axes[rank], run.args[rank], rank, job.solution)
            torch.save(outputs, f"{folder}/{index}-{rank}.pt")
        dist.barrier()
        status = 0
    except BaseException:
        Path(folder, f"{rank}.error").write_text(f"rank {rank}: {traceback.format_exc()}")
    os._exit(status)  # no teardown: what the fork copied belongs to the test process


def _join(store: str, world_size: int, rank: int) -> None:
    """Makes the default process group."""
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # torch 2.13 renames two collectives
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=DEADLINE_S),
    )
    gloo_compat.install()


def _call(
    problem: Problem, ax: Axes, args: dict[str, Any], rank: int, solution: Callable[..., Any] | None
) -> dict[str, torch.Tensor]:
    """One rank's results of one call of a solution, by default the reference, by leaf name."""
    mine = copy.deepcopy(args)
    if solution is None:
        solution = importlib.import_module(f"{_module(problem.name)}.reference").solution
    result = solution(*[_call_value(arg, ax, mine, rank) for arg in problem.args])
    for arg in problem.data_args:
        if not getattr(arg, "mutable", False):
            assert same(mine[arg.name], args[arg.name]), f"{arg.name} was modified"
    return _outputs(problem, ax, result, mine)


def _call_value(arg: Any, ax: Axes, data: Mapping[str, Any], rank: int) -> Any:
    """The argument as `solution` receives it."""
    if isinstance(arg, TensorList) and arg.bare is not None and ax[arg.bare]:
        return data[arg.name][0]
    if isinstance(arg, Tensor | TensorList):
        return data[arg.name]
    if isinstance(arg, Sparse):
        shape = resolve_shape(arg.shape, ax)
        return torch.sparse_coo_tensor(*data[arg.name], shape, is_coalesced=True, check_invariants=False)
    if isinstance(arg, Linear):
        weight, bias = data[arg.name]
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
        layer.weight = torch.nn.Parameter(weight)
        if bias is not None:
            layer.bias = torch.nn.Parameter(bias)
        return layer
    value = ax[arg.axis or arg.name]
    if isinstance(arg, Scalar):
        return list(value) if isinstance(value, tuple) else value
    if value is None:
        return None
    made = [_group(tuple(part)) for part in value]  # every rank makes every group
    return next(group for group, part in zip(made, value, strict=True) if rank in part)


@functools.cache
def _group(ranks: tuple[int, ...]) -> Any:
    """A process group; made once by ranks that serve many tests."""
    return dist.new_group(list(ranks))


def _result_leaves(problem: Problem, ax: Axes) -> list[Leaf]:
    """Every tensor that is compared, in-place results included, in declared order."""
    data = {arg.name: arg for arg in problem.data_args}
    leaves: list[Leaf] = []
    for out in problem.outputs:
        leaves += argument_leaves(data[out.name], ax) if isinstance(out, InPlace) else output_leaves(out, ax)
    return leaves


def _outputs(problem: Problem, ax: Axes, result: Any, data: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Results by leaf name, their shapes and dtypes compared with the declaration."""
    if problem.returns == "value":
        values = [result] if problem.returned else []
    else:
        values = [result.get(out.key) for out in problem.returned] if problem.returns == "dict" else list(result)
    named = [(out.name, value) for out, value in zip(problem.returned, values, strict=True)]
    named += [(out.name, data[out.name]) for out in problem.outputs if isinstance(out, InPlace)]
    found: dict[str, Any] = {}
    for owner, value in named:
        found |= {f"{owner}[{i}]": part for i, part in enumerate(value)} if isinstance(value, list) else {owner: value}
    found = {leaf: torch.tensor(size) if isinstance(size, tuple) else size for leaf, size in found.items()}
    outputs = {leaf: value.detach() for leaf, value in found.items() if value is not None}
    assert list(outputs) == [leaf.name for leaf in _result_leaves(problem, ax)], list(outputs)
    for leaf in _result_leaves(problem, ax):
        got = outputs[leaf.name]
        assert str(got.dtype) == f"torch.{leaf.dtype}", (leaf, got.dtype)
        assert got.numel() <= leaf.capacity if leaf.shape is None else tuple(got.shape) == leaf.shape, (leaf, got.shape)
    return outputs


def same(left: Any, right: Any) -> bool:
    """Whether two values (tensors, or lists and tuples of them, or None) hold the same bits."""
    if isinstance(left, torch.Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and torch.equal(as_integers(left.contiguous()), as_integers(right.contiguous()))
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))
    return left == right


@functools.cache
def _module(name: str) -> str:
    """Dotted name of the problem's folder."""
    root = Path(pkb_gym.__file__).parent / "problems"
    found = [path.parent for path in root.glob(f"*/{snake_case(name)}/problem.py")]
    assert len(found) == 1, f"{name}: {len(found)} folders called {snake_case(name)}"
    return f"pkb_gym.problems.{found[0].parent.name}.{found[0].name}"
