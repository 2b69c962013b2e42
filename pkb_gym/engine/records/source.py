"""A source as it is submitted: its text, the dialect that it is of, and whether it can be a source at all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pkb_gym.engine.records.config import Device, Language
from pkb_gym.engine.records.source_wrapping import wrapping_note
from pkb_gym.engine.support.source_digest import source_sha256

NOT_EMULATED = (
    "the device 'emulated' runs CUDA sources of the native dialect, and this is a Python module; write CUDA C++, or "
    "evaluate the module on device 'cpu' or 'cuda'"
)
MAX_SOURCE_BYTES = 1 << 20
"""Longest source; hand-written kernels are far shorter."""

# Of blanks, only those of one line: a run of line breaks would be gone through again from each of them.
_PYTHON_MARK = re.compile(r"^[ \t]*(?:def\s+solution\s*\(|import\s+\w|from\s+[\w.]+\s+import\b)", re.MULTILINE)
_NATIVE_MARK = re.compile(r"^[ \t]*#[ \t]*include\b|TVM_FFI_DLL_EXPORT_TYPED_FUNC|\bvoid\s+solution\s*\(", re.MULTILINE)
_SOLUTION = re.compile(r"^[ \t]*def\s+solution\s*\(", re.MULTILINE)
_TRITON_MARK = re.compile(r"^[ \t]*(?:import|from)\s+triton\b", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One source, parsed once.

    Attributes:
        text: Source text as it was submitted.
        language: Language of the source, found from the content or fixed by the configuration.
        defect: Reason why it is no source of that language, for the agent; None where it may be one.
    """

    text: str
    language: Language
    defect: str | None

    @classmethod
    def parse(cls, text: str, device: Device, language: Literal["auto"] | Language = "auto") -> Source:
        """Looks at a text; its size first, so that nothing scans a long one.

        Args:
            text: Submitted text, any string.
            device: Device that the source is to run on.
            language: Requested language; "auto" finds it from the content.
        """
        defect = _text_defect(text)
        found = language
        if found == "auto":
            found = _default_language(device) if defect else _detect_language(text, device)
        if device == "emulated" and found != "cuda":
            return cls(text, "cuda", defect or NOT_EMULATED)
        return cls(text, found, defect or _language_defect(text, found))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the text, as by `source_sha256`."""
        return source_sha256(self.text)


def as_sent(text: str) -> str:
    """The text, or of one that is too long as much as shows that: services refuse requests of any size."""
    return text if len(text) <= MAX_SOURCE_BYTES else text[: MAX_SOURCE_BYTES + 1]


def looks_like_source(text: str) -> bool:
    """Whether a text is more likely a source than prose about one."""
    return bool(_NATIVE_MARK.search(text) or _SOLUTION.search(text))


def _text_defect(text: str) -> str | None:
    """The reason why a text is no source of any language."""
    if len(text) > MAX_SOURCE_BYTES:  # before it is encoded: a character takes a byte at least
        return f"the source has at least {len(text)} bytes; at most {MAX_SOURCE_BYTES} are accepted"
    if not text.strip():
        return "the source is empty; expected a C++ source or a Python module that defines `solution`"
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        return f"the source is not valid Unicode text (position {error.start}: {error.reason}); files are read as UTF-8"
    if size > MAX_SOURCE_BYTES:
        return f"the source has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted"
    if "\0" in text:
        return f"the source contains a NUL character at position {text.index(chr(0))}"
    return None


def _language_defect(text: str, language: Language) -> str | None:
    """The reason why a text is no source of that language."""
    if language in ("python", "triton"):
        if re.search(r"\bsolution\b", text):
            return None
        define = "define solution(...) with the reference's signature"
        return f"the module never mentions `solution`; {define}{wrapping_note(text)}"
    if "solution" not in text:
        export = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution)"
        return f"the source never mentions `solution`; export it with {export}{wrapping_note(text)}"
    return None


def _default_language(device: Device) -> Language:
    return "cpp" if device == "cpu" else "cuda"


def _detect_language(text: str, device: Device) -> Language:
    """Finds the dialect from the content: a Python module, or a native translation unit of the device."""
    native, python = _NATIVE_MARK.search(text), _PYTHON_MARK.search(text)
    if python and (native is None or python.start() < native.start()):
        return "triton" if device == "cuda" and _TRITON_MARK.search(text) else "python"
    return _default_language(device)
