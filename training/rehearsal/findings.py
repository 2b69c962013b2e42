"""What a rehearsal finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rich.markup import escape
from rich.table import Table

Level: TypeAlias = Literal["ok", "note", "error"]

_STYLES: dict[Level, str] = {"ok": "green", "note": "yellow", "error": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        level: ok: it fits; note: to be looked at, or not checked here; error: the command would fail or be wrong.
        subject: Name of the check, one or two words.
        text: Result in words, with figures.
    """

    level: Level
    subject: str
    text: str


def findings_table(findings: Sequence[Finding]) -> Table:
    """The findings as a table for people."""
    table = Table("", "check", "finding", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(f"[{_STYLES[finding.level]}]{finding.level}[/]", finding.subject, escape(finding.text))
    return table


def gigabytes(size_bytes: float) -> str:
    """A size in decimal gigabytes.

    Example:
        >>> gigabytes(12.34e9), gigabytes(0.4e9)
        ('12.3 GB', '0.4 GB')
    """
    return f"{size_bytes / 1e9:.1f} GB"
