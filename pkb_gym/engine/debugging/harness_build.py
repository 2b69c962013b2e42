"""The standalone harness: its files, and the builds of harness and kernel for sanitizers and for kept runs.

address, undefined, thread
             the sanitizers of g++: they need a process of their own

compute-sanitizer runs the release build, with lines of device code.
"""

from __future__ import annotations

import importlib.metadata
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from pkb_gym.engine.compile import gxx, nvcc
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.debug_build import Build, gxx_flags, nvcc_flags
from pkb_gym.engine.compile.library_headers import included_libraries, with_libraries
from pkb_gym.engine.compile.opened_files import GXX_FLAGS, NVCC_FLAGS
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import (
    INCLUDE,
    compiler_version,
    ffi_root,
    header_digest,
    include_arguments,
    library_arguments,
)
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.records.config import SANITIZERS, Sanitizer
from pkb_gym.engine.support import env_vars

HARNESS = Path(__file__).resolve().with_name("harness.cpp")
BUILDS: Mapping[str, tuple[Build, ...]] = {
    "cpp": ("release", "debug", "address", "undefined", "thread"),
    "cuda": ("release", "debug"),
}
"""Language -> its builds."""


def harness_files() -> dict[str, bytes]:
    """Name -> content of the files that the harness is compiled from."""
    return {path.name: path.read_bytes() for path in (HARNESS, *sorted(HARNESS.parent.glob("harness_*.h")))}


def harness_command(language: str, build: Build) -> list[str]:
    """Compiles `harness.cpp`, which lies in the working folder with its headers, to `harness-BUILD`."""
    folder = ffi_root() / "lib"
    ending = (*include_arguments(), HARNESS.name, "-o", f"harness-{build}", *library_arguments(), "-ldl")
    if language == "cuda":
        compiler = str(nvcc.find_toolkit() / "bin" / "nvcc")
        return [compiler, "-x", "cu", "-DPKB_CUDA", "-std=c++17", "-g", "-O1", *ending, f"-Xlinker=-rpath,{folder}"]
    sanitizer = [] if build in ("release", "debug") else [f"-fsanitize={build}", "-Wno-tsan"]
    return ["g++", "-std=c++17", "-g", "-O1", "-pthread", *sanitizer, *ending, f"-Wl,-rpath,{folder}"]


def kernel_command(language: str, build: Build, source: str) -> list[str]:
    """Compiles the source, which lies in the working folder, to `kernel-BUILD.so`."""
    ending = [*include_arguments(), f"kernel.{'cu' if language == 'cuda' else 'cpp'}", "-o", f"kernel-{build}.so"]
    listing = {*GXX_FLAGS, *NVCC_FLAGS}  # is for the evaluator
    if language == "cuda":
        toolkit = nvcc.find_toolkit()
        libraries = included_libraries(source, toolkit)
        flags = with_libraries(nvcc_flags(build), libraries, nvcc.default_architecture(), toolkit)
        compiler = str(toolkit / "bin" / "nvcc")
    else:
        compiler, flags = "g++", (*gxx_flags(build), *gxx.openmp_flags(source))
    return [compiler, *(flag for flag in flags if flag not in listing), *ending, *library_arguments()]


def build_script(language: str, source: str) -> str:
    """A shell script that makes the harness and library of the build in its first argument, where they are missing."""
    cases = []
    for build in BUILDS[language]:
        kernel = shlex.join(kernel_command(language, build, source))
        harness = shlex.join(harness_command(language, build))
        lines = [f"[ -e kernel-{build}.so ] || {kernel} || exit 3", f"[ -e harness-{build} ] || {harness} || exit 3"]
        cases.append(f"  {build})\n    " + "\n    ".join(lines) + "\n    ;;")
    body = "\n".join(cases)
    return f"""#!/usr/bin/env bash
# Makes kernel-BUILD.so and harness-BUILD: ./build.sh [{"|".join(BUILDS[language])}]
cd "$(dirname "$0")" || exit 3
case "${{1:-release}}" in
{body}
  *)
    echo "no build '$1'; there are {" ".join(BUILDS[language])}" >&2
    exit 64
    ;;
esac
"""


def build_under(sanitizer: Sanitizer) -> Build:
    """The build that a sanitizer runs."""
    return "release" if sanitizer in SANITIZERS["cuda"] else sanitizer  # type: ignore[return-value]  # one of g++'s


def compile_sanitized(source: str, sanitizer: Sanitizer, cache: CompileCache, timeout_s: float) -> Artifact:
    """A source for a sanitizer, or the result from the cache.

    Args:
        source: Text of one translation unit.
        sanitizer: Name of the sanitizer.
        cache: Cache of compiled results.
        timeout_s: Seconds that the compiler may take.

    Raises:
        InfrastructureError: there is no compiler.
    """
    build = build_under(sanitizer)
    if sanitizer in SANITIZERS["cuda"]:
        return nvcc.compile_cuda(source, cache, timeout_s, flags=nvcc_flags(build))
    return gxx.compile_cpp(source, cache, timeout_s, gxx_flags(build))


def find_compute_sanitizer() -> Path:
    """The program, which need not lie beside nvcc.

    Raises:
        InfrastructureError: there is none.
    """
    found = shutil.which("compute-sanitizer")
    places = [Path(found)] if found else []
    places += [home / "bin" / "compute-sanitizer" for home in (env_vars.cuda_home(), Path("/usr/local/cuda")) if home]
    for place in places:
        if place.is_file():
            return place.resolve()
    raise InfrastructureError(
        "no compute-sanitizer on this machine; install it with the CUDA toolkit, or set CUDA_HOME to where it is"
    )


def build_harness(sanitizer: Sanitizer, cache: CompileCache) -> bytes:
    """The harness for a sanitizer.

    Args:
        sanitizer: Name of the sanitizer.
        cache: Cache of compiled results.

    Raises:
        InfrastructureError: it does not compile here, as where the sanitizer's library is missing.
    """
    on_gpus, build = sanitizer in SANITIZERS["cuda"], build_under(sanitizer)
    command, files = harness_command("cuda" if on_gpus else "cpp", build), harness_files()
    toolkit = nvcc.readable(nvcc.find_toolkit()) if on_gpus else ()
    key = CompileCache.key(
        harness={name: content.decode() for name, content in files.items()},
        command=command,
        compiler=compiler_version(),
        device_compiler=nvcc.nvcc_version() if on_gpus else None,
        headers=header_digest(),
        ffi=importlib.metadata.version("apache-tvm-ffi"),
    )

    def compile_now() -> Compiled:
        limits = CompilerLimits(
            _HARNESS_TIMEOUT_S, memory_kib=nvcc.MEMORY_KIB if on_gpus else CompilerLimits.memory_kib
        )
        run = run_sandboxed(
            command,
            files=files,
            result=f"harness-{build}",
            readable=(INCLUDE, ffi_root(), *toolkit),
            limits=limits,
        )
        return compiled_of(run, limits)

    artifact = cached_compile(cache, key, compile_now)
    if artifact.binary is None:
        raise InfrastructureError(f"the harness of the {sanitizer} sanitizer does not compile: {artifact.log[:2000]}")
    return artifact.binary


_HARNESS_TIMEOUT_S = 120.0
