"""Builds for finding mistakes: their names, and the compiler's flags for each.

release      as judged
debug        not optimised, whole debug information; indices of arrays and containers of known size are checked
address, undefined, thread
             with a sanitizer of g++; they run in the standalone harness alone
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pkb_gym.engine.compile import gxx, nvcc
from pkb_gym.engine.compile.toolchain import DEBUG_INFORMATION

Build: TypeAlias = Literal["release", "debug", "address", "undefined", "thread"]

_WHOLE_DEBUG_INFORMATION = ("-gdwarf-4", "-g", "-fno-omit-frame-pointer")
_BOUNDS = ("-D_GLIBCXX_ASSERTIONS", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error")
"""A failed check ends the process by SIGABRT or SIGILL; none needs a library."""


def gxx_flags(build: Build) -> tuple[str, ...]:
    """The flags of g++, for a source."""
    if build == "release":
        return gxx.FLAGS
    kept = tuple(flag for flag in gxx.FLAGS if flag not in ("-O3", *DEBUG_INFORMATION))
    if build == "debug":
        return ("-O0", *_WHOLE_DEBUG_INFORMATION, *_BOUNDS, *kept)
    # Each rank of the thread build is a thread that loads a copy of its own: no variable may be shared by name. That
    # sanitizer does not model the FFI's fences (-Wno-tsan), which guard its reference counts alone.
    return ("-O1", *_WHOLE_DEBUG_INFORMATION, f"-fsanitize={build}", "-Wno-tsan", "-fno-gnu-unique", *kept)


def nvcc_flags(build: Build) -> tuple[str, ...]:
    """The flags of nvcc, for a source; lines of device code in either build, so that compute-sanitizer names them."""
    flags = (nvcc.gencode(nvcc.default_architecture()), *nvcc.FLAGS)
    if build == "release":
        return (*flags, "-lineinfo")
    lines, whole = (",".join(names) for names in (DEBUG_INFORMATION, _WHOLE_DEBUG_INFORMATION))
    kept = (flag.replace(lines, whole) for flag in flags if flag != "-O3")
    return ("-O0", "-g", "-G", *kept)
