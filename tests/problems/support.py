"""Runs a problem's reference on forked gloo ranks and hands back every rank's axes, arguments and outputs."""

from __future__ import annotations

import copy
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

    Raises:
        RuntimeError: a rank raised, died or took too long; holds its traceback.
    """
    runs = [job.prepare() for job in jobs]
    world_size = jobs[0].world_size
    torch.set_num_threads(1)  # a forked process has no OpenMP threads, and must not wait for any
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=_rank, args=(rank, jobs, runs, folder)) for rank in range(world_size)]
        try:
            for process in ranks:
                process.start()
            _wait(ranks, Path(folder), deadline_s)
            for index, run in enumerate(runs):
                paths = [f"{folder}/{index}-{rank}.pt" for rank in range(world_size)]
                run.outputs.extend(torch.load(path, weights_only=True) for path in paths)
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()
    return runs


def run_each(jobs: Sequence[Job], idle_s: float = 5.0) -> list[Run | None]:
    """As `run_jobs`, but goes on behind a job that raises or hangs, with a new gang; that job's place holds None.

    Args:
        jobs: of one world size.
        idle_s: a gang that finishes no job in this time hangs.
    """
    runs = [job.prepare() for job in jobs]
    done: list[Run | None] = []
    while len(done) < len(jobs):
        finished = _run_until_failure(jobs[len(done) :], runs[len(done) :], idle_s)
        done += finished
        if len(done) < len(jobs):
            done.append(None)
    return done


def _run_until_failure(jobs: Sequence[Job], runs: Sequence[Run], idle_s: float) -> Sequence[Run]:
    """The runs, with their outputs, up to the first whose job raises or hangs."""
    world_size = jobs[0].world_size
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=_rank, args=(rank, jobs, runs, folder)) for rank in range(world_size)]
        try:
            for process in ranks:
                process.start()
            seen, deadline = -1, time.monotonic() + idle_s
            while any(process.exitcode is None for process in ranks) and not any(p.exitcode for p in ranks):
                wait([process.sentinel for process in ranks if process.exitcode is None], timeout=0.2)
                if (count := len(os.listdir(folder))) != seen:
                    seen, deadline = count, time.monotonic() + idle_s
                elif time.monotonic() > deadline:
                    break
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()
        finished = 0
        for index, run in enumerate(runs):
            paths = [Path(folder, f"{index}-{rank}.pt") for rank in range(world_size)]
            if not all(path.exists() for path in paths):
                break
            run.outputs.extend(torch.load(path, weights_only=True) for path in paths)
            finished += 1
        return runs[:finished]


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
        warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # torch 2.13 renames two collectives
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=len(runs[0].axes),
            timeout=timedelta(seconds=DEADLINE_S),
        )
        gloo_compat.install()
        for index, (job, run) in enumerate(zip(jobs, runs, strict=True)):
            torch.save(_call(job, run, rank), f"{folder}/{index}-{rank}.pt")
            dist.barrier()  # a rank that raises in the next job leaves this one whole
        status = 0
    except BaseException:
        Path(folder, f"{rank}.error").write_text(f"rank {rank}: {traceback.format_exc()}")
    os._exit(status)  # no teardown: what the fork copied belongs to the test process


def _call(job: Job, run: Run, rank: int) -> dict[str, torch.Tensor]:
    """One rank's results of one job, by leaf name."""
    problem, ax = run.problem, run.axes[rank]
    mine = copy.deepcopy(run.args[rank])
    solution = job.solution
    if solution is None:
        solution = importlib.import_module(f"{_module(problem.name)}.reference").solution
    result = solution(*[_call_value(arg, ax, mine, rank) for arg in problem.args])
    for arg in problem.data_args:
        if not getattr(arg, "mutable", False):
            assert same(mine[arg.name], run.args[rank][arg.name]), f"{arg.name} was modified"
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
    made = [dist.new_group(list(part)) for part in value]  # every rank makes every group
    return next(group for group, part in zip(made, value, strict=True) if rank in part)


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


def _module(name: str) -> str:
    """Dotted name of the problem's folder."""
    root = Path(pkb_gym.__file__).parent / "problems"
    found = [path.parent for path in root.glob(f"*/{snake_case(name)}/problem.py")]
    assert len(found) == 1, f"{name}: {len(found)} folders called {snake_case(name)}"
    return f"pkb_gym.problems.{found[0].parent.name}.{found[0].name}"
