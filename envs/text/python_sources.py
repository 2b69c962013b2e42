"""Parts of a reference's text."""

from __future__ import annotations

import ast

from pkb_gym.engine.support import syntax_tree


def python_signature(source: str) -> str:
    """The `def` of `solution`, as the reference writes it."""
    for node in syntax_tree.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "solution":
            lines = source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
            return "\n".join(lines)
    raise ValueError("the reference defines no `solution` at its top level")


def plain_source(source: str) -> str:
    """The same code without docstrings, comments and blank lines."""
    tree = syntax_tree.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return "\n".join(line for line in ast.unparse(tree).splitlines() if line.strip())
