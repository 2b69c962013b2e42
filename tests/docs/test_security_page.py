"""docs/security.md shows every attack that is tried, and each belongs to one family."""

from __future__ import annotations

import pytest

from pkb_gym.problems.loading import load_module
from tests.docs.pages import DOCS
from tests.engine.attacks import FAMILIES, TESTS, attacks, families_of, members

generator = load_module(DOCS / "generate_security.py", "tests.docs.generate_security")
PAGE = generator.PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_generator_writes() -> None:
    assert generator.render(PAGE) == PAGE, "docs/security.md is stale: run `python docs/generate_security.py`"


@pytest.mark.parametrize("candidate", attacks(), ids=lambda candidate: candidate.name)
def test_each_attack_belongs_to_one_family(candidate) -> None:
    assert len(families_of(candidate)) == 1, f"{candidate.name}: name its family in tests/engine/attacks.py"
    assert f"`{candidate.path.name}`" in PAGE


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.aim)
def test_families_are_tried(family) -> None:
    assert all((TESTS / test).is_file() for test in family.tests)
    assert family.tests or members(family, on_gpus=False), "nothing on the CPU tries it"
