"""The compiled handovers: the server of the trusted side, on GPUs also the rank's side and the sampler of outputs.

See `engine/handover` and `ranks/output_sampler`.
"""

from __future__ import annotations

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import MEMORY_KIB, default_architecture, find_toolkit, gencode, nvcc_version, readable
from pkb_gym.engine.compile.own_library import FLAGS, RESULT, TIMEOUT_S, build, build_for_host
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits
from pkb_gym.engine.compile.toolchain import compiler_version
from pkb_gym.engine.ranks.handover_server import HandoverLibraries
from pkb_gym.engine.records.config import Device


def build_handovers(device: Device, cache: CompileCache) -> HandoverLibraries:
    """The libraries for a device.

    Args:
        device: that ranks run on.
        cache: where compiled results are kept.

    Raises:
        InfrastructureError: there is no compiler, or it does not take them.
    """
    server = build_for_host(("handover/server.cpp", "handover/mailbox.h"), cache)
    if device == "cpu":
        return HandoverLibraries(server)
    toolkit, architecture = find_toolkit(), default_architecture()
    nvcc = [str(toolkit / "bin" / "nvcc"), gencode(architecture), *FLAGS, "-Xcompiler=-fPIC"]
    rank = build(
        ("handover/rank.cu", "handover/mailbox.h"),
        [*nvcc, "rank.cu", "-o", RESULT],
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
    return build_for_host(("ranks/output_sampler.cpp",), cache)
