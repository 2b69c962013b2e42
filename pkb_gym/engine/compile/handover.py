"""The compiled handovers: the server of the trusted side, on GPUs also the rank's side and the sampler of outputs.

Sources: `reference/handover_server.cpp` and `reference/interruptions.cpp` in one library,
`reference/output_sampler.cpp`, and in one library for ranks `rankside/handover.cu` and `rankside/congestion.cu`.
"""

from __future__ import annotations

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.nvcc import MEMORY_KIB, default_architecture, find_toolkit, gencode, nvcc_version, readable
from pkb_gym.engine.compile.own_library import FLAGS, RESULT, TIMEOUT_S, build, build_for_host
from pkb_gym.engine.compile.sandboxed_compiler import CompilerLimits
from pkb_gym.engine.compile.toolchain import compiler_version
from pkb_gym.engine.gangs.handover_ends import HandoverLibraries
from pkb_gym.engine.records.config import Device


def build_handovers(device: Device, cache: CompileCache) -> HandoverLibraries:
    """The libraries for a device.

    Args:
        device: Device that the ranks run on.
        cache: Cache of compile results.

    Raises:
        InfrastructureError: there is no compiler, or it does not take them.
    """
    server = build_for_host(("reference/handover_server.cpp", "reference/interruptions.cpp", "wire/mailbox.h"), cache)
    if device == "cpu":
        return HandoverLibraries(server)
    toolkit, architecture = find_toolkit(), default_architecture()
    nvcc = [str(toolkit / "bin" / "nvcc"), gencode(architecture), *FLAGS, "-Xcompiler=-fPIC"]
    rank = build(
        ("rankside/handover.cu", "rankside/congestion.cu", "wire/mailbox.h"),
        [*nvcc, "handover.cu", "congestion.cu", "-o", RESULT],
        cache,
        CompilerLimits(TIMEOUT_S, memory_kib=MEMORY_KIB),
        compiler=f"{nvcc_version()} {compiler_version()}",
        folders=readable(toolkit),
    )
    return HandoverLibraries(server, rank, build_sampler(cache))


def build_sampler(cache: CompileCache) -> bytes:
    """The library that samples outputs; see `reference/output_sampler`.

    Args:
        cache: Cache of compile results.

    Raises:
        InfrastructureError: there is no compiler, or it does not take it.
    """
    return build_for_host(("reference/output_sampler.cpp",), cache)
