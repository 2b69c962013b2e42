"""The identity of a background evaluator: one of a command's own identity finds what a fresh evaluator would."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pkb_gym
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.problem_folders import problem_folders

PACKAGE = Path(pkb_gym.__file__).resolve().parent
PARTS = ("engine", "problems", "serve", "cli")
"""Parts of the package that an evaluator runs."""

COMPILERS = ("g++", "nvcc", "bwrap")
DIGITS = 12


def identity() -> str:
    """A digest over all that decides how an evaluator started now by this process would judge.

    The version and the files of this package, by size and time of change; this Python, where it imports from, and
    when packages were last installed there; the compilers; the problems outside this package, with their files; the
    environment variables that evaluators read; and the processors that this process may use.
    """
    parts = [
        pkb_gym.__version__,
        [stamp for part in PARTS for stamp in _stamps(PACKAGE / part)],
        [sys.executable, sys.version, sys.path, [_changed(Path(entry)) for entry in sys.path if _has_packages(entry)]],
        [_program(name) for name in COMPILERS],
        [[str(folder.path), list(_stamps(folder.path))] for folder in problem_folders()],
        sorted(env_vars.for_evaluators().items()),
        sorted(os.sched_getaffinity(0)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:DIGITS]


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Path, time of change and size of each file below a folder, in a fixed order."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _stamps(Path(entry.path))
            elif entry.is_file():
                status = entry.stat()
                yield entry.path, status.st_mtime_ns, status.st_size


def _has_packages(entry: str) -> bool:
    """Whether packages are installed there; a working folder changes with each save."""
    return entry.rstrip("/").endswith(("site-packages", "dist-packages"))


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _program(name: str) -> tuple[str, int | None]:
    """The place of a program, and the time of its last change."""
    found = shutil.which(name)
    path = Path(found).resolve() if found else Path(name)
    return str(path), _changed(path) if found else None
