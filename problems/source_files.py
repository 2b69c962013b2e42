"""Files of candidates: which problem one is for, by its name, and its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.problem import Problem

SUFFIXES = (".cpp", ".cc", ".cxx", ".cu", ".py")
DIALECTS = ("cpp", "cuda", "triton", "python", "pytorch")
"""Words that may end a stem, as in `72_hyena_forward_cp_cuda.py`."""

MAX_BYTES = 16 << 20
"""Read no more than this; the evaluator rejects far shorter texts by a rule of its own."""


@dataclass(frozen=True)
class Found:
    """The source files of a folder.

    Attributes:
        candidates: (file, its problem), by problem, then by name.
        others: (file, why it is none), by name.
    """

    candidates: tuple[tuple[Path, Problem], ...]
    others: tuple[tuple[Path, str], ...]


def read_source_file(path: Path) -> str:
    """The text of a file.

    A byte order mark in front is no part of it, as for Python and compilers.
    Bytes that are not UTF-8 become lone surrogates, so that the evaluator sees and rejects them.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return decode_source(file.read(MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def decode_source(data: bytes) -> str:
    """The text of a source's bytes; see `read_source_file`."""
    return data.decode("utf-8-sig", errors="surrogateescape")


def find_sources(folder: Path, problems: Iterable[Problem], ignore: Path | None = None) -> Found:
    """Sorts the files of a folder by the problem that their names name; subfolders and hidden files are passed over.

    Args:
        folder: Folder to search.
        problems: Problems to choose from.
        ignore: File of ours in that folder, to be passed over.

    Raises:
        ConfigError: the folder cannot be read.
    """
    by_alias = {alias: problem for problem in problems for alias in aliases(problem)}
    candidates: list[tuple[Path, Problem]] = []
    others: list[tuple[Path, str]] = []
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot read folder {folder}: {error.strerror}") from error
    for path in paths:
        if path.is_dir() or path.name.startswith(".") or path == ignore:
            continue
        problem = by_alias.get(stem(path.name))
        if path.suffix not in SUFFIXES:
            others.append((path, f"suffix {path.suffix!r} is none of {' '.join(SUFFIXES)}"))
        elif problem is None:
            others.append((path, "its name names no problem"))
        elif path.exists() and not path.is_file():
            others.append((path, "it is no regular file"))  # reading a pipe or a device might never end
        elif path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            # Records hold sources, and others may see them: no file of the user's that the folder's author names.
            others.append((path, "it is a link that leads out of the folder"))
        else:
            candidates.append((path, problem))
    candidates.sort(key=lambda found: (found[1].number, found[0].name))
    return Found(tuple(candidates), tuple(others))


def aliases(problem: Problem) -> tuple[str, ...]:
    """The names that a file for the problem may bear."""
    return tuple(name for name in (problem.folder, problem.upstream, problem.name) if name)


def stem(file_name: str) -> str:
    """The name of the problem: 72_hyena_forward_cp_cuda.py -> 72_hyena_forward_cp, hyena_cp.2.cpp -> hyena_cp."""
    return re.sub(rf"_({'|'.join(DIALECTS)})$", "", file_name.split(".", 1)[0])
