"""What `pkb list` keeps: used while nothing changes, read anew otherwise, and never in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pkb_gym.cli import listing
from pkb_gym.cli.listing import ListedProblem, listed_catalogue
from pkb_gym.problems.catalogue import catalogue

IMPORTED = """
import sys
from pkb_gym.cli.program import main
status = main(sys.argv[1:])
print(status, sorted(name for name in sys.modules if name in {names} or name.endswith(".problem")), file=sys.stderr)
"""
HEAVY = ("torch", "gymnasium", "pydantic", "numpy", "pkb_gym.engine.problem.problem")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file."""
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))
    return tmp_path / "problems.json"


@pytest.fixture
def declared() -> list[ListedProblem]:
    return [ListedProblem.of(problem) for problem in catalogue()]


def test_what_is_kept_is_what_is_declared(kept: Path, declared: list[ListedProblem], monkeypatch: pytest.MonkeyPatch):
    assert listed_catalogue() == declared and len(declared) == len(catalogue())
    monkeypatch.setattr(ListedProblem, "of", lambda _: pytest.fail("nothing has changed"))
    assert listed_catalogue() == declared


def test_a_change_of_a_declaration_or_a_new_kernel_is_seen(
    kept: Path, tmp_path: Path, declared: list[ListedProblem], monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "problems" / "other" / "one"
    folder.mkdir(parents=True)
    (folder / "problem.py").write_text("PROBLEM = None")
    monkeypatch.setattr(listing, "PROBLEMS", tmp_path / "problems")
    listed_catalogue()
    states = [json.loads(kept.read_text())["state"]]
    for change in (
        lambda: (folder / "problem.py").write_text("PROBLEM = None\n"),
        lambda: os.utime(folder / "problem.py", (1, 1)),
        lambda: (folder / "expert.cpp").touch(),
    ):
        os.utime(folder, (1, 1))
        listed_catalogue()
        change()
        listed_catalogue()
        states.append(json.loads(kept.read_text())["state"])
    assert len(set(states)) == 4


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"state": "another"}', '{"state": "%s"}', '{"state": "%s", "problems": [{"name": 1}]}']
)
def test_what_cannot_be_used_is_replaced(kept: Path, text: str, declared: list[ListedProblem]):
    kept.write_text(text.replace("%s", listing._state()))
    assert listed_catalogue() == declared
    assert len(json.loads(kept.read_text())["problems"]) == len(declared)


def test_a_folder_that_cannot_be_written_costs_time_alone(
    tmp_path: Path, declared: list[ListedProblem], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "file"))
    assert listed_catalogue() == declared


@pytest.mark.parametrize("argv", [("--version",), ("list", "--json")])
def test_short_commands_import_no_declaration_and_nothing_heavy(argv: tuple[str, ...], tmp_path: Path):
    listed_catalogue()
    code = IMPORTED.replace("{names}", repr(HEAVY))
    ran = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60)
    assert ran.stderr == "0 []\n", ran.stderr
    assert ran.stdout
