"""Compiles for emulated GPUs: the emulator itself, and CUDA sources that it is to run; see `docs/emulator.md`.

The package rank_emulator provides the files and flags. It may be missing: all else works without it.
"""

from __future__ import annotations

from pkb_gym.engine.compile import nvcc
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import compiler_version, ffi_root
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.records.artifact import Artifact

TIMEOUT_S = 1800.0
"""A processor takes about a minute for it; a busy machine leaves it a fraction of one."""


def candidate_flags() -> tuple[str, ...]:
    """The options of nvcc for candidates on emulated GPUs."""
    from rank_emulator.cuda_sources import FLAGS

    return (*FLAGS, *(flag for flag in nvcc.FLAGS if flag not in ("-O3", "-Xlinker=-z,defs")))


def compile_emulated(source: str, cache: CompileCache, timeout_s: float) -> Artifact:
    """Compiles a CUDA source for emulated GPUs, or takes the result from the cache.

    Args:
        source: One translation unit.
        cache: Cache of compiled results.
        timeout_s: Deadline of the compiler in seconds.

    Raises:
        InfrastructureError: There is no compiler.
    """
    from rank_emulator.cuda_sources import ARCHITECTURE

    return nvcc.compile_cuda(source, cache, timeout_s, ARCHITECTURE, candidate_flags())


def build_emulator(cache: CompileCache) -> bytes:
    """The compiled emulator.

    Args:
        cache: Cache of compiled results.

    Raises:
        InfrastructureError: There is no compiler, or it does not take it.
    """
    from rank_emulator.building import RESULT, contents

    def compile_now() -> Compiled:
        limits = CompilerLimits(TIMEOUT_S)
        run = run_sandboxed(
            _command(),
            files=contents(),
            result=RESULT,
            readable=(ffi_root(), *nvcc.readable(nvcc.find_toolkit())),
            limits=limits,
        )
        return compiled_of(run, limits)

    key = build_key()
    with cache.exclusive(key):
        artifact = cached_compile(cache, key, compile_now)
    if artifact.binary is None:
        raise InfrastructureError(f"the emulator does not compile here: {artifact.log[:2000]}")
    return artifact.binary


def is_built(cache: CompileCache) -> bool:
    """Whether the compiled emulator lies in the cache.

    Raises:
        InfrastructureError: There is no compiler.
    """
    return cache.get(build_key()) is not None


def build_key() -> str:
    """The key of the compiled emulator in a cache.

    Raises:
        InfrastructureError: There is no compiler.
    """
    from rank_emulator.building import contents

    return CompileCache.key(
        emulator={name: content.decode() for name, content in contents().items()},
        command=_command(),
        compiler=compiler_version(),
        processor=cpu_info().model,  # which -march=native stands for
    )


def _command() -> list[str]:
    from rank_emulator.building import command, contents

    return command(contents(), nvcc.find_toolkit(), ffi_root())
