"""Finds the problems: every `problems/<category>/<folder>/problem.py` declares one, and those outside this package."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from pkb_gym.engine.errors import DeclarationError, ProblemNotFound
from pkb_gym.engine.problem import Problem, snake_case
from pkb_gym.engine.support.problem_folders import ProblemFolder, looks_like_path
from pkb_gym.engine.support.suggestions import did_you_mean
from pkb_gym.problems.declared_names import PROBLEMS, declared_names
from pkb_gym.problems.loading import load_problem
from pkb_gym.problems.own_problems import load_own, own_folders, register_folder

MAX_SHOWN = 200
"""Characters of a name that is not known, in errors."""


@cache
def catalogue() -> tuple[Problem, ...]:
    """All problems of this package, in upstream order.

    Raises:
        DeclarationError: a folder's name does not fit its problem, or two problems share a name.
    """
    problems: dict[str, Problem] = {}
    for path in sorted(PROBLEMS.glob("*/*/problem.py")):
        problem = _load(path.parent)
        if problem.name in problems:
            raise DeclarationError(f"{problem.name} is declared twice")
        problems[problem.name] = problem
    return tuple(sorted(problems.values(), key=lambda problem: problem.number))


def all_problems() -> tuple[Problem, ...]:
    """The problems of this package in upstream order, then those outside it by name; broken ones are left out."""
    found = list(catalogue())
    for folder in own_folders():
        with contextlib.suppress(DeclarationError):
            found.append(load_own(folder))
    return tuple(found)


def choose_problem(wanted: str | os.PathLike[str]) -> Problem:
    """A problem by its name, or by the path of its folder, which is registered.

    For callers on this machine alone: a declaration is code, which is run.

    Args:
        wanted: Name, as for `find_problem`; or a path, with a separator, a leading dot, or that of a `problem.py`.

    Raises:
        ProblemNotFound, ConfigError: there is no such problem, or its name is taken.
        DeclarationError: it is broken.
    """
    if isinstance(wanted, os.PathLike) or looks_like_path(wanted):
        return load_own(register_folder(wanted))
    try:
        return find_problem(wanted)
    except ProblemNotFound as error:
        if _is_folder(wanted):
            raise ProblemNotFound(f"{error} For the folder of that name write './{wanted}'.") from None
        raise


def find_problem(name: str) -> Problem:
    """The problem of that name, environment id or upstream stem; no other one is imported.

    Args:
        name: "AllGatherGemm", "PKB/AllGatherGemm-v0", "all_gather_gemm" or "12_allgather_gemm".

    Raises:
        ProblemNotFound: there is none; the message names the nearest.
        DeclarationError: it lies outside this package and is broken.
    """
    if not isinstance(name, str):
        raise ProblemNotFound(f"a problem is found by its name, a text such as 'AllReduce'; got {name!r}")
    wanted = name.removeprefix("PKB/").removesuffix("-v0")
    if (folder := _folders().get(wanted)) is not None:
        return _load(folder)
    own = _own_by_alias()
    if wanted in own:
        return load_own(own[wanted])
    names = _by_alias()  # also of declarations whose names are not found in the text
    if wanted in names:
        return names[wanted]
    known = {alias: problem.name for alias, problem in names.items()} | {a: folder.name for a, folder in own.items()}
    numbered = {str(problem.number): problem.name for problem in catalogue()}  # as `pkb list` shows them
    hint = did_you_mean(numbered.get(wanted.lstrip("0"), wanted[:MAX_SHOWN]), known.values(), known)
    among = len(catalogue()) + len({folder.path for folder in own.values()})
    raise ProblemNotFound(f"no problem {name[:MAX_SHOWN]!r} among {among}.{hint} `pkb list` shows all.")


def _is_folder(name: str) -> bool:
    with contextlib.suppress(OSError, TypeError, ValueError):  # too long for a name, or no name of a file
        return Path(name).is_dir()
    return False


def _load(folder: Path) -> Problem:
    """The problem of a folder of this package."""
    problem = load_problem(folder, f"pkb_gym.problems.{folder.parent.name}.{folder.name}.problem")
    if folder.name != snake_case(problem.name) or folder.parent.name != problem.category:
        expected = f"{problem.category}/{snake_case(problem.name)}"
        raise DeclarationError(f"{problem.name} lies in {folder.parent.name}/{folder.name}, expected {expected}")
    return problem


@cache
def _folders() -> dict[str, Path]:
    return {alias: names.path for names in declared_names() for alias in names.aliases()}


@cache
def _by_alias() -> dict[str, Problem]:
    return {alias: problem for problem in catalogue() for alias in (problem.name, problem.folder, problem.upstream)}


def _own_by_alias() -> dict[str, ProblemFolder]:
    return {alias: folder for folder in own_folders() if folder.name for alias in _aliases(folder.name)}


def _aliases(name: str) -> tuple[str, str]:
    return name, snake_case(name)


def lookup_key(problem: Problem) -> str | Path:
    """The key of a problem for `choose_problem` in any process: its name, or the folder of one outside this package."""
    folder = problem_folder(problem)
    return problem.name if folder.is_relative_to(PROBLEMS) else folder


def problem_folder(problem: Problem) -> Path:
    """The folder of a problem's files."""
    return Path(problem.declared_in).parent


def reference_source(problem: Problem) -> str:
    """The baseline, exactly the text that the agent is shown."""
    return (problem_folder(problem) / "reference.py").read_text(encoding="utf-8")


def expert_source(problem: Problem, suffix: str = "cpp") -> str | None:
    """A known-good kernel ("cpp" or "cu"), or None where there is none."""
    path = problem_folder(problem) / f"expert.{suffix}"
    return path.read_text(encoding="utf-8") if path.exists() else None
