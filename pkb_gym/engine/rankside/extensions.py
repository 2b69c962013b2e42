"""C++ and CUDA extensions of Python sources: built once, in the build gang, and served to ranks as read-only files.

A rank starts no compiler, so whatever a source may build has to be built when it is compiled. Importing it builds what
stands at module level. Extensions that a function builds at its first call are found in the text: functions of the
module that call a helper of `BUILDERS`, directly or through one another, are called if they need no argument; any other
call of a helper is evaluated by itself, which succeeds where its arguments are constants or names of the module.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib.machinery
import importlib.util
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

BUILDERS = ("load_inline", "compile_cuda_extension")
BUILD_FAILED = "Error building extension"
"""The beginning of torch's message after a failed compile."""

DIGITS = 16
"""Hexadecimal digits of a digest; a key has that of name and content, then that of the content alone."""

NO_MATTER = ("verbose", "build_directory")
"""Arguments of a build that do not change what is built."""


def may_build(source: str) -> bool:
    """Whether a text mentions a way to build extensions; torch's takes a while to import."""
    return "cpp_extension" in source or "compile_cuda_extension" in source


class Recorder:
    """Builds extensions by torch, and remembers them.

    Attributes:
        libraries: Key -> path of what was built; the key is what `serve` recognises a call by.
    """

    def __init__(self) -> None:
        self.libraries: dict[str, str] = {}
        self._results: dict[str, Any] = {}

    def install(self) -> None:
        """Puts itself in the place of torch's functions."""
        import torch.utils.cpp_extension as cpp_extension

        cpp_extension.load = self._recording(cpp_extension.load)
        cpp_extension.load_inline = self._recording(cpp_extension.load_inline)

    def _recording(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def recording(name: str, *args: Any, **kwargs: Any) -> Any:
            # Before `build`, which adds to lists that it is given.
            digest, content = _digest(name, args, kwargs), _digest("", args, kwargs)
            if digest not in self._results:
                result = build(name, *args, **kwargs)
                path = str(result.__file__ if isinstance(result, ModuleType) else result)
                module_name = os.path.basename(path).removesuffix(".so")  # torch numbers those of one name
                self.libraries[f"{module_name}:{digest}{content}"] = path
                self._results[digest] = result
            return self._results[digest]

        return recording


def serve(libraries: dict[str, str]) -> None:
    """Makes torch's functions answer with what was built before.

    Args:
        libraries: Key, as of `Recorder` -> path.
    """
    import torch.utils.cpp_extension as cpp_extension

    by_digest: dict[str, tuple[str, str]] = {}
    for key, path in libraries.items():
        module_name, _, digests = key.rpartition(":")
        by_digest[digests[:DIGITS]] = module_name, path
        by_digest.setdefault(digests[DIGITS:], (module_name, path))
    loaded: dict[str, Any] = {}

    def built(name: str, *args: Any, **kwargs: Any) -> Any:
        named = [(module_name, path) for module_name, path in by_digest.values() if module_name == name]
        digests = (_digest(name, args, kwargs), _digest("", args, kwargs))  # a name may hold the number of a rank
        found = next((by_digest[one] for one in digests if one in by_digest), named[0] if named else None)
        if found is None:
            where = "at module level, or in a function of the module that needs no argument"
            what = f"extension {name!r} was not built when the source was compiled"
            raise RuntimeError(f"{what}; if that was tried, see the compiler's log; else build it {where}")
        module_name, path = found
        if path not in loaded:
            as_module = kwargs.get("is_python_module", True)
            loaded[path] = _load_module(module_name, path) if as_module else _load_library(path)
        return loaded[path]

    cpp_extension.load = built
    cpp_extension.load_inline = built


def build_what_functions_build(source: str, module: ModuleType) -> list[str]:
    """Builds the extensions that an imported module would build when it is first called.

    Args:
        source: Text of the source.
        module: The module, as far as its import came.

    Returns:
        Description of the failures.

    Raises:
        RuntimeError: an extension does not compile.
    """
    notes = []
    tree = ast.parse(source)
    called = [function for function in _functions_that_build(tree) if not _needs_arguments(function)]
    seen = set()
    for function in called:
        seen |= set(_calls(function, BUILDERS))
        notes += _attempt(f"{function.name}()", lambda name=function.name: getattr(module, name)())  # type: ignore[misc]
    for call in _calls(tree, BUILDERS):
        if call not in seen:  # those that were built on import are not built again: see `Recorder`
            code = compile(ast.Expression(call), "candidate.py", "eval")
            what = f"the build in line {call.lineno}"
            notes += _attempt(what, lambda code=code: eval(code, module.__dict__))  # type: ignore[misc]
    return notes


def _attempt(what: str, work: Callable[[], object]) -> list[str]:
    try:
        work()
    except BaseException as error:  # whatever candidate code raises; it may well need what only ranks have
        if BUILD_FAILED in str(error):
            raise
        return [f"{what} was not possible when the source was compiled: {type(error).__name__}: {error}"]
    return []


def _functions_that_build(tree: ast.Module) -> list[ast.FunctionDef]:
    """Functions of a module, `solution` aside, that call a builder or another such function."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != "solution"]
    found: list[ast.FunctionDef] = []
    while True:
        names = (*BUILDERS, *(function.name for function in found))
        more = [function for function in functions if any(True for _ in _calls(function, names))]
        if len(more) == len(found):
            return found
        found = more


def _calls(tree: ast.AST, names: tuple[str, ...]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            if name in names:
                yield node


def _needs_arguments(function: ast.FunctionDef) -> bool:
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    return positional > len(arguments.defaults) or None in arguments.kw_defaults


def _digest(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    matters = sorted((key, value) for key, value in kwargs.items() if key not in NO_MATTER)
    return hashlib.sha256(repr((name, args, matters)).encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def _load_module(name: str, path: str) -> ModuleType:
    # The path has no suffix of an extension, so that the loader must be named.
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _load_library(path: str) -> str:
    ctypes.CDLL(path)  # torch.ops.load_library resolves links, and there is nothing behind this one
    return path
