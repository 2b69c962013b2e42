"""Compiles for emulated GPUs: the emulator itself, and CUDA sources that it is to run; see `docs/emulator.md`.

The package rank_emulator provides the files and flags. It may be missing: all else works without it.
"""

from __future__ import annotations

from functools import cache as cached
from pathlib import Path

from pkb_gym.engine.compile import nvcc
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.library_headers import is_started
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import compiler_version, ffi_root
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.support.emulator_package import emulator_package

TIMEOUT_S = 1800.0
"""A processor takes about a minute for it; a busy machine leaves it a fraction of one."""


UNDEFINED_FAIL = "-Xlinker=-z,defs"
"""Option that refuses functions that no library has; those of the CUDA runtime are in none for emulated GPUs."""


def candidate_flags() -> tuple[str, ...]:
    """The options of nvcc for candidates on emulated GPUs."""
    from rank_emulator.cuda_sources import FLAGS

    return (*FLAGS, *(flag for flag in nvcc.FLAGS if flag not in ("-O3", UNDEFINED_FAIL)))


def compile_emulated(source: str, cache: CompileCache, timeout_s: float, *, low_priority: bool = False) -> Artifact:
    """Compiles a CUDA source for emulated GPUs, or takes the result from the cache.

    Args:
        source: One translation unit.
        cache: Cache of compiled results.
        timeout_s: Deadline of the compiler in seconds.
        low_priority: Whether the compiler leaves processors to whatever else wants them.

    Raises:
        InfrastructureError: There is no compiler.
    """
    from rank_emulator.cuda_sources import ARCHITECTURE

    return nvcc.compile_cuda(
        source, cache, timeout_s, ARCHITECTURE, candidate_flags(), low_priority=low_priority, emulated=True
    )


def compile_for_both(source: str, cache: CompileCache, timeout_s: float) -> Artifact:
    """Compiles a CUDA source for this machine's GPU, in one go with emulated ones where they are of one architecture.

    The object then lies in the artifact; see `library_of`. Arguments and errors as `compile_emulated`. What includes
    NVSHMEM or NCCL gets other headers for either.
    """
    if emulator_package() is None or is_started(source):
        return nvcc.compile_cuda(source, cache, timeout_s)
    from rank_emulator.cuda_sources import ARCHITECTURE, OBJECT_FLAGS

    if nvcc.default_architecture() != ARCHITECTURE:
        return nvcc.compile_cuda(source, cache, timeout_s)
    flags = (*OBJECT_FLAGS, *nvcc.FLAGS)
    return nvcc.compile_cuda(source, cache, timeout_s, ARCHITECTURE, flags, keeps_object=True)


def library_of(artifact: Artifact, source: str, cache: CompileCache, timeout_s: float) -> Artifact:
    """The library for emulated GPUs of a source that compiles for this machine's, at low priority.

    Linked of the object, which takes a fraction of a second, where the artifact has one; compiled anew otherwise.

    Args:
        artifact: Artifact for this machine's GPU, as from `compile_for_both` or another compile.
        source: One translation unit.
        cache: Cache of compiled results.
        timeout_s: Deadline of the compiler or linker in seconds.

    Raises:
        InfrastructureError: There is no compiler.
    """
    from rank_emulator.cuda_sources import LINK_FLAGS

    if artifact.object_file is None:
        return compile_emulated(source, cache, timeout_s, low_priority=True)
    flags = (*LINK_FLAGS, *(flag for flag in nvcc.LINK_FLAGS if flag != UNDEFINED_FAIL))
    return nvcc.link(artifact.object_file, flags, CompilerLimits(timeout_s, low_priority=True)).artifact


def emulated_key(source: str) -> str:
    """The key of a source that is compiled for emulated GPUs.

    Raises:
        InfrastructureError: There is no compiler.
    """
    from rank_emulator.cuda_sources import ARCHITECTURE

    return nvcc.compile_key(source, ARCHITECTURE, candidate_flags(), emulated=True)


def build_emulator(cache: CompileCache, *, low_priority: bool = False) -> bytes:
    """The compiled emulator.

    Args:
        cache: Cache of compiled results.
        low_priority: Whether the compiler leaves processors to whatever else wants them.

    Raises:
        InfrastructureError: There is no compiler, or it does not take it.
    """
    from rank_emulator.building import RESULT, contents

    def compile_now() -> Compiled:
        limits = CompilerLimits(TIMEOUT_S, low_priority=low_priority)
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
    return cache.holds(build_key())


def build_key() -> str:
    """The key of the compiled emulator in a cache.

    Raises:
        InfrastructureError: There is no compiler.
    """
    return CompileCache.key(
        emulator=_sources_digest(),
        command=_command(),
        compiler=compiler_version(),
        processor=cpu_info().model,  # which -march=native stands for
    )


@cached
def _sources_digest() -> str:
    """A digest of the emulator's sources, which are read once: each evaluation asks for it."""
    from rank_emulator.building import contents

    return CompileCache.key(**{name: content.decode() for name, content in contents().items()})


def _command() -> list[str]:
    return list(_command_for(nvcc.find_toolkit(), ffi_root()))


@cached
def _command_for(toolkit: Path, ffi: Path) -> tuple[str, ...]:
    from rank_emulator.building import command, contents

    return tuple(command(contents(), toolkit, ffi))
