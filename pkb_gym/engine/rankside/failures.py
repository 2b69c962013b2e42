"""Errors by which a rank program reports the failure of a candidate."""

from __future__ import annotations

import difflib
import os
import re
import traceback

from .crash import EXPORTED

HERE = os.path.dirname(__file__)
FFI_CALL = "tvm_ffi/cython/"
"""Part of the names of the files of the FFI library that calls a kernel."""
HEADERS = "/include/pkb/"
"""Part of the names of the headers that kernels include."""
ADDRESS = "0x"
"""Prefix of the names of unknown functions, such as the end of a stack."""
NO_FILE = "<unknown>"
"""File of functions without debug information."""
_OF_THREAD = re.compile(
    r"std::thread::|\bpkb_emu_|pkb::emulator::|^(?:start_thread|_*clone3?|execute_native_thread_routine)\b"
)
"""Functions that begin a thread, or a rank of the emulator, before a kernel's own."""
KERNELS = ("kernel.cpp", "kernel.cu")
"""Names of native sources, in whatever folder they are compiled."""
MAX_FRAMES = 6
"""The most frames of a traceback that are reported, those nearest to the error."""

MAX_NAMES = 5000
MAX_NAME_CHARS = 100

OUT_OF_MEMORY = "out_of_memory"
"""Value of `Failure` for an error by which memory was short."""

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
        kind: Value of `Failure`.
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
    return OUT_OF_MEMORY if out else "runtime_error"


def text_of(error: BaseException) -> str:
    """The text of an error; of one whose text could not be read as UTF-8, that text with its other bytes escaped.

    A class of the candidate's may have none.
    """
    if isinstance(error, UnicodeDecodeError):
        return bytes(error.object).decode(errors="backslashreplace")
    try:
        return str(error)
    except BaseException:
        return ""


def trace_of(error: BaseException) -> str:
    """The traceback of an error, and of those that it came from, with the frames of candidates and libraries alone.

    Frames of rank programs are the same for every candidate, and so no evidence on any.
    """
    trace = traceback.TracebackException.from_exception(error)
    left: list[traceback.TracebackException | None] = [trace]
    while left:  # a candidate may chain as many errors as it likes
        if (one := left.pop()) is not None:
            frames = [_renamed(frame) for frame in one.stack if not _is_harness(frame)][-MAX_FRAMES:]
            # Without a stack, no heading of one is printed.
            one.stack = traceback.StackSummary.from_list(frames) if frames else None  # type: ignore[assignment]
            left += [one.__cause__, one.__context__]
    text = "".join(trace.format()).rstrip()
    return text if "Did you mean" in text else text + _near_attribute(error)


def _near_attribute(error: BaseException) -> str:
    """The question with the nearest attribute, where there is none of a name; Python asks it itself from 3.12 on."""
    name, owner = (error.name, error.obj) if isinstance(error, AttributeError) else (None, None)
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or owner is None:
        return ""
    try:
        known = [other for other in dir(owner)[:MAX_NAMES] if len(other) <= MAX_NAME_CHARS]
        near = difflib.get_close_matches(name, known, n=1)
    except Exception:  # `__dir__` may be the candidate's
        return ""
    return f". Did you mean: {near[0]!r}?" if near else ""


def _is_harness(frame: traceback.FrameSummary) -> bool:
    name, function = frame.filename, frame.name
    is_ours = os.path.dirname(name) == HERE or FFI_CALL in name or HEADERS in name or function == EXPORTED
    begins_thread = name == NO_FILE and _OF_THREAD.search(function) is not None
    return is_ours or begins_thread or function.startswith(ADDRESS)


def _renamed(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    """The frame, of a source by its name alone: the folder that it was compiled in is gone."""
    name = os.path.basename(frame.filename)
    if name not in KERNELS:
        return frame
    return traceback.FrameSummary(name, frame.lineno, frame.name, lookup_line=False, line="")
