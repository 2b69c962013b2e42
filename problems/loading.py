"""Imports the files of problems by their paths, each once."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType

from pkb_gym.engine.errors import DeclarationError
from pkb_gym.engine.problem import Problem

_IMPORTING = threading.RLock()
_LOADED: dict[Path, Problem] = {}


def load_problem(folder: Path, module: str) -> Problem:
    """The declaration in a folder's `problem.py`, the same object each time.

    Args:
        folder: Folder of the problem.
        module: Module name of the imported file.

    Raises:
        DeclarationError: it defines no PROBLEM, or one that contradicts itself.
    """
    path = folder / "problem.py"
    with _IMPORTING:
        if folder not in _LOADED:
            problem = getattr(load_module(path, module), "PROBLEM", None)
            if not isinstance(problem, Problem):
                raise DeclarationError(f"{path} defines no PROBLEM")
            _LOADED[folder] = problem.found_in(str(path))
        return _LOADED[folder]


def load_module(path: Path, name: str) -> ModuleType:
    """Imports one file under a name of our choice, once; one that raises is tried again when it is asked for again."""
    with _IMPORTING:  # threads that ask at the same time must not see half a module
        return sys.modules[name] if name in sys.modules else _import(path, name)


def _import(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
