"""What makes a command ask another background evaluator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.support import problem_folders
from pkb_gym.serve import identity as module
from pkb_gym.serve.identity import identity


def test_it_is_the_same_twice() -> None:
    assert identity() == identity() and len(identity()) == module.DIGITS


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "PKB_CACHE_DIR", "PYTHONPATH", "NCCL_DEBUG", "TMPDIR"])
def test_variables_that_evaluators_read_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setenv(name, "/another")
    assert identity() != before


def test_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setenv("COLUMNS", "99")
    monkeypatch.setenv("PKB_TOKEN", "of some service")
    assert identity() == before


def test_the_processors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 64})
    assert identity() != before


def test_every_file_of_the_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout changes from one command to the next."""
    for part in module.PARTS:
        (tmp_path / part / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    before = identity()
    (tmp_path / "engine" / "__pycache__" / "a.pyc").write_text("a")
    assert identity() == before
    (tmp_path / "engine" / "a.h").write_text("a")
    assert (after := identity()) != before
    (tmp_path / "engine" / "a.h").write_text("ab")
    assert identity() != after


def test_problems_of_ones_own_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluator has loaded a declaration once, and its sandbox hides what was known when it was started."""
    monkeypatch.setattr(problem_folders, "_REGISTERED", {})
    before = identity()
    folder = problem_folders.ProblemFolder(tmp_path, "Mine", "registered")
    (tmp_path / "problem.py").write_text("one")
    problem_folders.add_folder(folder)
    assert (after := identity()) != before
    (tmp_path / "problem.py").write_text("two!")
    assert identity() != after


def test_the_working_folder_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `python -m` it is on the path, and editors that replace files change it at each save."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(packages)])
    os.utime(tmp_path, (1, 1))
    before = identity()
    os.utime(tmp_path, (2, 2))
    assert identity() == before
    (packages / "new").mkdir()
    assert identity() != before
