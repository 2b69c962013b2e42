"""The category of a problem, by its name alone: no declaration is imported."""

from __future__ import annotations

from functools import cache

from pkb_gym.engine.problem.problem import CATEGORIES
from pkb_gym.problems.declared_names import declared_names
from pkb_gym.report.published import published

OWN = "own"
"""Category of problems outside the catalogue."""


@cache
def _categories() -> dict[str, str]:
    return {names.name: names.path.parent.name for names in declared_names()}


def category_of(problem: str) -> str:
    """One of `CATEGORIES`, or `OWN`."""
    return _categories().get(problem, OWN)


def catalogue_counts() -> dict[str, int]:
    """Problems of each category of the catalogue, in the order of `CATEGORIES`."""
    counts = dict.fromkeys(CATEGORIES, 0)
    for category in _categories().values():
        counts[category] += 1
    return counts


def title_of(category: str) -> str:
    """Title of a category in the published table."""
    titles = {one.name: one.title for one in published().categories}
    return titles.get(category, category.replace("_", " ").capitalize())
