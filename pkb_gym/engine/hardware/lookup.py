"""The peaks of this machine's devices: a GPU's from the table, the CPU's as measured."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Literal

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.calibrate import cpu_hardware, find_compiler, machine_key
from pkb_gym.engine.hardware.cpu_info import cpu_info
from pkb_gym.engine.hardware.peaks import HardwareSpec, find_gpu
from pkb_gym.engine.support import env_vars


def find_hardware(device: Literal["cpu", "cuda", "emulated"]) -> HardwareSpec:
    """The peaks of a device; the CPU is measured if that was not done before.

    Raises:
        ConfigError: the GPU is not in the table or emulated, or there is none.
        InfrastructureError: the CPU could not be measured.
    """
    if device == "cpu":
        return cpu_hardware()
    if device == "emulated":
        raise ConfigError("emulated GPUs have no peaks: nothing is timed on them")
    names = gpus.names()
    if not names:
        raise ConfigError("this machine has no NVIDIA GPU")
    return find_gpu(names[0])


def known_hardware(device: Literal["cpu", "cuda", "emulated"]) -> HardwareSpec | None:
    """The hardware if it is quick to find, else None.

    It is None where the CPU was not measured yet, where torch is not installed, and where the GPU is emulated or not
    in the table.
    """
    if device == "cpu":
        # Measuring takes seconds, which a reset must not; the first evaluation does it.
        try:
            measured = env_vars.cache_dir() / "hardware" / f"cpu-{_cpu_key()}.json"
        except importlib.metadata.PackageNotFoundError:  # no torch: kernels are judged elsewhere
            return None
        return cpu_hardware() if measured.exists() else None
    try:
        return find_hardware(device)
    except ConfigError:
        return None


@cache
def _cpu_key() -> str:
    return machine_key(cpu_info(), find_compiler())


def gpu_link_bytes_per_s() -> float | None:
    """Peak of a GPU's links in one direction; None where the GPU is not in the table."""
    try:
        return find_hardware("cuda").peaks.link_bytes_per_s
    except ConfigError:
        return None
