"""The part of a source that figures depend on, which decides whether a result is stale."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

CPP_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\w+')
"""A string, a character, a number or a name."""


class NotARenaming(ValueError):
    """The new name of an identifier stands for another one already."""


class _WithoutTexts(ast.NodeTransformer):
    """Removes docstrings, those behind attributes and constants too, and the types of casts, which do nothing."""

    def __init__(self, casts: bool) -> None:
        self._casts = casts

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        self.generic_visit(node)
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if self._casts and isinstance(node.func, ast.Name) and node.func.id == "cast":
            del node.args[0]
        return node


def code(text: str, suffix: str, renamed: Mapping[str, str] | None = None) -> str:
    """A source without comments, docstrings, imports, `__all__` and layout.

    Args:
        text: of the source.
        suffix: of its file.
        renamed: old -> new names of identifiers; applied to whole identifiers outside of strings.

    Raises:
        NotARenaming: a new name is in the source already, or two old names become one: equal code need not mean equal
            behaviour then.
    """
    renamed = renamed or {}
    if suffix != ".py":
        plain = _without_comments(text)
        _check(_cpp_identifiers(plain), renamed)
        return "".join(CPP_TOKEN.sub(lambda token: renamed.get(token[0], token[0]), plain).split())
    tree = _parsed(text)
    named = _named_fields(tree)
    _check(_python_identifiers(named), renamed)
    for node, field, value in named:
        new = renamed.get(value, value) if isinstance(value, str) else [renamed.get(name, name) for name in value]
        setattr(node, field, new)
    return ast.dump(tree)


def identifiers(text: str, suffix: str) -> set[str]:
    """The identifiers in the code of a source; a string is none, and a dotted module is one as a whole."""
    if suffix == ".py":
        return _python_identifiers(_named_fields(_parsed(text)))
    return _cpp_identifiers(_without_comments(text))


def _parsed(text: str) -> ast.Module:
    tree = ast.parse(text)
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "typing"]
    casts = any(alias.name == "cast" for node in imported for alias in node.names)
    _WithoutTexts(casts).visit(tree)
    tree.body = [node for node in tree.body if not _passes_names_on(node)]
    return tree


def _passes_names_on(node: ast.stmt) -> bool:
    """Whether it is an import or `__all__`."""
    exports = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    return exports or isinstance(node, ast.Import | ast.ImportFrom)


def _check(present: set[str], renamed: Mapping[str, str]) -> None:
    sources: dict[str, str] = {}
    for old in sorted(present & renamed.keys()):
        new = renamed[old]
        if new in present:
            raise NotARenaming(f"{old} cannot become {new}: the source has {new} already")
        if new in sources:
            raise NotARenaming(f"{sources[new]} and {old} cannot both become {new}")
        sources[new] = old


def _without_comments(text: str) -> str:
    return re.sub(r"//.*", "", text)


def _cpp_identifiers(text: str) -> set[str]:
    return {token for token in CPP_TOKEN.findall(text) if token[0] not in "\"'"}


def _named_fields(tree: ast.AST) -> list[tuple[ast.AST, str, str | list[str]]]:
    """(Node, field, value) of each field that holds an identifier or several."""
    return [
        (node, field, value)
        for node in ast.walk(tree)
        if not isinstance(node, ast.Constant)
        for field, value in ast.iter_fields(node)
        if isinstance(value, str) or (isinstance(value, list) and value and all(isinstance(v, str) for v in value))
    ]


def _python_identifiers(named: list[tuple[ast.AST, str, str | list[str]]]) -> set[str]:
    return {name for _, _, value in named for name in ([value] if isinstance(value, str) else value)}
