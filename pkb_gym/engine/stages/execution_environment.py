"""The execution environment on this machine: the device, the resolved configuration, and the record of both."""

from __future__ import annotations

import importlib.metadata
import platform
from functools import cache
from typing import Literal

from pkb_gym.engine.compile.library_headers import header_libraries
from pkb_gym.engine.compile.nvcc import default_architecture, find_toolkit, nvcc_available, nvcc_version
from pkb_gym.engine.compile.toolchain import compiler_version
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.hardware import gpus, host
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.hardware.lookup import known_hardware
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import Device, EvalConfig, ResolvedConfig
from pkb_gym.engine.records.feedback import Environment
from pkb_gym.engine.records.machine import HeaderLibrary, Machine
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.stages.heap_layout import lay_out
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.emulator_package import why_missing
from pkb_gym.engine.wire.orders import Dialect


def this_machine() -> Machine:
    """The machine of this process."""
    return Machine(
        memory_bytes=host.memory_total_bytes(),
        gpu_names=gpus.names(),
        gpu_memory_bytes=gpus.memory_bytes() if gpus.names() else None,
        gpu_connections=gpus.connections(),
        multicast_disabled=env_vars.multicast_disabled(),
        compiles_cuda=nvcc_available(),
        architecture=default_architecture(),
        no_emulator=why_not_emulated() or "",
        no_detector=no_detector(),
        no_gsan=no_gsan(),
        header_libraries=_libraries(),
        cpu=known_hardware("cpu"),
        gpu=known_hardware("cuda"),
    )


def _libraries() -> tuple[HeaderLibrary, ...]:
    if not nvcc_available():
        return ()
    try:
        return tuple(map(HeaderLibrary.of, header_libraries(find_toolkit())))
    except InfrastructureError:  # an nvcc that does not work is the business of those who compile with it
        return ()


def choose_device(requested: Literal["auto"] | Device, language: str = "auto") -> Device:
    """The device of a configuration on this machine; see `Machine.choose_device`."""
    return this_machine().choose_device(requested, language)


def why_not_emulated() -> str | None:
    """The reason why no kernels can be emulated on this machine, with the remedy; None where they can."""
    if not nvcc_available():
        return "CUDA sources are compiled by nvcc and g++; install the CUDA toolkit and a C++ compiler"
    return why_missing()


PROCESSORS_PER_GPU, SPARE_PROCESSORS = 2, 2
"""Processors of the ranks of each GPU and their threads, and those that the race detector needs beside them."""


def no_detector() -> str:
    """The reason why the race detector cannot judge beside this machine's GPUs; empty where it can."""
    count = len(gpus.names())
    if not count:
        return "this machine has no GPU, and device 'emulated' is the one for it"
    if host.processors() < PROCESSORS_PER_GPU * count + SPARE_PROCESSORS:
        return f"{host.processors()} processors leave none to spare beside {count} GPUs"
    return why_not_emulated() or ""


GSAN_SINCE = (3, 9)
"""First version of Triton whose GSan is used: that of 3.8 loses the place of a symmetric buffer in its allocation."""


def no_gsan() -> str:
    """The reason why Triton's GSan cannot look for races on this machine's GPUs; empty where it can."""
    if not gpus.names():
        return "this machine has no GPU"
    wanted = f"Triton {'.'.join(map(str, GSAN_SINCE))} or later has it"
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return f"Triton is not installed; {wanted}"
    is_there = tuple(int(part) for part in version.split(".")[:2]) >= GSAN_SINCE
    return "" if is_there else f"Triton {version} is installed, and {wanted}"


def compiled_only(dialect: Dialect) -> str:
    """The message for a source that was compiled for GPUs on a machine that has none."""
    done = f"compiled for {default_architecture()}" if dialect == "native" else "imported"
    return f"{done}; this machine has no GPU, so it was not run"


def can_run(device: Device) -> bool:
    """Whether kernels run on that device here; otherwise they are compiled, and that is all."""
    return device != "cuda" or bool(gpus.names())


def resolve_source(
    config: EvalConfig, problem: Problem, text: str, machine: Machine | None = None
) -> tuple[Source, ResolvedConfig]:
    """A submission parsed, and its configuration resolved on a machine, by default this one, which it fits.

    Arguments and errors as `Machine.resolve` and `check_memory`.
    """
    machine = machine or this_machine()
    source = Source.parse(text, machine.choose_device(config.device, config.language), config.language)
    resolved = machine.resolve(config, problem, source)
    check_memory(problem, resolved, machine)
    return source, resolved


def resolve_here(config: EvalConfig, problem: Problem, source: Source | None = None) -> ResolvedConfig:
    """Resolves a configuration on this machine; see `Machine.resolve`."""
    return this_machine().resolve(config, problem, source)


def check_memory(problem: Problem, config: ResolvedConfig, machine: Machine) -> None:
    """Refuses a size that a machine has no memory for.

    Args:
        problem: Problem to be solved.
        config: Resolved configuration; one that stops after compiling needs no memory, nor does one for GPUs where
            there are none.
        machine: Machine that judges.

    Raises:
        ConfigError: the evaluation needs more than there is.
    """
    if config.until == "compile" or not machine.can_run(config.device):
        return
    on_gpus = config.device == "cuda"
    present = machine.gpu_memory_bytes if on_gpus else machine.memory_bytes
    needed = lay_out(problem, config).memory_bytes
    if present is None or needed <= present:
        return
    ranks = "1 rank" if config.world_size == 1 else f"{config.world_size} ranks"
    memory = "of each GPU's memory" if on_gpus else "of main memory"
    raise ConfigError(
        f"{problem.name}: size {config.size!r} in {config.dtype} on {ranks} needs {_gib(needed)} {memory}, and this "
        f"machine has {_gib(present)}; choose a smaller size{_other_remedy(config)}"
    )


def _other_remedy(config: ResolvedConfig) -> str:
    if config.device == "cpu":
        return ""
    return ", or fewer ranks on a GPU" if config.ranks_per_gpu > 1 else ", or more ranks"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


@cache
def describe(device: Device, dialect: Dialect) -> Environment:
    """The execution environment, for the record.

    Args:
        device: Device that kernels run on.
        dialect: Dialect of the source; native sources involve a compiler.
    """
    on_gpus = device == "cuda" and bool(gpus.names())
    toolchain = None
    if dialect == "native":
        toolchain = compiler_version() if device == "cpu" else nvcc_version()
    libraries = header_libraries(find_toolkit()) if device != "cpu" and nvcc_available() else ()
    return Environment(
        hardware=gpus.names()[0] if on_gpus else cpu_info().model,
        processors=host.processors(),
        sandbox="bubblewrap" if bubblewrap_works() else "limits",
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        toolchain=toolchain,
        header_libraries=tuple(found.title for found in libraries),
        driver=gpus.driver_version() if on_gpus else None,
        multicast=not env_vars.multicast_disabled() if on_gpus else None,
    )
