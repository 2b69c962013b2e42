"""Text that models hand in in place of code: Markdown, diffs, JSON, escaped line breaks."""

from __future__ import annotations

import json
import re

_DIFF = re.compile(r"^(?:diff --git |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)", re.MULTILINE)
MIN_ESCAPED = 3
"""Escaped line breaks that the strings of a source may hold."""


def wrapping_note(source: str) -> str:
    r"""A note on what stands in place of code, for which compilers have other words; empty where nothing does.

    Example:
        >>> wrapping_note('{"source": "int a;"}')
        ' (the source is JSON: hand in the code that it holds, as it is)'
        >>> wrapping_note("int a;\nint b;")
        ''
    """
    if any(line.startswith("```") for line in source.splitlines()):
        return " (the source holds lines of Markdown, ```: hand in the code between them alone)"
    if _DIFF.search(source):
        return " (the source is a diff: hand in the complete file)"
    text = source.strip()
    if text[:1] in ("{", "[", '"') and _is_json(text):
        return " (the source is JSON: hand in the code that it holds, as it is)"
    if source.count("\\n") > MIN_ESCAPED and source.count("\\n") > 4 * text.count("\n"):
        return r" (the source's line breaks are escaped, \n: hand in line breaks as they are)"
    return ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True
