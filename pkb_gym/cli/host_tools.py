"""This machine, as far as commands look at it themselves."""

from __future__ import annotations

import shutil
import subprocess

from pkb_gym.cli.progress import StageProgress
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.lookup import known_hardware
from pkb_gym.engine.hardware.peaks import HardwareSpec
from pkb_gym.engine.records.config import Device

QUERY_S = 20.0


def output_of(command: list[str]) -> str | None:
    """The output of a program; None where it is missing, fails, or prints nothing."""
    if shutil.which(command[0]) is None:
        return None
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (ran.stdout.strip() or None) if ran.returncode == 0 else None


def hardware_for(device: Device) -> HardwareSpec | None:
    """The peaks of the device; the first time a CPU machine is measured, which takes seconds and is printed.

    None where no peaks can be had; see `why_no_peaks`.

    Raises:
        InfrastructureError: the machine could not be measured.
    """
    hardware = known_hardware(device)
    if hardware is not None or device != "cpu":
        return hardware
    from pkb_gym.engine.hardware.calibrate import cpu_hardware

    with StageProgress("this machine") as progress:
        progress("measuring its peaks, once (about 6 s)")
        return cpu_hardware()


def why_no_peaks(device: Device) -> str:
    """The reason why there is no roofline for GPUs here."""
    if device == "emulated":
        return "emulated GPUs have no peaks: nothing is timed on them"
    if not gpus.names():
        return "this machine has no GPU; CUDA sources are only compiled. --device cpu shows its cores' bound"
    return f"no peaks are known for GPU {gpus.names()[0]!r}"
