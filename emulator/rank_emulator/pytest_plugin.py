"""The pytest fixture `ranks`, by which a test of a collective checks its CUDA sources without a GPU.

def test_all_reduce(ranks):
    ranks(
        "all_reduce.cu",
        args="x:bf16[1024],out:bf16[1024],flags:u32[64]=0",
        call="all_reduce<world_size>(x_ranks, out, flags_ranks, rank, stream)",
        world_size=(2, 4),
        reference=lambda x: {"out": [sum(x)] * len(x)},
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .checking.buffers import Buffer
    from .checking.checks import Report
    from .checking.reference import Reference, Tolerance
    from .checking.runs import Options


class Ranks:
    """Checks programs of several ranks; a call fails the test where a problem is found.

    Args:
        folder: Folder of the test, against which the paths of sources are read.
        schedules: Orders of execution for each number of ranks, where a call gives none.
        emulator: The compiled emulator; None builds it in the user's cache.
    """

    def __init__(self, folder: Path, schedules: int, emulator: Path | None) -> None:
        self._folder, self._schedules, self._emulator = folder, schedules, emulator

    def __call__(
        self,
        *sources: str | Path,
        args: str | Sequence[Buffer] = (),
        call: str | None = None,
        setup: str | None = None,
        world_size: int | Sequence[int] = 4,
        schedules: int | None = None,
        reference: Reference | None = None,
        tolerance: Tolerance | None = None,
        allow: Sequence[str] = (),
        include: Sequence[str] = (),
        flags: Sequence[str] = (),
        arguments: Sequence[str] = (),
        options: Options | None = None,
        may_fail: bool = False,
    ) -> Report:
        """Checks a program, and fails the test where a problem is found.

        Args:
            sources: Sources and objects, relative to the folder of the test.
            args: Declaration of the symmetric buffers, or the buffers.
            call: Expression that each rank evaluates for a call; None for `main`.
            setup: Expression that each rank evaluates once before its calls.
            world_size: Number of ranks, 1 to 16, or several numbers.
            schedules: Orders of execution for each number of ranks; None for that of the session.
            reference: Function that gives each rank's outputs of all ranks' inputs.
            tolerance: Largest difference of outputs.
            allow: Kinds of problems that are left out.
            include: Headers that declare what the expressions use.
            flags: Further options of nvcc.
            arguments: Arguments of `main`.
            options: How the program runs.
            may_fail: Whether problems are left to the caller, who looks at the report.

        Returns:
            The report.
        """
        from .checking.buffers import parse_buffers
        from .checking.checks import check
        from .checking.programs import Program
        from .checking.reference import Tolerance
        from .checking.reports import as_text
        from .checking.runs import Options

        program = Program(
            tuple(self._folder / source for source in sources),
            call,
            setup,
            parse_buffers(args) if isinstance(args, str) else tuple(args),
            tuple(include),
            tuple(flags),
            tuple(arguments),
        )
        report = check(
            program,
            world_size,
            schedules=self._schedules if schedules is None else schedules,
            reference=reference,
            tolerance=tolerance or Tolerance(),
            allow=allow,
            options=options or Options(),
            emulator=self._emulator,
        )
        if not (report.passed or may_fail):
            pytest.fail(as_text(report), pytrace=False)
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the fixture."""
    group = parser.getgroup("ranks", "programs of several ranks on emulated GPUs")
    group.addoption(
        "--ranks-schedules", type=int, default=20, metavar="N", help="orders of execution of each check (default: 20)"
    )
    group.addoption(
        "--ranks-emulator",
        type=Path,
        metavar="FILE",
        help="compiled emulator (default: made once, in the user's cache)",
    )


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Checks CUDA programs of several ranks on emulated GPUs."""
    config = request.config
    return Ranks(request.path.parent, config.getoption("--ranks-schedules"), config.getoption("--ranks-emulator"))
