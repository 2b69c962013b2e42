"""The build of the emulator: its sources, the command that compiles them, and a build in a folder.

`contents` and `command` are for callers that run compilers in their own way; `build` runs them here.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from .cuda_sources import find_toolkit
from .errors import EmulatorError

SOURCES = Path(__file__).resolve().parent / "src"
RESULT = "out.so"
"""Name of the file that `command` makes."""

FLAGS = ("-std=c++20", "-fPIC", "-pthread", "-march=native", "-ffp-contract=off", "-fvisibility=hidden")
WITHOUT_COLLECTIONS = ("--param", "ggc-min-heapsize=1048576")
"""Lets g++ take a tenth more memory in place of looking for garbage, a tenth of its time; in KiB."""
INNER = (
    "executor_matrix",
    "executor_memory",
    "executor_run",
    "executor_state",
    "executor_wgmma",
    "matrix_tiles",
)
"""Sources of the unit "inner": with those of `alu` and the races, what runs spend their time in."""
FAST = ("alu", "detector_races", "inner")
"""Beginnings of the units whose loops are vectorised; the others compile sooner."""
FAST_LEVEL = ("-O3", "-fno-ipa-cp")
"""Optimisation of those units, without a pass in which GCC 12 crashes."""
SELDOM = ("prepare", "remaining", "runtime")
"""Units that runs seldom execute: -Og compiles them in three quarters of the time that -O1 takes."""

TOGETHER = ("alu", "detector", "executor", "prepare", "ptx", "runtime")
"""Beginnings of sources that form one translation unit, as the remaining ones do: they include the same headers."""
ALONE = ("alu_half", "detector_races")
"""Sources with a unit of their own: of another level, or with names of internal linkage that its kin define, too."""

ALIASES = (
    r"nm -g --defined-only *.o | sed -n -e 's/.* T \(_*\)cuda\(.*\)$/-Wl,--defsym=\1CUDA\2=\1cuda\2/p'"
    r" -e 's/.* T cu\([A-Z].*\)$/-Wl,--defsym=CU\1=cu\1/p' | sort -u"
)
"""Prints options that give the functions of the runtime the names that `emulated_names` gives those of a library."""

STANDARD_HEADERS = "standard_headers.h"
"""Includes all that the sources include of the standard library; read once, and not once for each source."""


def build(folder: Path | str) -> Path:
    """Compiles the emulator for this machine, or finds what an earlier call has compiled.

    It takes about 40 seconds of processor time, shared by all processors. Callers that ask at the same time wait for
    one compile.

    Args:
        folder: Folder of compiled files, made if it is missing.

    Returns:
        The shared library; its name has a digest of the sources, the command, the compiler and the processor.

    Raises:
        EmulatorError: g++, the CUDA toolkit or apache-tvm-ffi is missing, or the compiler fails.
    """
    if shutil.which("g++") is None:
        raise EmulatorError("no g++ on this machine; install it (Debian: apt-get install g++)")
    folder = Path(folder)
    files = contents()
    line = command(files, find_toolkit(), tvm_ffi_folder())
    library = folder / f"rank-emulator-{_digest(files, line)}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rank-emulator.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return library
        with tempfile.TemporaryDirectory(dir=folder) as name:
            work = Path(name)
            for file, content in files.items():
                (work / file).write_bytes(content)
            done = subprocess.run(line, cwd=work, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode != 0:
                raise EmulatorError(f"the emulator does not compile here: {(done.stdout + done.stderr)[:2000]}")
            (work / RESULT).rename(library)
    return library


@cache
def contents() -> Mapping[str, bytes]:
    """The files to compile, by name. They are read once."""
    sources = {
        path.name: path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in (".cpp", ".h", ".map")
    }
    return sources | {STANDARD_HEADERS: standard_headers(sources.values())}


def units(names: Iterable[str]) -> dict[str, list[str]]:
    """The sources of each translation unit, by the name of the unit.

    Args:
        names: Names of all files.
    """
    found: dict[str, list[str]] = {}
    for stem in sorted(name.removesuffix(".cpp") for name in names if name.endswith(".cpp")):
        beginning = stem.partition("_")[0]
        shared = beginning if beginning in TOGETHER else "remaining"
        unit = stem if stem in ALONE else "inner" if stem in INNER else shared
        found.setdefault(unit, []).append(f"{stem}.cpp")
    return found


def standard_headers(sources: Iterable[bytes]) -> bytes:
    """Directives for the standard library's headers, which alone have names without a suffix."""
    found = {name for source in sources for name in re.findall(rb"^#include <(\w+)>$", source, re.MULTILINE)}
    return b"".join(b"#include <%s>\n" % name for name in sorted(found))


def command(files: Mapping[str, bytes], toolkit: Path, ffi: Path) -> list[str]:
    """The command that makes `RESULT` in the folder of the files.

    It precompiles the standard headers, compiles the sources side by side, then links them.

    Args:
        files: Contents of all files, by name.
        toolkit: Folder of the CUDA toolkit, of which the headers are needed.
        ffi: Folder of the package tvm_ffi.
    """
    folders = [f"-I{ffi / 'include'}", f"-I{toolkit / 'include'}"]
    objects = []
    lines = []
    compiler = ("g++", *FLAGS, *WITHOUT_COLLECTIONS, "-include", STANDARD_HEADERS)
    precompile = shlex.join(["g++", *FLAGS, *WITHOUT_COLLECTIONS, "-O1", "-x", "c++-header", STANDARD_HEADERS])
    for unit, sources in units(files).items():
        level = FAST_LEVEL if unit.startswith(FAST) else ("-Og",) if unit in SELDOM else ("-O1",)
        objects.append(f"{unit}.o")
        *before, last = sources
        included = [word for source in before for word in ("-include", source)]
        lines.append(shlex.join([*compiler, *included, *level, *folders, "-c", last, "-o", objects[-1]]))
    link = ["g++", "-shared", *objects, "-Wl,--version-script=exports.map", "-o", RESULT]
    link += [f"-L{ffi / 'lib'}", "-ltvm_ffi", "-ldl"]
    jobs = shlex.join(["xargs", "-d", "\\n", "-P", str(os.cpu_count() or 1), "-I{}", "sh", "-c", "{}"])
    compiled = f"{precompile} && printf '%s\\n' {shlex.join(lines)} | {jobs}"
    return ["sh", "-c", f"{compiled} && {shlex.join(link)} $({ALIASES})"]


@cache
def tvm_ffi_folder() -> Path:
    """The folder of the package tvm_ffi, found without importing it.

    Raises:
        EmulatorError: It is not installed.
    """
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise EmulatorError("apache-tvm-ffi is not installed")
    return Path(spec.origin).parent


def _digest(files: Mapping[str, bytes], line: list[str]) -> str:
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(repr((sorted(files.items()), line, version, _processor())).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """The processor that -march=native stands for."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return "\n".join(dict.fromkeys(re.findall(r"^(?:model name|flags|CPU part|Features)\s*: .*$", info, re.MULTILINE)))
