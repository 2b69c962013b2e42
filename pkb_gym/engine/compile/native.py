"""Native sources of the CPU device: one translation unit, g++, a shared object."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from math import ceil
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from pkb_gym.engine.compile.artifact import Artifact
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.cpu_info import cpu_info
from pkb_gym.engine.environment import for_candidates
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.ranks.sandbox import SYSTEM_FILES, SYSTEM_FOLDERS, Policy, bubblewrap_arguments, bubblewrap_works

INCLUDE = Path(__file__).resolve().parent.parent / "include"
EXPORTED = "__tvm_ffi_solution"
"""Symbol that TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, ...) makes."""

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fopenmp-simd",
    "-Wall",
    "-fmax-errors=20",
    "-ftemplate-backtrace-limit=4",
    "-fdiagnostics-color=never",
)
MEMORY_KIB, FILE_BLOCKS = 6 << 20, 1 << 19
"""Limits of the compiler: 6 GiB of address space, 256 MiB per file."""

MAX_LOG_CHARS = 12_000
_SCRIPT = """
ulimit -v "$1"; ulimit -f "$2"; ulimit -t "$3"; ulimit -c 0
library="$4"; folder="$5"; shift 5
exec 3<&0
(trap "" TERM; read -r _; kill -TERM 0; sleep 0.1; test -z "$folder" || rm -rf "$folder"; kill -KILL 0) <&3 &
"$@" < /dev/null && cat kernel.so > "/proc/self/fd/$library"
"""
"""Its standard input ends with the evaluator, and so does everything it started; $5 is a folder to be removed then."""

_LIMITED = ("sh", "-c", _SCRIPT, "sh")


def compile_native(source: str, compile_cache: CompileCache, timeout_s: float) -> Artifact:
    """Compiles a C++ source, or takes the result from the cache.

    Args:
        source: one translation unit.
        compile_cache: where results are kept; failures are kept too, they would be the same again.
        timeout_s: deadline of the compiler.

    Raises:
        InfrastructureError: there is no compiler.
    """
    key = CompileCache.key(
        source=source,
        flags=FLAGS,
        compiler=compiler_version(),
        headers=header_digest(),
        ffi=importlib.metadata.version("apache-tvm-ffi"),
        processor=cpu_info().identity,
    )
    found = compile_cache.get(key)
    if found is not None:
        return found
    artifact, lasting = _run_compiler(source, timeout_s)
    if lasting:
        compile_cache.put(key, artifact)
    return artifact


def _run_compiler(source: str, timeout_s: float) -> tuple[Artifact, bool]:
    """The result, and whether it would be the same again (a deadline might not)."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        text, library, log = (_memory_file(stack, name) for name in ("kernel.cpp", "kernel.so", "log"))
        os.write(text, source.encode())
        os.lseek(text, 0, os.SEEK_SET)
        folder = None if bubblewrap_works() else stack.enter_context(tempfile.TemporaryDirectory(prefix="pkb-compile-"))
        if folder is not None:
            (Path(folder) / "kernel.cpp").write_text(source, encoding="utf-8")
        process = subprocess.Popen(
            _command(text, library, timeout_s, folder),
            cwd=folder,
            env=for_candidates(TMPDIR=folder or "/tmp"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(text, library),
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill_session(process)
        duration_s = time.monotonic() - began
        said = _cut(_content(log).decode(errors="replace"))
        binary = _content(library)
    if status is None:
        said = f"{said}\nthe compiler took longer than {timeout_s:g} s"
        return Artifact(ok=False, log=said, duration_s=duration_s), False
    if status != 0 or not binary:
        reason = "" if "error" in said else f"\nthe compiler ended with status {status}"
        # What was killed (status 128 + signal, or negative) might have been short of memory for once.
        return Artifact(ok=False, log=said + reason, duration_s=duration_s), 0 < status < 128
    return Artifact(ok=True, log=said, duration_s=duration_s, binary=binary), True


def _command(text: int, library: int, timeout_s: float, folder: str | None) -> Sequence[str]:
    """The compiler in its sandbox, where the source comes in and the shared object goes out by descriptors.

    Without a sandbox it works in `folder`.
    """
    ffi = ffi_root()
    compiler = [
        *_LIMITED,
        str(MEMORY_KIB),
        str(FILE_BLOCKS),
        str(ceil(timeout_s) + 1),
        str(library),
        folder or "",
        "g++",
        *FLAGS,
        f"-I{INCLUDE}",
        f"-I{ffi / 'include'}",
        "kernel.cpp",
        "-o",
        "kernel.so",
        f"-L{ffi / 'lib'}",
        "-ltvm_ffi",
        "-Wl,-z,defs",  # an undefined symbol is an error now, not when a rank loads it
    ]
    if folder is not None:
        return compiler
    system = [path for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES) if Path(path).exists()]
    readable = tuple((path, path) for path in (*system, str(INCLUDE), str(ffi)))
    arguments = bubblewrap_arguments(Policy(read_only=readable, dies_with_parent=True), compiler)
    place = arguments.index("--chdir")
    arguments[place:place] = ["--file", str(text), "/tmp/kernel.cpp"]
    return arguments


def _memory_file(stack: contextlib.ExitStack, name: str) -> int:
    """A file without a name, gone with the last process that has it open."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def exports_solution(binary: bytes) -> bool:
    """Whether a shared object exports `solution`, told by reading it: nothing is loaded.

    Raises:
        InfrastructureError: it is no ELF file.
    """
    try:
        dynamic = ELFFile(BytesIO(binary)).get_section_by_name(".dynsym")
    except ELFError as error:
        raise InfrastructureError(f"the compiler's result is no ELF file: {error}") from None
    return isinstance(dynamic, SymbolTableSection) and any(
        symbol["st_shndx"] != "SHN_UNDEF" for symbol in dynamic.get_symbol_by_name(EXPORTED) or []
    )


@cache
def compiler_version() -> str:
    """First line of `g++ --version`.

    Raises:
        InfrastructureError: there is no g++.
    """
    if shutil.which("g++") is None:
        raise InfrastructureError("no g++ on this machine; install it (Debian: apt-get install g++)")
    said = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    return f"{said.splitlines()[0]} {platform.machine()}"


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


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _cut(text: str) -> str:
    if len(text) <= MAX_LOG_CHARS:
        return text
    half = MAX_LOG_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
