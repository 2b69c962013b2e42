"""Data inside a page: JSON that cannot end its element, and compressed chunks."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json

LEVEL = 9


def json_for_script(value: object) -> str:
    r"""JSON for a `<script type="application/json">`: no `<`, `>` or `&` is left in it.

    Source: HTML standard, section 4.12.1.3, on restrictions for contents of script elements.

    Example:
        >>> json_for_script("</script><!--")
        '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII alone, lone surrogates as escapes
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def compressed(value: object) -> str:
    """JSON as gzip in base64, the same bytes each time; a browser's `DecompressionStream` reads it."""
    data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    return base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii")


def csp_hash(text: str) -> str:
    """The hash that a content security policy names an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
