"""Many small programs, compiled once, each in a world of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .children import run_each
from .errors import EmulatorError
from .findings import Finding
from .interface import Outcome
from .schedules import Schedule
from .world import Shape, World

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One program of a batch.

    Attributes:
        name: Name of the function that the library exports, or of the kernel in the PTX.
        schedules: Orders of execution, a run for each; None for those of the batch.
        grid: Blocks in each dimension, of PTX alone.
        block: Threads of a block in each dimension, of PTX alone.
        cluster: Blocks of a cluster in each dimension, of PTX alone.
        dynamic_shared_bytes: Dynamic shared memory of a block in bytes, of PTX alone.
    """

    name: str
    schedules: Sequence[Schedule] | None = None
    grid: Shape = (1, 1, 1)
    block: Shape = (32, 1, 1)
    cluster: Shape = (1, 1, 1)
    dynamic_shared_bytes: int = 0


@dataclass(frozen=True)
class Result(Generic[T]):
    """The end of one run of a batch.

    Attributes:
        name: Name of the entry.
        schedule: Order of execution of the run.
        outcome: Outcome of the run. A process that a signal has ended is `Outcome.CRASHED`; host code that does not
            return in time is `Outcome.STOPPED`.
        message: Text of `Ended.message` with the exceptions of the ranks' bodies; empty after `Outcome.OK`.
        findings: Errors that the detector has found, if the world has one.
        inspected: Value of `inspect`; None without it, and for runs whose process was lost.
    """

    name: str
    schedule: Schedule
    outcome: Outcome
    message: str = ""
    findings: tuple[Finding, ...] = ()
    inspected: T | None = None


_Run = tuple[Entry, Schedule]


def batch(
    make_world: Callable[[Schedule], World],
    program: bytes | str,
    entries: Iterable[str | Entry],
    *,
    schedules: Sequence[Schedule] = (Schedule(),),
    inspect: Callable[[World], T] | None = None,
    timeout_s: float = 120.0,
) -> Iterator[Result[T]]:
    """Runs each entry under each of its schedules, every run in a new world.

    Worlds live in a child process, one after the other. A run that does not end with `Outcome.OK` costs its process and
    nothing else: the next run begins in a new one. A world costs about five milliseconds beside its instructions.

    An entry of a library is a function `int f(void* const* segments, int rank, int world_size, cudaStream_t stream)`,
    called on each rank's thread with the addresses of all ranks' segments; another result than 0 fails the run. An
    entry of PTX is a kernel, launched on each rank; its parameters are the addresses of all ranks' segments as u64, and
    the rank as u32. Kernels are trusted: they run with the rights of the caller.

    Args:
        make_world: World for a run under a schedule, with the regions and the content of its memory. It is called in
            the child process.
        program: Library that `compile_cuda` made, or the text of a PTX module.
        entries: Programs to run, or their names.
        schedules: Orders of execution of entries that name none.
        inspect: Value of a world whose run has ended, such as a part of its memory as `bytes`. It is called in the
            child process and must be picklable.
        timeout_s: Wall-clock time of one run in seconds after which its process is ended.

    Yields:
        The result of each entry under each schedule, in their order.

    Raises:
        EmulatorError: `make_world` or `inspect` has raised an exception.
    """
    named = [Entry(entry) if isinstance(entry, str) else entry for entry in entries]
    runs = [(entry, schedule) for entry in named for schedule in (entry.schedules or schedules)]

    def run(job: _Run) -> Result[T]:
        entry, schedule = job
        with make_world(schedule) as world:
            return _run_one(world, program, entry, schedule, inspect)

    def lost(job: _Run, outcome: Outcome, message: str) -> Result[T]:
        return Result(job[0].name, job[1], outcome, message)

    yield from run_each(
        runs,
        run,
        name=lambda job: job[0].name,
        is_fine=lambda result: result.outcome == Outcome.OK,
        lost=lost,
        timeout_s=timeout_s,
    )


def _run_one(
    world: World, program: bytes | str, entry: Entry, schedule: Schedule, inspect: Callable[[World], T] | None
) -> Result[T]:
    def call(rank: int) -> None:
        assert isinstance(program, bytes)
        function = world.load(program)[entry.name]
        function.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        status = function(segments, rank, world.world_size, world.stream())
        if status:
            raise EmulatorError(f"{entry.name} returned {status} on rank {rank}")
        world.synchronize()

    def launch(rank: int) -> None:
        assert isinstance(program, str)
        world.load_ptx(program)
        world.launch(
            entry.name,
            [*map(ctypes.c_uint64, world.segments), ctypes.c_uint32(rank)],
            grid=entry.grid,
            block=entry.block,
            cluster=entry.cluster,
            dynamic_shared_bytes=entry.dynamic_shared_bytes,
        )
        world.synchronize()

    segments = (ctypes.c_void_p * world.world_size)(*world.segments)
    ended = world.run(call if isinstance(program, bytes) else launch)
    message = "\n".join(filter(None, [ended.message, *map(str, ended.errors.values())]))
    inspected = None if inspect is None else inspect(world)
    return Result(entry.name, schedule, ended.outcome, message, world.findings().findings, inspected)
