"""Folders of problems outside this package: registered ones, and those of installed packages (entry points).

Nothing is imported to find them, so that a broken one costs only itself. The sandbox hides them, because a known-good
kernel may lie beside a declaration.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.declaration_text import read_declaration

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pkb_gym.problems"
"""Entry points of this group name a package: a folder with a `problem.py`, or a folder of such folders."""

FILE = "problem.py"


@dataclass(frozen=True)
class ProblemFolder:
    """One problem outside this package, before it is loaded.

    Attributes:
        path: Real path of the folder.
        name: Name that its text declares; empty where none is found.
        origin: Way in which it entered the catalogue, for errors.
        fault: Reason why it cannot be loaded; empty where no fault is known.
    """

    path: Path
    name: str
    origin: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.origin})"


@dataclass(frozen=True)
class InstalledFolders:
    """The folders that one entry point names.

    Attributes:
        roots: Folders of its package, with all that lies in them.
        problems: Problem folders found there.
    """

    roots: tuple[Path, ...]
    problems: tuple[ProblemFolder, ...]


_LOCK = threading.Lock()
_REGISTERED: dict[Path, ProblemFolder] = {}


def looks_like_path(text: object) -> bool:
    """Whether a problem is asked for by a path: a text with a separator or a leading dot, or a Python file."""
    if not isinstance(text, str) or text.startswith("PKB/"):
        return False
    return os.sep in text or text.startswith(".") or text.endswith(".py")


def read_folder(path: str | os.PathLike[str], origin: str = "registered") -> ProblemFolder:
    """A problem's folder, with the name that its text declares.

    Args:
        path: Path of the folder, or of the `problem.py` in it.
        origin: Way in which it entered the catalogue, for errors.

    Raises:
        ConfigError: there is no such folder, or no declaration in it.
    """
    given = Path(path).expanduser()
    folder = (given.parent if given.name == FILE else given).resolve()
    declaration = folder / FILE
    if not declaration.is_file():
        what = "a folder without a problem.py" if folder.is_dir() else "no folder"
        raise ConfigError(f"no problem in {os.fspath(path)!r}: it is {what}; give the folder that holds problem.py")
    found = _described(folder, origin)
    if not found.name:
        raise ConfigError(f"{declaration}: {found.fault}")
    return found


def add_folder(folder: ProblemFolder) -> None:
    """Makes a folder known to this process; one that is known already changes nothing."""
    with _LOCK:
        _REGISTERED.setdefault(folder.path, folder)


def problem_folders() -> tuple[ProblemFolder, ...]:
    """All that are known, each path once, registered ones first."""
    with _LOCK:
        found = dict(_REGISTERED)
    for installed in _installed():
        for folder in installed.problems:
            found.setdefault(folder.path, folder)
    return tuple(found.values())


def folders_with_answers() -> tuple[Path, ...]:
    """Folders that no candidate may read: registered ones, and the whole packages of entry points."""
    with _LOCK:
        registered = tuple(_REGISTERED)
    return (*registered, *(root for installed in _installed() for root in installed.roots))


def _described(folder: Path, origin: str) -> ProblemFolder:
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return ProblemFolder(folder, "", origin, f"cannot be read: {error}")
    declared = read_declaration(text)
    if declared is None:
        fault = 'no line begins with PROBLEM = Problem( followed by name="..."; ids are registered by reading that text'
        return ProblemFolder(folder, "", origin, fault)
    return ProblemFolder(folder, declared.name, origin)


@cache
def _installed() -> tuple[InstalledFolders, ...]:
    """The folders that the entry points of this environment name, in the order of their names; read once."""
    from importlib.metadata import entry_points  # loads slowly, and few commands ask

    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return tuple(_of_entry_point(point) for point in points)


def _of_entry_point(point: EntryPoint) -> InstalledFolders:
    package = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    origin = f"entry point {point.name!r}{package}"
    try:
        roots = _package_folders(point.value)
    except (ImportError, ValueError, AttributeError) as error:
        roots, why = (), f"{point.value!r} cannot be found: {error}"
    else:
        why = f"{point.value!r} is no package with a problem.py in it, or in a folder of it"
    problems = tuple(_described(folder, origin) for root in roots for folder in _folders_in(root))
    broken = ProblemFolder(roots[0] if roots else Path(point.value), "", origin, why)
    return InstalledFolders(roots, problems or (broken,))


def _package_folders(value: str) -> tuple[Path, ...]:
    """The folders of a package, by its dotted name; no code of it is run."""
    top, *rest = value.partition(":")[0].strip().split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise ImportError(f"no module named {top!r}")
    places = (Path(place, *rest).resolve() for place in spec.submodule_search_locations or ())
    return tuple(place for place in places if place.is_dir())


def _folders_in(root: Path) -> Iterator[Path]:
    if (root / FILE).is_file():
        yield root
    else:
        yield from (path.parent.resolve() for path in sorted(root.glob(f"*/{FILE}")))
