"""Finds the problems: every `problems/<category>/<folder>/problem.py` declares one."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType

from pkb_gym.engine.errors import DeclarationError, ProblemNotFound
from pkb_gym.engine.problem import Problem, snake_case
from pkb_gym.problems.declared_names import declared_names

ROOT = Path(__file__).resolve().parent


@cache
def catalogue() -> tuple[Problem, ...]:
    """All problems, in upstream order.

    Raises:
        DeclarationError: a folder's name does not fit its problem, or two problems share a name.
    """
    problems: dict[str, Problem] = {}
    for path in sorted(ROOT.glob("*/*/problem.py")):
        problem = _load(path.parent)
        if problem.name in problems:
            raise DeclarationError(f"{problem.name} is declared twice")
        problems[problem.name] = problem
    return tuple(sorted(problems.values(), key=lambda problem: problem.number))


def find_problem(name: str) -> Problem:
    """The problem of that name, environment id or upstream stem; no other one is imported.

    Args:
        name: "AllGatherGemm", "PKB/AllGatherGemm-v0", "all_gather_gemm" or "12_allgather_gemm".

    Raises:
        ProblemNotFound: there is none; the message names the nearest.
    """
    if not isinstance(name, str):
        raise ProblemNotFound(f"a problem is found by its name, a text such as 'AllReduce'; got {name!r}")
    wanted = name.removeprefix("PKB/").removesuffix("-v0")
    if (folder := _folders().get(wanted)) is not None:
        return _load(folder)
    names = _by_alias()  # also of declarations whose names the text does not tell
    if wanted in names:
        return names[wanted]
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f" Did you mean {names[near[0]].name!r}?" if near else ""
    raise ProblemNotFound(f"no problem {name!r} among {len(catalogue())}.{hint} `pkb list` shows all.")


@cache
def _folders() -> dict[str, Path]:
    return {alias: names.path for names in declared_names() for alias in names.aliases()}


@cache
def _by_alias() -> dict[str, Problem]:
    return {alias: problem for problem in catalogue() for alias in (problem.name, problem.folder, problem.upstream)}


def problem_folder(problem: Problem) -> Path:
    """Where a problem's files lie."""
    return Path(problem.declared_in).parent


def reference_source(problem: Problem) -> str:
    """The baseline, exactly the text that the agent is shown."""
    return (problem_folder(problem) / "reference.py").read_text(encoding="utf-8")


def expert_source(problem: Problem, suffix: str = "cpp") -> str | None:
    """A known-good kernel ("cpp" or "cu"), or None where there is none."""
    path = problem_folder(problem) / f"expert.{suffix}"
    return path.read_text(encoding="utf-8") if path.exists() else None


def _load(folder: Path) -> Problem:
    """The problem of a folder, the same object each time."""
    with _IMPORTING:
        if folder not in _LOADED:
            _LOADED[folder] = _import_problem(folder)
        return _LOADED[folder]


def _import_problem(folder: Path) -> Problem:
    module = load_module(folder / "problem.py", f"pkb_gym.problems.{folder.parent.name}.{folder.name}.problem")
    problem = getattr(module, "PROBLEM", None)
    if not isinstance(problem, Problem):
        raise DeclarationError(f"{folder / 'problem.py'} defines no PROBLEM")
    if folder.name != snake_case(problem.name) or folder.parent.name != problem.category:
        expected = f"{problem.category}/{snake_case(problem.name)}"
        raise DeclarationError(f"{problem.name} lies in {folder.parent.name}/{folder.name}, expected {expected}")
    return problem.found_in(str(folder / "problem.py"))


def load_module(path: Path, name: str) -> ModuleType:
    """Imports one file under a name of our choice, once."""
    with _IMPORTING:  # threads that ask at the same time must not see half a module
        return sys.modules[name] if name in sys.modules else _import(path, name)


_IMPORTING = threading.RLock()
_LOADED: dict[Path, Problem] = {}


def _import(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
