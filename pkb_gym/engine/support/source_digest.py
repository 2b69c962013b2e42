"""The digest that identifies a source in records, files and caches."""

from __future__ import annotations

import hashlib


def source_sha256(source: str) -> str:
    """SHA-256 of a source, in hexadecimal, as in `Feedback.source_sha256`; lone surrogates are taken as they are.

    Example:
        >>> source_sha256("")[:8]
        'e3b0c442'
    """
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
