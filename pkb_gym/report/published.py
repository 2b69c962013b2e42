"""The results that were published with the benchmark: rows to compare with, not measured here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from pkb_gym.engine.records.base import Record

DATA = Path(__file__).with_name("data") / "published.json"


class PublishedCategory(Record):
    """One column of the published table."""

    name: str
    """Name in `CATEGORIES`."""
    title: str
    """Published title."""
    problems: int


class PublishedModel(Record):
    """One row of the published table; figures by category were not published."""

    agent: str
    right: tuple[int, int]
    """Problems solved by one sample, and by one of three."""
    faster: tuple[int, int]
    """Counts of those that were faster than the baseline as well."""


class Published(Record):
    """The published table."""

    source: str
    problems: int
    note: str
    """Note on its counts."""
    categories: tuple[PublishedCategory, ...]
    models: tuple[PublishedModel, ...]

    @property
    def sum_of_categories(self) -> int:
        """The problems of all columns, one fewer than the benchmark has."""
        return sum(category.problems for category in self.categories)


@cache
def published() -> Published:
    """The table, from `data/published.json`."""
    return TypeAdapter(Published).validate_json(DATA.read_bytes())
