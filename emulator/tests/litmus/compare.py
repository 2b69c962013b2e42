"""Verdicts of the axioms beside what the emulator and its race detector show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.tests.litmus.emulate import SCHEDULES, Observed, observe
from emulator.tests.litmus.model import Outcome
from emulator.tests.litmus.program import Program
from emulator.tests.litmus.verdicts import Pair, RaceClass, Verdict, verdict
from rank_emulator import Schedule

TOGETHER = 50
"""Programs that share a world."""
FURTHER = tuple(Schedule("priorities", seed) for seed in range(100, 200))
"""Schedules of programs whose race, or its class, needs a rare order of execution."""


@dataclass(frozen=True)
class Compared:
    """A program, with both answers.

    Attributes:
        program: The program.
        verdict: What the axioms say.
        observed: What the emulator has shown.
    """

    program: Program
    verdict: Verdict
    observed: Observed

    @property
    def impossible(self) -> set[Outcome]:
        """Outcomes that have been seen, though the axioms do not allow them."""
        return self.observed.outcomes - set(map(_of_global_memory, self.verdict.outcomes))

    @property
    def weak(self) -> set[Outcome]:
        """Outcomes that have been seen, though no interleaving has them."""
        return self.observed.outcomes - set(map(_of_global_memory, self.verdict.sequential))

    @property
    def false_pairs(self) -> set[Pair]:
        """Pairs of accesses that have been reported, though they race in no allowed execution."""
        return set(self.observed.races) - set(self.verdict.races)

    @property
    def is_racy(self) -> bool:
        """Whether some interleaving has a data race."""
        return bool(self.verdict.sequential_races)

    @property
    def is_racy_if_weak(self) -> bool:
        """Whether no interleaving has a data race, but some other allowed execution."""
        return bool(self.verdict.races) and not self.verdict.sequential_races

    @property
    def is_found(self) -> bool:
        """Whether the detector reports a race."""
        return bool(self.observed.races)

    @property
    def wrong_classes(self) -> dict[Pair, tuple[str, RaceClass]]:
        """Pairs whose class is another one than that of the axioms: reported, expected."""
        expected = self.verdict.races | self.verdict.sequential_races
        found = self.observed.races.items()
        return {pair: (of, expected[pair]) for pair, of in found if pair in expected and of != expected[pair]}


def _of_global_memory(outcome: Outcome) -> Outcome:
    return tuple((name, value) for name, value in outcome if not name.startswith("s"))


def compare(emulator: Path, programs: Sequence[Program]) -> list[Compared]:
    """Takes both answers for all programs."""
    compared = []
    for start in range(0, len(programs), TOGETHER):
        some = programs[start : start + TOGETHER]
        for program, seen in zip(some, observe(emulator, some, SCHEDULES), strict=True):
            one = Compared(program, verdict(program), seen)
            if one.wrong_classes or (one.is_racy and not one.is_found):
                one = Compared(program, one.verdict, observe(emulator, [program], FURTHER)[0])
            compared.append(one)
    return compared


@dataclass(frozen=True)
class Counts:
    """A row of the table.

    Attributes:
        name: Name of the family.
        racy: Programs of which some interleaving has a data race.
        found: Those of them that are reported.
        classified: Those of them whose races all have the class that the axioms give.
        right: Programs without a data race in any allowed execution.
        alarms: Those of them that are reported.
        racy_if_weak: Programs that have a data race in executions alone that no interleaving gives.
    """

    name: str
    racy: int
    found: int
    classified: int
    right: int
    alarms: int
    racy_if_weak: int


def count(name: str, compared: Iterable[Compared]) -> Counts:
    """Counts some programs."""
    all_of = list(compared)
    racy = [one for one in all_of if one.is_racy]
    right = [one for one in all_of if not one.verdict.races]
    return Counts(
        name=name,
        racy=len(racy),
        found=sum(one.is_found for one in racy),
        classified=sum(one.is_found and not one.wrong_classes for one in racy),
        right=len(right),
        alarms=sum(one.is_found for one in right),
        racy_if_weak=sum(one.is_racy_if_weak for one in all_of),
    )


def counts(compared: Sequence[Compared]) -> list[Counts]:
    """A row for each family, and one for all."""
    families = sorted({one.program.family for one in compared})
    rows = [count(name, (one for one in compared if one.program.family == name)) for name in families]
    return [*rows, count("all", compared)]
