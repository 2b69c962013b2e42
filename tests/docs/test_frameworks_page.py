"""docs/frameworks.md: names that exist, and a program for each door; the tests of the doors run them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from pkb_gym.adapters.settings import EpisodeSettings
from tests.docs.pages import DOCS, ROOT, code_blocks
from tests.doors import commands, installation

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


def test_a_door_that_this_python_cannot_have_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(installation.OLDEST_PYTHON, "harbor", (4, 0))
    monkeypatch.setitem(installation.NEWEST_PYTHON, "verl", (3, 9))
    reasons = installation.install_all(installation.doors(tmp_path, ["harbor", "verl"]), tmp_path)
    assert reasons["harbor"].startswith("it needs Python 4.0 or newer, and this is 3.")
    assert reasons["verl"].startswith("it needs Python 3.9 or older, and this is 3.")
    assert list(tmp_path.iterdir()) == [], "and nothing is installed for it"


def test_pip_takes_the_place_of_uv_where_that_reaches_no_index(tmp_path, monkeypatch):
    asked: list[str] = []

    def run(command: list[str], _: float) -> subprocess.CompletedProcess[str]:
        words = [Path(command[0]).name, *(word for word in command if word in ("venv", "pip", "install"))]
        asked.append(" ".join(words))
        (tmp_path / "openenv").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, asked[-1] == "uv pip install", "no such index")

    uv = tmp_path / "uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.touch()
    monkeypatch.setattr(installation, "run", run)
    door = installation.doors(tmp_path, ["openenv"])
    assert installation.install_all(door, tmp_path) == {}
    python = Path(sys.executable).name
    assert asked[:3] == ["uv venv", "uv pip install", f"{python} venv"]
    assert all(command == "python pip install" for command in asked[3:] if command != "cp") and len(asked) == 6
    assert installation.install_all(door, tmp_path) == {} and len(asked) == 6, "and it is installed once"


def test_a_program_that_outlasts_its_deadline_ends_with_all_that_it_started():
    """Its output is read to the end, which a child of it would have kept open."""
    done = commands.run(["bash", "-c", "sleep 600 & sleep 600"], 0.2)
    assert done.returncode == 124 and "took more than 0.2 s" in done.stdout


def test_no_distribution_of_a_door_needs_torch():
    for path in sorted((ROOT / "adapters").glob("*/pyproject.toml")):
        needed = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"]
        assert not any(name.startswith(("torch", "pkb-gym")) for name in needed), path


def test_the_makefile_runs_them():
    assert "-m tests.doors" in (ROOT / "Makefile").read_text(encoding="utf-8")
