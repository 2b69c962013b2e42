"""This machine, as far as commands look at it themselves."""

from __future__ import annotations

import shutil
import subprocess

from pkb_gym.engine.config import Device
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import HardwareSpec, find_gpu
from pkb_gym.envs.machine import gpu_names, known_hardware

from .progress import StageProgress

QUERY_S = 20.0


def output_of(command: list[str]) -> str | None:
    """What a program prints; None where it is missing, fails, or says nothing."""
    if shutil.which(command[0]) is None:
        return None
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (ran.stdout.strip() or None) if ran.returncode == 0 else None


def hardware_for(device: Device) -> HardwareSpec:
    """The peaks of the device; the first time a CPU machine is measured, which takes seconds and is said.

    Raises:
        ConfigError: there is no GPU, or one without known peaks.
        InfrastructureError: the machine could not be measured.
    """
    if device == "cuda":
        if not gpu_names():
            raise ConfigError("there is no GPU here; --device cpu shows the bound of this machine's cores")
        return find_gpu(gpu_names()[0])
    known = known_hardware("cpu")
    if known is not None:
        return known
    from pkb_gym.engine.calibrate import cpu_hardware

    with StageProgress("this machine") as progress:
        progress("measuring its peaks, once (about 6 s)")
        return cpu_hardware()
