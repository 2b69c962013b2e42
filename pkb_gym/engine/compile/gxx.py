"""Native sources of the CPU device: one translation unit, g++, a shared object."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Sequence

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.opened_files import GXX_FLAGS, checked, header_folders, listing
from pkb_gym.engine.compile.precompiled import PREFIX, begins_with_header, precompiled_header
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import (
    DEBUG_INFORMATION,
    INCLUDE,
    compiler_version,
    ffi_root,
    header_digest,
    include_arguments,
    include_folders,
    library_arguments,
)
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.records.artifact import Artifact

COMPILER_FLAGS = (
    "-std=c++17",
    "-O3",
    *DEBUG_INFORMATION,
    "-march=native",
    "-fPIC",
    "-pthread",
    "-fopenmp-simd",
    "-Wall",
    "-fmax-errors=20",
    "-ftemplate-backtrace-limit=4",
    "-fdiagnostics-color=never",
    *GXX_FLAGS,
)
LINKER_FLAGS = ("-shared", "-Wl,-z,defs")  # an undefined symbol is an error now, not when a rank loads it
FLAGS = (*COMPILER_FLAGS, *LINKER_FLAGS)

_OPENMP = re.compile(r"<omp\.h>|\bomp\s+(?:parallel|target|teams)\b")
"""Pattern of sources that need OpenMP's threads; `omp simd` needs none."""


def openmp_flags(source: str) -> tuple[str, ...]:
    """Flags for sources with parallel regions of OpenMP, without which pragmas are ignored and functions missing.

    Not for all, since each rank that loads OpenMP's library pays for it.
    """
    return ("-fopenmp",) if _OPENMP.search(source) else ()


def _without_level(flags: Sequence[str]) -> Iterator[str]:
    """Flags but for the levels of optimisation that may read each other's precompiled headers."""
    return (flag for flag in flags if flag not in ("-O1", "-O2", "-O3"))


def compile_cpp(source: str, compile_cache: CompileCache, timeout_s: float, flags: Sequence[str] = FLAGS) -> Artifact:
    """Compiles a C++ source, or takes the result from the cache.

    Args:
        source: Source text of one translation unit.
        compile_cache: Cache of compile results.
        timeout_s: Deadline of the compiler, in seconds.
        flags: Flags of the compiler.

    Raises:
        InfrastructureError: there is no compiler.
    """
    flags = (*flags, *openmp_flags(source))
    key = CompileCache.key(
        source=source,
        flags=flags,
        compiler=compiler_version(),
        headers=header_digest(),
        ffi=importlib.metadata.version("apache-tvm-ffi"),
        processor=cpu_info().identity,
    )

    def compile_now() -> Compiled:
        limits = CompilerLimits(timeout_s)
        is_alike = [*_without_level(flags)] == [*_without_level(FLAGS)]
        precompiled = precompiled_header(COMPILER_FLAGS) if is_alike and begins_with_header(source) else None
        own = () if precompiled is None else (precompiled,)
        prefix = () if precompiled is None else ("-include", str(precompiled / PREFIX))
        arguments = (*include_arguments(), *prefix, "kernel.cpp", "-o", "kernel.so", *library_arguments())
        run = run_sandboxed(
            listing(["g++", *flags, *arguments]),
            files={"kernel.cpp": source.encode()},
            result="kernel.so",
            readable=(INCLUDE, ffi_root(), *own),
            limits=limits,
        )
        return compiled_of(checked(run, (*header_folders(), *include_folders(), *own)), limits)

    return cached_compile(compile_cache, key, compile_now)
