"""Checks of a program under many schedules, and what they find."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from rank_emulator.building import build
from rank_emulator.children import run_each
from rank_emulator.findings import Access, Finding
from rank_emulator.interface import Outcome
from rank_emulator.schedules import Schedule
from rank_emulator.schedules import schedules as varied_schedules

from .buffers import Array, Buffer, UsageError
from .programs import Program
from .reference import Reference, Tolerance, difference, expected_outputs
from .runs import Built, Options, Run, build_program, run_program
from .triton_kernels import TritonProgram

_MAX_LINES = 10
"""Lines of a failed run's output in its message."""
_GRACE_S = 60
"""Seconds beyond the limit of a run after which its process is ended."""

KINDS: dict[str, str] = {
    "wrong_output": "An output is not what the reference says.",
    "unsynchronised": "No flag, barrier or completion leads from one access to the other.",
    "weak_order": "A flag leads from one access to the other, without the order, scope or proxy that PTX asks for.",
    "benign": "Both accesses store the same value.",
    "out_of_bounds": "An access beyond a buffer, inside other memory.",
    "uninitialised_read": "A read of memory that nobody has written.",
    "misaligned": "An access whose address is no multiple of its size.",
    "divergent_barrier": "A barrier that a part of a warp or block does not reach.",
    "mbarrier_leak": "Bytes that an mbarrier announces and nobody waits for.",
    "bulk_copy_leak": "A block ends while a bulk copy may still read its shared memory.",
    "ended_block": "A block ends while another block of its cluster may still access its shared memory.",
    "deadlock": "Nobody can go on.",
    "illegal_address": "An access outside of all memory, or one of host code to memory of a GPU.",
    "unknown_instruction": "An instruction that the emulator lacks.",
    "trap": "A kernel has ended itself by trap or assert, or an operation ended it with an error.",
    "body_failed": "The program, a function of CUDA or a library has returned an error.",
    "stopped": "The run has not ended in time.",
    "step_limit": "The run has executed too many instructions.",
    "bad_launch": "A kernel that cannot be read or launched.",
    "crashed": "The process of all ranks has crashed.",
}
"""Kinds of problems, and what they are."""

HARMLESS = frozenset({"benign"})
"""Kinds that fail no check."""


@dataclass(frozen=True)
class Place:
    """A line of a source.

    Attributes:
        file: Path of the file, relative to the current folder where it lies there.
        line: Number of the line, from 1.
    """

    file: str
    line: int


@dataclass(frozen=True)
class Problem:
    """What is wrong with a program, once for each pair of source lines.

    Attributes:
        kind: Class of a race ("unsynchronised", "weak_order", "benign"), kind of another finding of the detector (such
            as "out_of_bounds"), name of a run's outcome ("deadlock", "illegal_address", "body_failed", ...) or
            "wrong_output".
        message: Description with both accesses, their source lines, and a remedy.
        exposure: What a GPU would have to do for outputs to show a race; None for other problems.
        first: Source line of the earlier access; None where there is none.
        second: Source line of the later access, or of the only one; None where it is unknown.
        world_size: Number of ranks of the run that showed it first.
        schedule: Order of execution of that run, which shows it again.
        count: Number of runs that have shown it.
    """

    kind: str
    message: str
    exposure: str | None
    first: Place | None
    second: Place | None
    world_size: int
    schedule: Schedule
    count: int = 1

    @property
    def is_harmless(self) -> bool:
        """Whether it fails no check."""
        return self.kind in HARMLESS


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
        problems: What is wrong, the worst first; harmless races last.
        runs: Number of runs, one for each number of ranks and each schedule.
        world_sizes: Numbers of ranks.
        one_process: Whether the ranks were GPUs of one process.
        printed: Text that the first run has printed.
    """

    problems: tuple[Problem, ...]
    runs: int
    world_sizes: tuple[int, ...]
    one_process: bool = False
    printed: str = field(default="", repr=False)

    @property
    def passed(self) -> bool:
        """Whether no problem was found; harmless races are none."""
        return all(problem.is_harmless for problem in self.problems)


def default_cache() -> Path:
    """Folder of the compiled emulator: `rank-emulator` in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rank-emulator"


def check(
    program: Program | TritonProgram,
    ranks: int | Sequence[int] = 4,
    *,
    schedules: int | Sequence[Schedule] = 20,
    reference: Reference | None = None,
    tolerance: Tolerance = Tolerance(),  # noqa: B008  # frozen
    allow: Iterable[str] = (),
    options: Options = Options(),  # noqa: B008  # frozen
    emulator: Path | None = None,
) -> Report:
    """Compiles a program for each number of ranks, and runs it under each schedule.

    Args:
        program: Declaration of the program.
        ranks: Number of ranks, 1 to 16, or several numbers.
        schedules: Number of orders of execution for each number of ranks, at least 1, or the orders.
        reference: Function that gives each rank's outputs of all ranks' inputs; None compares nothing.
        tolerance: Largest difference of outputs.
        allow: Kinds of problems that are left out, such as "weak_order".
        options: How the program runs.
        emulator: The compiled emulator; None builds it in `default_cache`, once for each machine.

    Raises:
        CompileError: nvcc refuses the program.
        UsageError: An argument is not as it must be.
        EmulatorError: The emulator or the CUDA toolkit is missing.
    """
    world_sizes = (ranks,) if isinstance(ranks, int) else tuple(ranks)
    for world_size in world_sizes:
        if not 1 <= world_size <= 16:
            raise UsageError(f"the number of ranks must be 1 to 16, got {world_size}")
    unknown = sorted(set(allow) - set(KINDS))
    if unknown:
        raise UsageError(f"there is no kind {', '.join(unknown)} to allow; the kinds are {', '.join(KINDS)}")
    if options.calls < 1:
        raise UsageError(f"the number of calls must be at least 1, got {options.calls}")
    if options.one_process and not (isinstance(program, Program) and program.has_main):
        raise UsageError(
            "one process with several GPUs runs a main: calls and Triton kernels have a process for each rank"
        )
    if reference is not None and program.has_main:
        raise UsageError("a reference needs declared buffers, and a program with main has none")
    if emulator is None:
        emulator = build(default_cache())
    problems = _Problems(frozenset(allow))
    printed: str | None = None
    count = 0
    for world_size in world_sizes:
        built = build_program(program, world_size)
        orders = (
            islice(varied_schedules(options.seed, world_size), schedules) if isinstance(schedules, int) else schedules
        )
        expected = _expected(reference, built.program, world_size, options)
        for run in _runs(emulator, built, world_size, list(orders), options):
            count += 1
            printed = run.printed if printed is None else printed
            problems.add(run)
            problems.compare(run, built.program.buffers, expected, tolerance)
    return Report(problems.sorted(), count, world_sizes, options.one_process, printed or "")


