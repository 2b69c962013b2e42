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
    out = isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY_TEXTS)
    return "out_of_memory" if out else "runtime_error"
