"""Runs a problem's reference on forked gloo ranks and hands back every rank's axes, arguments and outputs."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pkb_gym.engine.problem import Axes, Problem
from pkb_gym.engine.problem.inputs import Draw, TrialKey
from pkb_gym.engine.problem.rules import Check, CheckContext
from pkb_gym.engine.problem.trial_inputs import make_inputs
from tests.problems import rank_calls
from tests.problems.lasting_ranks import LastingRanks, Work
from tests.problems.rank_calls import DEADLINE_S, call_solution, find_problem, join_gang
from tests.problems.rank_calls import same as same

KEY = b"tests"


@dataclass(frozen=True)
class Run:
    """What one call of a reference saw and gave.

    Attributes:
        problem: Declaration of the problem.
        axes: Axes per rank.
        args: Data arguments per rank, by name, as they were before the call.
        outputs: Results per rank, by leaf name, in-place results included.
        protocol: Protocol of the run.
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
        args: Data arguments instead of the drawn ones (per rank, by name; shapes as declared), for edge cases.
        solution: Solution instead of the reference; its module-level state lasts as long as one `run_jobs`.
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

    Ranks that last call references, and solutions that can be sent to them; for others, ranks are forked.

    Raises:
        RuntimeError: a rank raised, died or took too long; holds its traceback.
    """
    runs = [job.prepare() for job in jobs]
    world_size = jobs[0].world_size
    if all(job.solution is None for job in jobs):
        calls = [[(run.problem.name, run.axes[r], run.args[r]) for run in runs] for r in range(world_size)]
        outputs = _REFERENCE_RANKS.run(calls, deadline_s)
    elif all(job.solution is None or isinstance(job.solution, MadeInRanks) for job in jobs):
        outputs = _run_in_solution_ranks(jobs, runs, world_size, deadline_s)
    else:
        outputs = _run_in_forked_ranks(jobs, runs, world_size, deadline_s)
    for run, of_ranks in zip(runs, outputs, strict=True):
        run.outputs.extend(of_ranks)
    return runs


@dataclass
class MadeInRanks:
    """A solution that ranks can be sent: each makes it for itself, anew for each `run_jobs`.

    Attributes:
        make: Function at the top of a module that gives the solution.
        argument: Argument of that function.
    """

    make: Callable[[str], Callable[..., Any]]
    argument: str
    _made: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """Calls the solution."""
        if self._made is None:
            self._made = self.make(self.argument)
        return self._made(*args)


class _LastingGangs:
    """Ranks that are kept from one test to the next: a gang for each world size.

    Args:
        work: Work of each rank.
        join: Whether the ranks of a gang have one process group for all their work.
    """

    def __init__(self, work: Work, *, join: bool) -> None:
        self._work, self._join = work, join
        self._gangs: dict[int, tuple[LastingRanks, tempfile.TemporaryDirectory[str]]] = {}

    def run(self, requests: Sequence[Any], deadline_s: float) -> list[list[Any]]:
        """What each rank gives for its request, by call and rank."""
        world_size = len(requests)
        try:
            replies = self._gang(world_size).ask(requests, deadline_s)
        except BaseException:
            self._end(world_size)
            raise
        return [list(of_ranks) for of_ranks in zip(*replies, strict=True)]

    def _gang(self, world_size: int) -> LastingRanks:
        if world_size not in self._gangs:
            folder = tempfile.TemporaryDirectory()  # the store is read whenever a group is made
            join = functools.partial(join_gang, f"{folder.name}/store", world_size)
            begin = join if self._join else _begin_alone
            self._gangs[world_size] = LastingRanks(world_size, begin, self._work), folder
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


def _begin_alone(rank: int) -> None:
    """A rank that joins others for each request."""


def _call_references(rank: int, calls: Sequence[tuple[str, Axes, dict[str, Any]]]) -> list[dict[str, torch.Tensor]]:
    """What one rank's references give, called one after another."""
    return [call_solution(find_problem(name), axes, args, rank, None) for name, axes, args in calls]


STATEFUL = re.compile(r"pkb_gym\.problems\.\w+\.\w+\.reference|tests\.problems\.\w+_counterfeits")
"""Modules that solutions import, and that may keep something: groups of a gang, or results."""


def forget_state() -> None:
    """Has such modules imported, and groups made, anew: those of a gang that has ended give wrong results."""
    for name in [name for name in sys.modules if STATEFUL.fullmatch(name)]:
        del sys.modules[name]
    rank_calls.forget_groups()


