"""Errors by which a rank program reports the failure of a candidate."""

from __future__ import annotations

OUT_OF_MEMORY_TEXTS = (
    "bad_alloc",
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "out of memory",
)


class CandidateError(Exception):
    """Raised when a candidate cannot be loaded or called as it is.

    Attributes:
        kind: value of `Failure`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def kind_of(error: BaseException) -> str:
    """The value of `Failure` for whatever a candidate raised."""
    if isinstance(error, CandidateError):
        return error.kind
    text = text_of(error)
    out = isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY_TEXTS)
    return "out_of_memory" if out else "runtime_error"


def text_of(error: BaseException) -> str:
    """The text of an error; of one whose text could not be read as UTF-8, that text with its other bytes escaped."""
    if isinstance(error, UnicodeDecodeError):
        return bytes(error.object).decode(errors="backslashreplace")
    return str(error)
