"""docs/frameworks.md: names that exist, and a program for each door; the tests of the doors run them."""

from __future__ import annotations

import re
import tomllib

from pkb_gym.adapters.settings import EpisodeSettings
from tests.docs.pages import DOCS, ROOT, code_blocks

PAGE = DOCS / "frameworks.md"
DOORS = sorted(path.parent.name for path in (ROOT / "tests/doors").glob("*/test_door.py"))


BY_COMMAND = {"harbor", "inspect_ai"}
"""Doors that take no program, only exported tasks: docs/harbor.md has the commands."""


def test_every_door_has_a_program_that_its_tests_run():
    programs = sorted(code_blocks(PAGE, "door"))
    assert programs == sorted(set(DOORS) - BY_COMMAND)
    for door in programs:
        assert f'example("{door}"' in (ROOT / "tests/doors" / door / "test_door.py").read_text(encoding="utf-8")


def test_every_setting_is_named():
    (section,) = re.findall(r"^## Settings\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert set(EpisodeSettings.model_fields) <= set(re.findall(r"`(\w+)`", section))


def test_doors_are_installed_from_pins():
    """A package of a requirement without a pin would change under the tests."""
    for door in DOORS:
        folder = ROOT / "tests/doors" / door
        pins = (folder / "constraints.txt").read_text(encoding="utf-8").split()
        assert pins and all(re.fullmatch(r"[\w.-]+==[\w.+]+", pin) for pin in pins), door


def test_no_distribution_of_a_door_needs_torch():
    for path in sorted((ROOT / "adapters").glob("*/pyproject.toml")):
        needed = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"]
        assert not any(name.startswith(("torch", "pkb-gym")) for name in needed), path


def test_the_makefile_runs_them():
    assert "-m tests.doors" in (ROOT / "Makefile").read_text(encoding="utf-8")
