"""Problems outside this package: their names, what is wrong with them, and how they are loaded.

`pkb_gym.engine.support.problem_folders` finds their folders. A name belongs to one problem: that of one of this package
to it, and where two others share one, neither can be asked for until one of them is renamed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from pkb_gym.engine.errors import ConfigError, DeclarationError
from pkb_gym.engine.support.problem_folders import ProblemFolder, add_folder, problem_folders, read_folder
from pkb_gym.problems.declared_names import declared_names

if TYPE_CHECKING:
    from pkb_gym.engine.problem import Problem


def own_folders() -> tuple[ProblemFolder, ...]:
    """All that are known, sorted by name; a name that is taken is a fault."""
    found = problem_folders()
    with_faults = (replace(folder, fault=folder.fault or _collision(folder, found)) for folder in found)
    return tuple(sorted(with_faults, key=lambda folder: (folder.name, str(folder.path))))


def register_folder(path: str | os.PathLike[str]) -> ProblemFolder:
    """Makes a problem known by its name, in this process; registering it again changes nothing.

    Args:
        path: Path of its folder, which holds `problem.py` and `reference.py`, or of its `problem.py`.

    Raises:
        ConfigError: there is no problem, or its name is taken; the message names both places.
    """
    folder = read_folder(path)
    if collision := _collision(folder, problem_folders()):
        raise ConfigError(f"{folder}: {collision}")
    add_folder(folder)
    return folder


def load_own(folder: ProblemFolder) -> Problem:
    """The declaration in a folder.

    Raises:
        DeclarationError: it is broken; the message names the file, and what is wrong with it.
    """
    from pkb_gym.problems.loading import load_problem

    if folder.fault:
        raise DeclarationError(f"{folder}: {folder.fault}")
    module = f"pkb_own_problems.{folder.name}_{hashlib.sha256(os.fsencode(folder.path)).hexdigest()[:12]}"
    try:
        problem = load_problem(folder.path, module)
    except (Exception, SystemExit) as error:  # code of others may raise anything
        words = f"{error}" if isinstance(error, DeclarationError) else f"{type(error).__name__}: {error}"
        raise DeclarationError(f"{folder}: its problem.py cannot be loaded: {words}") from error
    if problem.name != folder.name:
        raise DeclarationError(f"{folder}: PROBLEM is called {problem.name!r}, in its text {folder.name!r}")
    if not (folder.path / "reference.py").is_file():
        raise DeclarationError(f"{folder}: there is no reference.py beside problem.py")
    return problem


def _collision(folder: ProblemFolder, others: Sequence[ProblemFolder]) -> str:
    """The other holder of its name, as text; empty where there is none."""
    if not folder.name:
        return ""
    if folder.name in _names_here():
        return f"the name {folder.name} is taken by {_names_here()[folder.name]}; choose another"
    same = [other for other in others if other.name == folder.name and other.path != folder.path]
    return f"the name {folder.name} is taken by {same[0]}; rename one of them" if same else ""


@cache
def _names_here() -> dict[str, str]:
    """Name -> where the problem of this package lies; those of environments that are no problem too."""
    found = {names.name: str(names.path) for names in declared_names()}
    return found | {"Suite": "the environment PKB/Suite-v0", "Path": "the environment PKB/Path-v0"}
