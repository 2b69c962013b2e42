"""Stage static: what can be told from the text alone."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pkb_gym.engine.records.config import Language

MAX_SOURCE_BYTES = 1 << 20
"""Longest source; hand-written kernels are far shorter."""

_PYTHON_MARK = re.compile(r"^\s*(?:def\s+solution\s*\(|import\s+\w|from\s+[\w.]+\s+import\b)", re.MULTILINE)
_NATIVE_MARK = re.compile(r"^\s*#\s*include\b|TVM_FFI_DLL_EXPORT_TYPED_FUNC|\bvoid\s+solution\s*\(", re.MULTILINE)
# Files of the machine must not find their way into a compiler's input or messages.
_OUTSIDE_FILE = re.compile(r'#\s*(?:include|embed)\s*[<"]\s*(?:/|[^<">]*\.\./)|\.incbin\b|__has_include\s*\(\s*[<"]/')


class Rejected(Exception):
    """Raised when a text is no source; the message goes to the agent."""


def check_text(source: str, language: Language | None = None) -> None:
    """Rejects what no compiler needs to see.

    Args:
        source: the text.
        language: as resolved, or None where it is not known yet.

    Raises:
        Rejected: empty, too long, not text, or not the kind of source asked for.
    """
    if not source.strip():
        raise Rejected("the source is empty; expected a C++ source or a Python module that defines `solution`")
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Rejected(f"the source is not valid Unicode text (position {error.start}: {error.reason})") from None
    if size > MAX_SOURCE_BYTES:
        raise Rejected(f"the source has {size} bytes; at most {MAX_SOURCE_BYTES} are accepted")
    if "\0" in source:
        raise Rejected(f"the source contains a NUL character at position {source.index(chr(0))}")
    if language in ("cpp", "cuda") and (found := _OUTSIDE_FILE.search(source)):
        what = f"the source refers to a file of this machine: {found.group(0)!r}"
        raise Rejected(f"{what}; include library headers by name")
    if language in ("cpp", "cuda") and "solution" not in source:
        export = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution)"
        raise Rejected(f"the source never mentions `solution`; export it with {export}")
    if language in ("python", "triton") and not re.search(r"\bsolution\b", source):
        raise Rejected("the module never mentions `solution`; define solution(...) with the reference's signature")


COLLECTIVES = frozenset(
    {
        *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object"),
        *("all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "recv", "reduce"),
        *("reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send"),
    }
)


def calls_torch_distributed(source: str) -> bool:
    """Whether a Python source names a collective of torch.distributed: the baseline's own means of communication."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
            if any(alias.name in COLLECTIVES for alias in node.names):
                return True
        elif isinstance(node, ast.Attribute) and node.attr in COLLECTIVES:
            base = ast.unparse(node.value)
            if base in ("dist", "torch.distributed", "c10d", "distributed", "funcol"):
                return True
    return False


# The last is what makes streams in `pkb`'s own headers.
_MORE_STREAMS = re.compile(
    r"Stream(?:Create|PerThread|Legacy)|STREAM_(?:PER_THREAD|LEGACY)|Graph|GreenCtx|copy_side_by_side"
)


def makes_streams(source: str) -> bool:
    """Whether a CUDA source names what work beside the given stream is made of: streams, graphs, green contexts."""
    return _MORE_STREAMS.search(source) is not None


def detect_language(source: str, device: str) -> Language:
    """Tells the dialect by content: a Python module, or a native translation unit of the device."""
    native = _NATIVE_MARK.search(source)
    python = _PYTHON_MARK.search(source)
    if python and (native is None or python.start() < native.start()):
        uses_triton = re.search(r"^\s*(?:import|from)\s+triton\b", source, re.MULTILINE)
        return "triton" if device == "cuda" and uses_triton else "python"
    return "cuda" if device == "cuda" else "cpp"
