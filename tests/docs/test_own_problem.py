"""docs/own_problem is a package that can be installed; its problem is found by the entry point and evaluated."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.whole_tables import by_make_all

PACKAGE = DOCS / "own_problem"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installs into; it builds from a copy, since it writes beside what it builds."""
    folder = tmp_path_factory.mktemp("own_problem")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", folder / "site", folder / "source"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def pkb(installed: Path, cache: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(installed)])
    environment = os.environ | {"PYTHONPATH": path, "PKB_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "pkb_gym.cli", *argv]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, cwd=installed, env=environment
    )


def test_the_wheel_holds_every_file(installed: Path) -> None:
    files = {path.relative_to(PACKAGE) for path in PACKAGE.glob("my_pkb_problems/**/*") if path.is_file()}
    missing = [str(path) for path in files if path.suffix != ".pyc" and not (installed / path).is_file()]
    assert not missing and len(files) >= 5


@by_make_all
def test_its_reference_is_evaluated_by_name(installed: Path, compiled_before: Path) -> None:
    reference = installed / "my_pkb_problems" / "sharded_softmax" / "reference.py"
    options = ["--device", "cpu", "--world-size", "2", "--until", "check", "--json"]
    ran = pkb(installed, compiled_before, "eval", "ShardedSoftmax", str(reference), *options)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert '"problem": "ShardedSoftmax"' in ran.stdout


def test_it_is_timed_without_what_the_roofline_needs(installed: Path, compiled_before: Path, tmp_path: Path) -> None:
    """Neither a published protocol nor costs are needed for what is asked; the output says what is missing."""
    folder = tmp_path / "bare"
    shutil.copytree(installed / "my_pkb_problems" / "sharded_softmax", folder)
    declaration = folder / "problem.py"
    text = declaration.read_text().replace('"ShardedSoftmax"', '"BareSoftmax"')
    declaration.write_text(text[: text.index("    published=Trials(")] + ")\n")
    options = ["--device", "cpu", "--world-size", "2", "--size", "tiny"]
    ran = pkb(installed, compiled_before, "eval", str(folder), str(folder / "reference.py"), *options, "--json")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    feedback = json.loads(ran.stdout)
    assert feedback["timing"] is not None and feedback["roofline"] is None
    missing = "BareSoftmax declares no `cost` and no `least_work`: there is no roofline, and rewards place times by"
    assert missing in " ".join(ran.stderr.split())
    shown = pkb(installed, compiled_before, "show", str(folder), *options)
    assert shown.returncode == 0 and missing in " ".join(shown.stdout.split()), shown.stderr + shown.stdout


def test_the_list_shows_it(installed: Path, compiled_before: Path) -> None:
    ran = pkb(installed, compiled_before, "list")
    assert "ShardedSoftmax" in ran.stdout and "88 problems." in ran.stdout and "broken" not in ran.stdout
