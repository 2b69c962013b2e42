"""The compiled handovers: the server of the trusted side, on GPUs also the rank's side and the sampler of outputs.

See `engine/handover` and `ranks/output_sampler`.

Our own code, compiled as candidates are: in the sandbox, once for each toolchain.
"""

from __future__ import annotations

from pathlib import Path

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.cached_compile import Compiled, cached_compile
from pkb_gym.engine.compile.nvcc import MEMORY_KIB, default_architecture, find_toolkit, gencode, nvcc_version, readable
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits, compiled_of, run_sandboxed
from pkb_gym.engine.compile.toolchain import compiler_version
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.ranks.handover_server import HandoverLibraries
from pkb_gym.engine.records.config import Device

ENGINE = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120.0
FLAGS = ("-std=c++17", "-O2", "-shared")
HOST_COMPILER = ("g++", *FLAGS, "-fPIC")


def build_handovers(device: Device, cache: CompileCache) -> HandoverLibraries:
    """The libraries for a device.

    Args:
        device: that ranks run on.
        cache: where compiled results are kept.

    Raises:
        InfrastructureError: there is no compiler, or it does not take them.
    """
    server = _compile_for_host(("handover/server.cpp", "handover/mailbox.h"), cache)
    if device == "cpu":
        return HandoverLibraries(server)
    toolkit, architecture = find_toolkit(), default_architecture()
    rank = _compile(
        ("handover/rank.cu", "handover/mailbox.h"),
        [str(toolkit / "bin" / "nvcc"), gencode(architecture), *FLAGS, "-Xcompiler=-fPIC", "rank.cu", "-o", "out.so"],
        cache,
        CompilerLimits(TIMEOUT_S, memory_kib=MEMORY_KIB),
        compiler=f"{nvcc_version()} {compiler_version()}",
        folders=readable(toolkit),
    )
    return HandoverLibraries(server, rank, build_sampler(cache))


def build_sampler(cache: CompileCache) -> bytes:
    """The library that samples outputs; see `ranks/output_sampler`.

    Args:
        cache: where compiled results are kept.

    Raises:
        InfrastructureError: there is no compiler, or it does not take it.
    """
    return _compile_for_host(("ranks/output_sampler.cpp",), cache)


def _compile_for_host(files: tuple[str, ...], cache: CompileCache) -> bytes:
    command = [*HOST_COMPILER, Path(files[0]).name, "-o", "out.so"]
    return _compile(files, command, cache, CompilerLimits(TIMEOUT_S), compiler=compiler_version())


def _compile(
    files: tuple[str, ...],
    command: list[str],
    cache: CompileCache,
    limits: CompilerLimits,
    *,
    compiler: str,
    folders: tuple[Path, ...] = (),
) -> bytes:
    contents = {Path(name).name: (ENGINE / name).read_bytes() for name in files}
    key = CompileCache.key(
        handover={name: content.decode() for name, content in contents.items()}, command=command, compiler=compiler
    )

    def compile_now() -> Compiled:
        run = run_sandboxed(command, files=contents, result="out.so", readable=folders, limits=limits)
        return compiled_of(run, limits)

    artifact = cached_compile(cache, key, compile_now)
    if artifact.binary is None:
        raise InfrastructureError(f"the handovers of {files[0]} do not compile here: {artifact.log[:2000]}")
    return artifact.binary
