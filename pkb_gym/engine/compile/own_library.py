"""Shared libraries of our own, compiled as candidates are: in the sandbox, once for each toolchain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import compiler_version
from pkb_gym.engine.errors import InfrastructureError

ENGINE = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120.0
FLAGS = ("-std=c++17", "-O2", "-shared")
HOST_COMPILER = ("g++", *FLAGS, "-fPIC")
RESULT = "out.so"
LIMITS = CompilerLimits(TIMEOUT_S)


def build_for_host(files: Sequence[str], cache: CompileCache) -> bytes:
    """A library that the host's compiler makes.

    Args:
        files: Paths relative to `engine/`; those that end in .cpp are compiled, the others are included by them.
        cache: Cache of compile results.

    Raises:
        InfrastructureError: there is no compiler, or it does not take it.
    """
    compiled = [Path(name).name for name in files if name.endswith(".cpp")]
    command = [*HOST_COMPILER, *compiled, "-o", RESULT]
    return build(files, command, cache, LIMITS, compiler=compiler_version())


def build(
    files: Sequence[str],
    command: Sequence[str],
    cache: CompileCache,
    limits: CompilerLimits,
    *,
    compiler: str,
    folders: tuple[Path, ...] = (),
) -> bytes:
    """A library that some compiler makes.

    Args:
        files: Paths relative to `engine/` of the files that the command needs.
        command: Command that writes `RESULT`, run in a folder that holds the files.
        cache: Cache of compile results.
        limits: Limits of the compiler.
        compiler: Version of the compiler.
        folders: Folders that the compiler reads.

    Raises:
        InfrastructureError: there is no compiler, or it does not take it.
    """
    contents = {Path(name).name: (ENGINE / name).read_bytes() for name in files}
    sources = {name: content.decode() for name, content in contents.items()}
    key = CompileCache.key(library=sources, command=command, compiler=compiler)

    def compile_now() -> Compiled:
        run = run_sandboxed(command, files=contents, result=RESULT, readable=folders, limits=limits)
        return compiled_of(run, limits)

    artifact = cached_compile(cache, key, compile_now)
    if artifact.binary is None:
        raise InfrastructureError(f"{files[0]} does not compile here: {artifact.log[:2000]}")
    return artifact.binary
