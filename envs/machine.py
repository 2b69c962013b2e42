"""What can be told of this machine without starting or measuring anything."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pkb_gym.engine import environment, machine
from pkb_gym.engine.calibrate import cpu_hardware, find_compiler, machine_key
from pkb_gym.engine.config import Device, EvalConfig, Language, ResolvedConfig, resolve
from pkb_gym.engine.cpu_info import cpu_info
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import HardwareSpec, find_gpu
from pkb_gym.engine.problem import Problem

GPUS_OF_DRIVER = Path("/proc/driver/nvidia/gpus")


def gpu_names(driver: Path = GPUS_OF_DRIVER) -> tuple[str, ...]:
    """The models of this machine's GPUs as the driver names them, without asking CUDA."""
    names = []
    for information in sorted(driver.glob("*/information")):
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(names)


def resolve_here(config: EvalConfig, problem: Problem) -> ResolvedConfig:
    """What a configuration comes to on this machine, for a native source where the language is open.

    Raises:
        ConfigError: it cannot be met here.
        SizeError: size, dtype and world size do not fit the problem.
    """
    device = machine.choose_device(config.device)
    language: Language = "cuda" if device == "cuda" else "cpp"
    memory_bytes = machine.memory_total_bytes()
    return resolve(config, problem, device=device, language=language, memory_total_bytes=memory_bytes)


def known_hardware(device: Device) -> HardwareSpec | None:
    """The peaks of this machine; None where they were not measured yet, or the GPU is not in the table."""
    if device == "cpu":
        return _calibrated_cpu()
    names = gpu_names()
    try:
        return find_gpu(names[0]) if names else None
    except ConfigError:
        return None


def _calibrated_cpu() -> HardwareSpec | None:
    # Measuring takes seconds, which a reset must not; the first evaluation does it.
    key = _cpu_key()
    return cpu_hardware() if (environment.cache_dir() / "hardware" / f"cpu-{key}.json").exists() else None


@cache
def _cpu_key() -> str:
    return machine_key(cpu_info(), find_compiler())
