"""Docstrings as griffe reads them: it knows the section `Example:` as `Examples:`."""

from __future__ import annotations

import griffe


class Examples(griffe.Extension):
    """Shows examples of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Renames the section of each object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
