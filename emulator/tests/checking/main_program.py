"""A program with a `main` that runs in several modes, built once for the tests of a module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rank_emulator import Outcome, Schedule
from rank_emulator.checking import Built, Options, Program, Run, build_program, run_program
from rank_emulator.children import run_each

TOGETHER = Schedule()


@dataclass(frozen=True)
class MainProgram:
    """A built program.

    Attributes:
        emulator: Path of the emulator.
        built: Program without arguments, with its code.
        ranks: Number of ranks.
        one_process: Whether the ranks are GPUs of one process.
    """

    emulator: Path
    built: Built
    ranks: int
    one_process: bool = False

    @classmethod
    def of(cls, text: str, ranks: int, emulator: Path | None, folder: Path) -> MainProgram:
        """Builds the source in an empty folder; skips the test where there is no emulator."""
        if emulator is None:
            pytest.skip("needs the CUDA toolkit")
        source = folder / "program.cu"
        source.write_text(text)
        return cls(emulator, build_program(Program((source,)), ranks), ranks)

    @classmethod
    def of_one_process(cls, source: Path, gpus: int, emulator: Path | None, *flags: str) -> MainProgram:
        """Builds a source whose process has several GPUs; skips the test where there is no emulator."""
        if emulator is None:
            pytest.skip("needs the CUDA toolkit")
        return cls(emulator, build_program(Program((source,), flags=flags), gpus), gpus, one_process=True)

    def run(self, *arguments: str, schedule: Schedule = TOGETHER, timeout_s: int = 60) -> Run:
        """Runs it with these arguments."""
        program = Program(self.built.program.sources, arguments=arguments)
        options = Options(timeout_s=timeout_s, one_process=self.one_process)
        return run_program(self.emulator, Built(program, self.built.code), self.ranks, schedule, options)

    def run_apart(self, *arguments: str, schedule: Schedule = TOGETHER) -> Run:
        """The same in a child process, which threads that wait for ever end with."""
        (ended,) = run_each(
            [schedule],
            lambda order: self.run(*arguments, schedule=order),
            name=str,
            is_fine=lambda run: run.outcome is Outcome.OK,
            lost=lambda order, outcome, message: Run(self.ranks, order, outcome, message),
            timeout_s=100,
        )
        return ended
