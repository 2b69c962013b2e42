"""The table of the README: what the race detector finds in programs whose answer is known, and its false alarms.

    python -m emulator.tests.proven [FOLDER]

from the root of the repository. It compiles the emulator into the folder and runs for some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from emulator.tests import paired
from emulator.tests.litmus.compare import compare, count
from emulator.tests.litmus.families import GROUPS, programs
from emulator.tests.paired import IDIOMS, ONE_SIDED, SHIPPED
from rank_emulator import build

PER_FAMILY = 100
"""Litmus programs of each family at most."""
HEADER = """\
| programs | wrong | found | of the right class | right | false alarms | wrong in weak executions alone |
|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: Name of the programs.
        wrong: Number of programs with a race or another error.
        found: Number of those that are reported.
        classified: Number of those that are reported for the expected reason.
        right: Number of programs without.
        alarms: Number of those that are reported.
        weak: Number of further programs, whose data race needs an execution that no interleaving of threads gives.
    """

    name: str
    wrong: int
    found: int
    classified: int
    right: int
    alarms: int
    weak: int = 0

    def __str__(self) -> str:
        cells = (self.name, self.wrong, self.found, self.classified, self.right, self.alarms, self.weak)
        return f"| {' | '.join(map(str, cells))} |"


def litmus_rows(emulator: Path, per_family: int = PER_FAMILY) -> Iterator[Row]:
    """Litmus programs, by the axioms of PTX."""
    for group, families in GROUPS.items():
        some = [program for program in programs(per_family) if program.family in families]
        counted = count(group, compare(emulator, some))
        yield Row(
            f"litmus: {group}",
            counted.racy,
            counted.found,
            counted.classified,
            counted.right,
            counted.alarms,
            counted.racy_if_weak,
        )


def pair_rows(emulator: Path) -> Iterator[Row]:
    """Pairs of programs, one right and one wrong, which is found if its finding has the expected words."""
    kinds = {"one-sided communication": ONE_SIDED, "idioms of one GPU": IDIOMS, "mistakes that have shipped": SHIPPED}
    for name, sources in kinds.items():
        counted = paired.counts(emulator, sources)
        yield Row(name, counted.wrong, counted.found, counted.found, counted.right, counted.alarms)


def table(rows: Iterable[Row]) -> str:
    """The table in Markdown."""
    return "\n".join([HEADER, *map(str, rows)])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="compiled", help="folder of compiled files (default: compiled)")
    emulator = build(parser.parse_args().folder)
    sys.stdout.write(table([*litmus_rows(emulator), *pair_rows(emulator)]) + "\n")


if __name__ == "__main__":
    main()
