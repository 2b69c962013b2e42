"""The folder leaderboard/: every entry validates and names a known commit; schema and table are up to date."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pkb_gym.kernels import FAMILIES
from pkb_gym.problems.catalogue import catalogue, expert_source
from pkb_gym.problems.declared_names import declared_names
from pkb_gym.report.leaderboard import json_schema, leaderboard_markdown, read_entries, read_entry

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "leaderboard"
ENTRIES = sorted((FOLDER / "entries").glob("*.json"))


def test_entries_validate_and_name_known_commits():
    known = {names.name for names in declared_names()}
    entries = [read_entry(path) for path in ENTRIES]
    for entry in entries:
        assert {problem.problem for problem in entry.figures.problems} <= known, entry.name
        assert not re.search(r"(?<![\w.])/(?!dev/null)\w+/", entry.command), f"{entry.name}: a path of one machine"
    git = ["git", "-C", str(ROOT)]
    try:
        shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs git")
    if shallow.stdout.strip() != "false":
        pytest.skip("needs the whole history of a git checkout")
    for entry in entries:
        found = subprocess.run([*git, "cat-file", "-t", entry.commit], capture_output=True, text=True)
        assert found.stdout.strip() == "commit", f"{entry.name}: {entry.commit} is no commit of this repository"


def test_the_schema_is_that_of_the_record():
    text = (FOLDER / "schema.json").read_text(encoding="utf-8")
    assert text == json_schema(), "pkb leaderboard schema > leaderboard/schema.json"


def test_the_table_is_that_of_the_entries():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    command = "pkb leaderboard table leaderboard/entries --output leaderboard/README.md"
    assert text == leaderboard_markdown(read_entries([FOLDER / "entries"])), command


def test_the_script_searches_every_problem_that_has_an_expert_and_a_family():
    script = (FOLDER / "measure.sh").read_text(encoding="utf-8")
    for device, suffix in (("cpu", "cpp"), ("cuda", "cu")):
        named = re.search(rf'^    {device}\).*?problems="([^"]+)"', script, re.MULTILINE | re.DOTALL)
        assert named is not None
        experts = {problem.name for problem in catalogue() if expert_source(problem, suffix) is not None}
        searched = {name for name, language in FAMILIES if language == {"cpp": "cpp", "cu": "cuda"}[suffix]}
        assert set(named[1].replace("\\\n", " ").split()) == experts & searched, device