def _expected(
    reference: Reference | None, program: Program | TritonProgram, world_size: int, options: Options
) -> list[dict[str, list[Array]]]:
    if reference is None:
        return []
    calls = (0 if options.keep_inputs else call for call in range(options.calls))
    return [expected_outputs(reference, program.buffers, world_size, call, options.seed) for call in calls]


def _runs(emulator: Path, built: Built, world_size: int, orders: list[Schedule], options: Options) -> Iterator[Run]:
    if not orders:
        raise UsageError("the number of schedules must be at least 1")
    yield from run_each(
        orders,
        lambda schedule: run_program(emulator, built, world_size, schedule, options),
        name=lambda schedule: f"schedule {schedule.policy}:{schedule.seed}",
        is_fine=lambda run: run.outcome is Outcome.OK,
        lost=lambda schedule, outcome, message: Run(world_size, schedule, outcome, message),
        timeout_s=options.timeout_s + _GRACE_S,
    )


_WORST_FIRST = ("wrong_output", "unsynchronised", "weak_order", "benign")


class _Problems:
    """Problems of runs, those of the same lines together."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed
        self._found: dict[tuple[object, ...], Problem] = {}

    def add(self, run: Run) -> None:
        """Adds what a run has found, and how it has failed."""
        seen: set[tuple[object, ...]] = set()
        for finding in run.findings:
            self._note(_of_finding(finding, run), (finding.missing,), seen)
        if run.outcome is not Outcome.OK:
            prefix = "rank " if run.rank is None else f"rank {run.rank}: "
            printed = [line for line in run.printed.splitlines() if line.startswith(prefix)][-_MAX_LINES:]
            message = "\n  ".join([run.message, *(["it has printed:"] if printed else []), *printed])
            kind = run.outcome.name.lower()
            problem = Problem(kind, message, None, None, None, run.world_size, run.schedule)
            self._note(problem, (re.sub(r"\d+", "N", run.message.partition("\n")[0]),), seen)

    def compare(
        self, run: Run, declared: Sequence[Buffer], expected: list[dict[str, list[Array]]], tolerance: Tolerance
    ) -> None:
        """Adds the outputs of a run that differ from the expected ones of each call."""
        seen: set[tuple[object, ...]] = set()
        buffers = {buffer.name: buffer for buffer in declared}
        for call, name in ((call, name) for call, of_call in enumerate(expected) for name in of_call):
            buffer = buffers[name]
            for rank, values in enumerate(expected[call][name]):
                content = run.outputs.get((call, rank, name))
                text = None if content is None else difference(buffer, content, values, tolerance)
                if text is not None:
                    message = f"rank {rank}, call {call}: {text}"
                    problem = Problem("wrong_output", message, None, None, None, run.world_size, run.schedule)
                    self._note(problem, (buffer.name,), seen)

    def _note(self, problem: Problem, further: tuple[str, ...], seen: set[tuple[object, ...]]) -> None:
        if problem.kind in self._allowed:
            return
        key = (problem.kind, problem.first, problem.second, *further)
        known = self._found.get(key)
        if known is None:
            self._found[key] = problem
        elif key not in seen:
            self._found[key] = replace(known, count=known.count + 1)
        seen.add(key)

    def sorted(self) -> tuple[Problem, ...]:
        """All problems, the worst first."""
        kinds = _WORST_FIRST
        return tuple(
            sorted(self._found.values(), key=lambda each: kinds.index(each.kind) if each.kind in kinds else -1)
        )


def _of_finding(finding: Finding, run: Run) -> Problem:
    first, second = _place(finding.first), _place(finding.second)
    if second is None:
        first, second = None, first
    kind = finding.finding_class or finding.kind
    return Problem(kind, finding.message, finding.exposure, first, second, run.world_size, run.schedule)


def _place(access: Access | None) -> Place | None:
    """The line of an access; of code that was inlined from elsewhere, such as headers of CUDA, that of its caller."""
    if access is None or access.file is None or access.line is None:
        return None
    inner = Place(_shown(access.file), access.line)
    if not Path(inner.file).is_absolute() or access.outer_file is None or access.outer_line is None:
        return inner
    return Place(_shown(access.outer_file), access.outer_line)


def _shown(file: str) -> str:
    path = os.path.relpath(file) if Path(file).is_absolute() else file
    return file if path.startswith("..") else path
