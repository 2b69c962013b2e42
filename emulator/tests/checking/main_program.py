"""A program with a `main` that runs in several modes, built once for the tests of a module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rank_emulator import Schedule
from rank_emulator.checking import Built, Options, Program, Run, build_program, run_program

TOGETHER = Schedule()


@dataclass(frozen=True)
class MainProgram:
    """A built program.

    Attributes:
        emulator: Path of the emulator.
        built: Program without arguments, with its code.
        ranks: Number of ranks.
    """

    emulator: Path
    built: Built
    ranks: int

    @classmethod
    def of(cls, text: str, ranks: int, emulator: Path | None, folder: Path) -> MainProgram:
        """Builds the source in an empty folder; skips the test where there is no emulator."""
        if emulator is None:
            pytest.skip("needs the CUDA toolkit")
        source = folder / "program.cu"
        source.write_text(text)
        return cls(emulator, build_program(Program((source,)), ranks), ranks)

    def run(self, *arguments: str, schedule: Schedule = TOGETHER) -> Run:
        """Runs it with these arguments."""
        program = Program(self.built.program.sources, arguments=arguments)
        options = Options(timeout_s=60)
        return run_program(self.emulator, Built(program, self.built.code), self.ranks, schedule, options)