def _call_solutions(rank: int, request: tuple[str, int, Sequence[tuple[Any, ...]]]) -> list[dict[str, torch.Tensor]]:
    """What one rank's solutions give; nothing but the process is older than the request, or outlives it."""
    store, world_size, calls = request
    forget_state()
    join_gang(store, world_size, rank)
    outputs = [call_solution(find_problem(name), axes, args, rank, solution) for name, axes, args, solution in calls]
    dist.barrier()
    dist.destroy_process_group()
    return outputs


def _run_in_solution_ranks(
    jobs: Sequence[Job], runs: Sequence[Run], world_size: int, deadline_s: float
) -> list[list[Any]]:
    """Outputs of each rank in each run."""
    with tempfile.TemporaryDirectory() as folder:
        requests = []
        for rank in range(world_size):
            calls = [
                (run.problem.name, run.axes[rank], run.args[rank], job.solution)
                for job, run in zip(jobs, runs, strict=True)
            ]
            requests.append((f"{folder}/store", world_size, calls))
        return _SOLUTION_RANKS.run(requests, deadline_s)


_REFERENCE_RANKS = _LastingGangs(_call_references, join=True)
_SOLUTION_RANKS = _LastingGangs(_call_solutions, join=False)


def lasting_pids() -> list[int]:
    """Of processes that may outlive a test."""
    return [*_REFERENCE_RANKS.pids(), *_SOLUTION_RANKS.pids()]


def end_lasting_processes() -> None:
    """Ends what may outlive a test."""
    _REFERENCE_RANKS.close()
    _SOLUTION_RANKS.close()


def _run_in_forked_ranks(
    jobs: Sequence[Job], runs: Sequence[Run], world_size: int, deadline_s: float
) -> list[list[Any]]:
    """Outputs of each rank in each run."""
    with _forked_ranks(jobs, runs, world_size) as (ranks, folder):
        _wait(ranks, folder, deadline_s)
        return [
            [torch.load(folder / f"{index}-{rank}.pt", weights_only=True) for rank in range(world_size)]
            for index in range(len(runs))
        ]


@contextlib.contextmanager
def _forked_ranks(
    jobs: Sequence[Job], runs: Sequence[Run], world_size: int
) -> Iterator[tuple[list[ForkProcess], Path]]:
    """Processes that have begun, ended with the block, and the folder that they leave outputs in."""
    torch.set_num_threads(1)  # a forked process has no OpenMP threads, and must not wait for any
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=_rank, args=(rank, jobs, runs, folder)) for rank in range(world_size)]
        try:
            for process in ranks:
                process.start()
            yield ranks, Path(folder)
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()


def run_each(jobs: Sequence[Job], idle_s: float = 5.0) -> list[Run | None]:
    """Runs jobs, each in spite of earlier ones that raise or hang; the place of such a job holds None.

    Args:
        jobs: Jobs of one world size.
        idle_s: Time in seconds after which a gang that finishes no job counts as hanging.
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
    with _forked_ranks(jobs, runs, world_size) as (ranks, folder):
        seen, deadline = -1, time.monotonic() + idle_s
        while any(process.exitcode is None for process in ranks) and not any(process.exitcode for process in ranks):
            wait([process.sentinel for process in ranks if process.exitcode is None], timeout=0.2)
            if (count := len(os.listdir(folder))) != seen:
                seen, deadline = count, time.monotonic() + idle_s
            elif time.monotonic() > deadline:
                break
        finished = 0
        for index, run in enumerate(runs):
            paths = [folder / f"{index}-{rank}.pt" for rank in range(world_size)]
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
        join_gang(f"{folder}/store", len(runs[0].axes), rank)
        for index, (job, run) in enumerate(zip(jobs, runs, strict=True)):
            outputs = call_solution(run.problem, run.axes[rank], run.args[rank], rank, job.solution)
            torch.save(outputs, f"{folder}/{index}-{rank}.part")
            os.replace(f"{folder}/{index}-{rank}.part", f"{folder}/{index}-{rank}.pt")
            dist.barrier()  # a rank that raises in the next job leaves this one whole
        status = 0
    except BaseException:
        Path(folder, f"{rank}.error").write_text(f"rank {rank}: {traceback.format_exc()}")
    os._exit(status)  # no teardown: what the fork copied belongs to the test process
