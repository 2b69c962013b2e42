"""Compiles for emulated GPUs: the emulator itself, and CUDA sources that it is to run; see `docs/emulator.md`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from pkb_gym.engine.compile import nvcc
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import compiler_version, ffi_root, library_arguments
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.records.artifact import Artifact

SOURCES = Path(__file__).resolve().parent.parent / "emulator" / "src"
ARCHITECTURE = "sm_90a"
TIMEOUT_S = 1800.0
"""A processor takes about a minute for it; a busy machine leaves it a fraction of one."""

FLAGS = ("-std=c++20", "-fPIC", "-pthread", "-march=native", "-ffp-contract=off", "-fvisibility=hidden")
FAST = ("alu", "executor_run", "matrix_tiles")
"""Beginnings of the translation units whose loops are to be vectorised; -O1 compiles the others sooner."""

TOGETHER = ("alu", "detector", "executor", "prepare", "ptx", "runtime")
"""Beginnings of sources that form one translation unit, as the remaining ones do: they include the same headers."""
ALONE = ("alu_half", "executor_memory", "executor_run", "executor_wgmma", "matrix_tiles", "ptx_parser")
"""Sources with a unit of their own: vectorised ones, and those that define names of internal linkage which another
source of their unit defines, too."""

ALIASES = r"nm -g --defined-only *.o | sed -n 's/.* T \(_*\)cuda\(.*\)$/-Wl,--defsym=\1CUDA\2=\1cuda\2/p' | sort -u"
"""Prints options that give the functions of the runtime the names that `emulated_names` gives those of a candidate."""

STANDARD_HEADERS = "standard_headers.h"
"""Includes all that the sources include of the standard library; read once, and not once for each source."""

CANDIDATE_FLAGS = (
    # The emulator runs the PTX; the machine code gives the registers, which decide how many blocks are resident.
    f"-gencode=arch={ARCHITECTURE.replace('sm_', 'compute_')},code=[{ARCHITECTURE},compute_{ARCHITECTURE[3:]}]",
    "--no-compress",
    "-lineinfo",
    "-cudart=none",  # the emulator has a runtime of its own, which is there before the library is loaded
    "-Xlinker=-z,now",  # loading the library names the first symbol that the runtime lacks
    "-Xcompiler=-fno-gnu-unique",  # each rank has its own copy of every variable
    "-O1",  # of the host's code alone, whose time nobody measures; GPU code is optimised whatever this says
    *(flag for flag in nvcc.FLAGS if flag not in ("-O3", "-Xlinker=-z,defs")),
)


def compile_emulated(source: str, cache: CompileCache, timeout_s: float) -> Artifact:
    """Compiles a CUDA source for emulated GPUs, or takes the result from the cache.

    Args:
        source: one translation unit.
        cache: where results are kept.
        timeout_s: deadline of the compiler.

    Raises:
        InfrastructureError: there is no compiler.
    """
    return nvcc.compile_cuda(source, cache, timeout_s, ARCHITECTURE, CANDIDATE_FLAGS)


def build_emulator(cache: CompileCache) -> bytes:
    """The compiled emulator.

    Args:
        cache: where compiled results are kept.

    Raises:
        InfrastructureError: there is no compiler, or it does not take it.
    """
    contents = _contents()

    def compile_now() -> Compiled:
        limits = CompilerLimits(TIMEOUT_S)
        run = run_sandboxed(
            _command(contents),
            files=contents,
            result="out.so",
            readable=(ffi_root(), *nvcc.readable(nvcc.find_toolkit())),
            limits=limits,
        )
        return compiled_of(run, limits)

    key = _key(contents)
    with cache.exclusive(key):
        artifact = cached_compile(cache, key, compile_now)
    if artifact.binary is None:
        raise InfrastructureError(f"the emulator does not compile here: {artifact.log[:2000]}")
    return artifact.binary


def is_built(cache: CompileCache) -> bool:
    """Whether the compiled emulator lies in the cache.

    Raises:
        InfrastructureError: there is no compiler.
    """
    return cache.get(_key(_contents())) is not None


@cache
def _contents() -> Mapping[str, bytes]:
    """The files of the emulator by name, read once: every evaluation asks for what was compiled of them."""
    sources = {
        path.name: path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in (".cpp", ".h", ".map")
    }
    return sources | {STANDARD_HEADERS: _standard_headers(sources.values())}


def _units(names: Iterable[str]) -> dict[str, list[str]]:
    """The sources of each translation unit.

    Args:
        names: of all files.
    """
    units: dict[str, list[str]] = {}
    for stem in sorted(name.removesuffix(".cpp") for name in names if name.endswith(".cpp")):
        beginning = stem.partition("_")[0]
        shared = beginning if beginning in TOGETHER else "remaining"
        units.setdefault(stem if stem in ALONE else shared, []).append(f"{stem}.cpp")
    return units


def _standard_headers(sources: Iterable[bytes]) -> bytes:
    """Directives for the standard library's headers, which alone have names without a suffix."""
    found = {name for source in sources for name in re.findall(rb"^#include <(\w+)>$", source, re.MULTILINE)}
    return b"".join(b"#include <%s>\n" % name for name in sorted(found))


def _command(contents: Mapping[str, bytes]) -> list[str]:
    """Precompiles the standard headers, compiles the sources side by side, then links them."""
    folders = [f"-I{ffi_root() / 'include'}", f"-I{nvcc.find_toolkit() / 'include'}"]
    objects = []
    lines = []
    compiler = ("g++", *FLAGS, "-include", STANDARD_HEADERS)
    precompile = shlex.join(["g++", *FLAGS, "-O1", "-x", "c++-header", STANDARD_HEADERS])
    for unit, sources in _units(contents).items():
        level = "-O3" if unit.startswith(FAST) else "-O1"
        objects.append(f"{unit}.o")
        *before, last = sources
        included = [word for source in before for word in ("-include", source)]
        lines.append(shlex.join([*compiler, *included, level, *folders, "-c", last, "-o", objects[-1]]))
    link = [
        "g++",
        "-shared",
        *objects,
        "-Wl,--version-script=exports.map",
        "-o",
        "out.so",
        *library_arguments(),
        "-ldl",
    ]
    jobs = shlex.join(["xargs", "-d", "\\n", "-P", str(os.cpu_count() or 1), "-I{}", "sh", "-c", "{}"])
    compiled = f"{precompile} && printf '%s\\n' {shlex.join(lines)} | {jobs}"
    return ["sh", "-c", f"{compiled} && {shlex.join(link)} $({ALIASES})"]


def _key(contents: Mapping[str, bytes]) -> str:
    return CompileCache.key(
        emulator={name: content.decode() for name, content in contents.items()},
        command=_command(contents),
        compiler=compiler_version(),
        processor=cpu_info().model,  # which -march=native stands for
    )
