"""Shared parts of native compiles on all devices: headers, the exported symbol, the host compiler."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from elftools.common.exceptions import ELFError

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.support.dynamic_symbols import dynamic_symbols

INCLUDE = Path(__file__).resolve().parent.parent / "include"
EXPORTED = "__tvm_ffi_solution"
"""Symbol that TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, ...) makes."""

DEBUG_INFORMATION = ("-gdwarf-4", "-g1")
"""Flags of g++ for debug information: lines for reports of crashes; the machine code is the same. addr2line of binutils
2.40 names wrong files of DWARF 5."""

MAX_SYMBOLS, MAX_NAME_BYTES = 20_000, 8 << 20


def include_folders() -> tuple[Path, ...]:
    """The folders of the dialect's headers."""
    return INCLUDE, ffi_root() / "include"


def include_arguments() -> tuple[str, ...]:
    """`include_folders` for a compiler, as those of the system: no warning that a source asks for is about them."""
    return tuple(part for folder in include_folders() for part in ("-isystem", str(folder)))


def library_arguments() -> tuple[str, ...]:
    """The FFI's library, to link with."""
    return f"-L{ffi_root() / 'lib'}", "-ltvm_ffi"


def exports_solution(binary: bytes) -> bool:
    """Whether a shared object exports `solution`, found by reading it: nothing is loaded.

    One of more sections, symbols or names than any kernel has counts as without, since each is looked at.

    Raises:
        InfrastructureError: it is no ELF file.
    """
    try:
        dynamic = dynamic_symbols(binary)
    except ELFError as error:
        raise InfrastructureError(f"the compiler's result is no ELF file: {error}") from None
    if dynamic is None or dynamic.count > MAX_SYMBOLS or len(dynamic.names) > MAX_NAME_BYTES:
        return False
    places = {found.start() for found in re.finditer(re.escape(EXPORTED.encode()) + b"\0", dynamic.names)}
    return any(name in places and is_defined for name, is_defined in dynamic)


@cache
def compiler_version() -> str:
    """First line of `g++ --version`.

    Raises:
        InfrastructureError: there is no g++.
    """
    if shutil.which("g++") is None:
        raise InfrastructureError("no g++ on this machine; install it (Debian: apt-get install g++)")
    output = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    return f"{output.splitlines()[0]} {platform.machine()}"


@cache
def header_digest() -> str:
    """Digest over the headers that kernels include."""
    digest = hashlib.sha256()
    for path in sorted(INCLUDE.rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def ffi_root() -> Path:
    """Folder of the tvm_ffi package, found without importing it."""
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise InfrastructureError("apache-tvm-ffi is not installed")
    return Path(spec.origin).parent
