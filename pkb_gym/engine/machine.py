"""Facts about this machine that need no measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from functools import cache
from typing import Literal

from pkb_gym.engine import environment, gpus
from pkb_gym.engine.calibrate import cpu_hardware
from pkb_gym.engine.compile.cuda import nvcc_available, nvcc_version
from pkb_gym.engine.compile.native import compiler_version
from pkb_gym.engine.config import Device
from pkb_gym.engine.cpu_info import cpu_info
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.feedback import Environment
from pkb_gym.engine.hardware import HardwareSpec, find_gpu
from pkb_gym.engine.ranks.sandbox import bubblewrap_works


def choose_device(asked: Literal["auto", "cpu", "cuda"], language: str = "auto") -> Device:
    """The device that a configuration comes to here: by default GPUs, where there are any.

    Args:
        asked: as in `EvalConfig`.
        language: likewise; one that runs on one device alone decides where the device is left open.

    Raises:
        ConfigError: it cannot be had. Without a GPU, "cuda" sources can still be compiled where there is nvcc.
    """
    if asked == "auto" and language in ("cuda", "triton"):
        asked = "cuda"
    if asked == "auto":
        return "cuda" if gpus.names() and language != "cpp" else "cpu"
    if asked == "cuda" and not gpus.names() and not nvcc_available():
        raise ConfigError("device 'cuda' is not available here: there is neither an NVIDIA GPU nor nvcc")
    return asked


def can_run(device: Device) -> bool:
    """Whether kernels run on that device here; otherwise they are compiled, and that is all."""
    return device == "cpu" or bool(gpus.names())


def hardware(device: Device) -> HardwareSpec:
    """What the device can do at best.

    Raises:
        ConfigError: the GPU is not in the table, or there is none.
        InfrastructureError: the CPU could not be measured.
    """
    if device == "cpu":
        return cpu_hardware()
    names = gpus.names()
    if not names:
        raise ConfigError("this machine has no NVIDIA GPU")
    return find_gpu(names[0])


def gpu_link_bytes_per_s() -> float | None:
    """Peak of a GPU's links in one direction; None where the GPU is not in the table."""
    try:
        return hardware("cuda").peaks.link_bytes_per_s
    except ConfigError:
        return None


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(world_size: int) -> int:
    """Processor threads that each rank computes with, so that all ranks together use every processor once."""
    return max(1, processors() // world_size)


def memory_total_bytes() -> int:
    """Main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def describe(device: Device, native: bool) -> Environment:
    """Where an evaluation runs, for its record.

    Args:
        device: what kernels run on.
        native: whether a compiler takes part.
    """
    on_gpus = device == "cuda" and bool(gpus.names())
    toolchain = None
    if native:
        toolchain = compiler_version() if device == "cpu" else nvcc_version()
    return Environment(
        hardware=gpus.names()[0] if on_gpus else cpu_info().model,
        processors=processors(),
        sandbox="bubblewrap" if bubblewrap_works() else "limits",
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        toolchain=toolchain,
        driver=gpus.driver_version() if on_gpus else None,
        multicast=not environment.multicast_disabled() if on_gpus else None,
    )
