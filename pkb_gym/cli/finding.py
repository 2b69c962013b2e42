"""Things that a command looked at, and the table of them."""

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
class Finding:
    """One thing that `pkb doctor` looked at.

    Attributes:
        name: what was looked for.
        state: "missing" what every evaluation needs, "limited" what some need, "ok" otherwise.
        detail: version, place, or what does not work without it.
        remedy: what to do, empty where all is well.
    """

    name: str
    state: Literal["ok", "limited", "missing"]
    detail: str
    remedy: str = ""


def print_findings(findings: Iterable[Finding | CheckResult], heading: str) -> None:
    """Prints one row for each.

    Args:
        findings: with a state of `COLOURS`.
        heading: of their names.
    """
    from rich.text import Text

    table = plain_table()
    table.add_column(heading, no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found")
    for finding in findings:
        detail = f"{finding.detail}\n-> {finding.remedy}" if finding.remedy else finding.detail
        table.add_row(finding.name, Text(finding.state, style=COLOURS[finding.state]), Text(detail))
    print_table(stdout(), table)
