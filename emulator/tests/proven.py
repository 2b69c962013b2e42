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

from emulator.tests.litmus.compare import compare, count
from emulator.tests.litmus.families import GROUPS, programs
from rank_emulator import build

PER_FAMILY = 100
"""Litmus programs of each family at most."""
HEADER = """\
| programs | with a race | found | of the right class | without | false alarms |
|---|---|---|---|---|---|"""


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
    """

    name: str
    wrong: int
    found: int
    classified: int
    right: int
    alarms: int

    def __str__(self) -> str:
        cells = (self.name, self.wrong, self.found, self.classified, self.right, self.alarms)
        return f"| {' | '.join(map(str, cells))} |"


def litmus_rows(emulator: Path, per_family: int = PER_FAMILY) -> Iterator[Row]:
    """Litmus programs, by the axioms of PTX; those that race in weak executions alone are neither wrong nor right."""
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
        )


def table(rows: Iterable[Row]) -> str:
    """The table in Markdown."""
    return "\n".join([HEADER, *map(str, rows)])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="compiled", help="folder of compiled files (default: compiled)")
    emulator = build(parser.parse_args().folder)
    sys.stdout.write(table(litmus_rows(emulator)) + "\n")


if __name__ == "__main__":
    main()
