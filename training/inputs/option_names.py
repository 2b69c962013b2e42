"""The options of a recipe, read from the text of the libraries' configurations, whose import takes ten seconds.

A recipe calls `refuse_unknown_options` before it imports them, so that a mistyped option is answered at once. Options
that the text does not show are left to the parser, which looks again.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.suggestions import did_you_mean

PARSER = "parse_arguments"
"""The function that a recipe hands its dataclasses to."""

OF_THE_PARSER = frozenset({"config", "help", "h", "rehearse"})


REHEARSE = "--rehearse"
"""Option of every recipe that checks the command in place of running it."""

REHEARSAL = "pkb_gym.training.rehearse"
"""Module that checks a command; it imports the recipes, and so is started, not imported."""


class OptionsNotInText(Exception):
    """The options cannot be read from the text."""


def refuse_unknown_options(recipe: str) -> None:
    """Ends this process where an option on its command line is none of the recipe's.

    With `--rehearse` the process becomes that of the rehearsal, in the first of several processes; the others end.

    Args:
        recipe: File that runs as a script.
    """
    path, words = Path(recipe), sys.argv[1:]
    if any(word.split("=")[0] == REHEARSE for word in words):
        if env_vars.accelerate_launch().rank:
            sys.exit(0)
        os.execv(sys.executable, [sys.executable, "-m", REHEARSAL, "--launched", path.stem, *words])
    try:
        known = option_names(path)
    except (OptionsNotInText, OSError, SyntaxError):
        return
    try:
        check_options(words, known, path.stem)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def check_options(words: Iterable[str], known: set[str], prog: str) -> None:
    """Looks at the names of options alone.

    Raises:
        ConfigError: one is unknown.
    """
    for word in words:
        name = word.removeprefix("--").split("=")[0]
        if word.startswith("--") and name and name.replace("-", "_") not in known | OF_THE_PARSER:
            raise ConfigError(unknown_argument(prog, name, sorted(known)))


def unknown_argument(prog: str, name: str, known: Iterable[str]) -> str:
    """Words for an argument that does not exist, with the nearest that does."""
    return f"{prog}: no argument {name!r}.{did_you_mean(name, known) or f' `{prog} --help` lists all.'}"


def option_names(recipe: Path) -> set[str]:
    """Names of all options, with underscores; booleans that are true by default can be negated.

    Raises:
        OptionsNotInText: a dataclass was not found in the texts.
        OSError: a text cannot be read.
    """
    calls = [node for node in ast.walk(_tree(recipe)) if isinstance(node, ast.Call)]
    kinds = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == PARSER]
    if len(kinds) != 1 or not isinstance(kinds[0], ast.Tuple):
        raise OptionsNotInText
    names: set[str] = set()
    for kind in kinds[0].elts:
        names |= _fields(recipe, _name(kind))
    return names


def _fields(file: Path, name: str) -> set[str]:
    """The fields of a dataclass that a file defines or imports, those of its bases included."""
    tree = _tree(file)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            own = {field for statement in node.body for field in _field(statement)}
            return own.union(*(_fields(file, _name(base)) for base in node.bases))
    for imported in ast.walk(tree):  # also those of a lazy package, which are for type checkers alone
        if isinstance(imported, ast.ImportFrom):
            for alias in imported.names:
                if (alias.asname or alias.name) == name:
                    return _fields(_imported_file(file, imported), alias.name)
    raise OptionsNotInText


def _field(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        name = statement.target.id
        if ast.unparse(statement.annotation).startswith("ClassVar"):
            return
        if statement.value is not None and "aliases" in ast.unparse(statement.value):
            raise OptionsNotInText
        yield name
        yield f"no_{name}"  # of those that are true by default; the parser looks at the others


def _imported_file(file: Path, imported: ast.ImportFrom) -> Path:
    parts = imported.module.split(".") if imported.module else []
    if imported.level:
        folder = file.parents[imported.level - 1]
    else:
        spec = importlib.util.find_spec(parts[0])
        if spec is None or not spec.submodule_search_locations:
            raise OptionsNotInText
        folder, parts = Path(next(iter(spec.submodule_search_locations))), parts[1:]
    path = folder.joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise OptionsNotInText
    return node.id


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
