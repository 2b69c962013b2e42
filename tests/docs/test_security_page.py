"""docs/security.md shows every family of attacks that is tried, and each attack belongs to one family."""

from __future__ import annotations

from tests.docs.pages import DOCS
from tests.engine.attacks import FAMILIES, TESTS, attacks, families_of, members


def test_the_page_shows_every_family() -> None:
    page = (DOCS / "security.md").read_text(encoding="utf-8")
    (rows,) = [block for block in page.split("\n\n") if block.startswith("| aim |")]
    assert rows.splitlines()[2:] == [f"| {family.aim} | {family.layer} |" for family in FAMILIES]


def test_each_attack_belongs_to_one_family() -> None:
    strays = [each.name for each in attacks() if len(families_of(each)) != 1]
    assert not strays, f"name the family of {', '.join(strays)} in tests/engine/attacks.py"


def test_families_are_tried() -> None:
    for family in FAMILIES:
        assert all((TESTS / test).is_file() for test in family.tests), family.aim
        assert family.tests or members(family, on_gpus=False), f"nothing on the CPU tries: {family.aim}"
