"""Diagnoses of `pkb doctor`, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .command import plain_table, print_table, stdout

if TYPE_CHECKING:
    from pkb_gym.authoring.checks import CheckResult

COLOURS = {
    "ok": "green",
    "limited": "yellow",
    "missing": "red",
    "passed": "green",
    "skipped": "yellow",
    "failed": "red",
}


@dataclass(frozen=True)
class Diagnosis:
    """The state of one part of this machine.

    Attributes:
        name: Name of the part.
        state: "missing" where every evaluation needs the part, "limited" where some need it, "ok" otherwise.
        detail: Version, place, or the features that are missing without it.
        remedy: Way to mend it; empty where all is well.
    """

    name: str
    state: Literal["ok", "limited", "missing"]
    detail: str
    remedy: str = ""


def print_diagnoses(findings: Iterable[Diagnosis | CheckResult], heading: str) -> None:
    """Prints one row for each.

    Args:
        findings: Findings with a state of `COLOURS`.
        heading: Heading of the names.
    """
    from rich.text import Text

    table = plain_table()
    table.add_column(heading, no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        detail = f"{finding.detail}\n-> {finding.remedy}" if finding.remedy else finding.detail
        table.add_row(finding.name, Text(finding.state, style=COLOURS[finding.state]), Text(detail))
    print_table(stdout(), table)
