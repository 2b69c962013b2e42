"""What can be told of this machine without starting or measuring anything."""

from __future__ import annotations

from functools import cache

from pkb_gym.engine import environment, gpus, machine
from pkb_gym.engine.calibrate import cpu_hardware, find_compiler, machine_key
from pkb_gym.engine.config import Device, EvalConfig, Language, ResolvedConfig, resolve
from pkb_gym.engine.cpu_info import cpu_info
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import HardwareSpec
from pkb_gym.engine.problem import Problem


def resolve_here(config: EvalConfig, problem: Problem) -> ResolvedConfig:
    """What a configuration comes to on this machine, for a native source where the language is open.

    Raises:
        ConfigError: it cannot be met here.
        SizeError: size, dtype and world size do not fit the problem.
    """
    device = machine.choose_device(config.device, config.language)
    language: Language = "cuda" if device == "cuda" else "cpp"
    memory_bytes = machine.memory_total_bytes()
    return resolve(
        config, problem, device=device, language=language, memory_total_bytes=memory_bytes, gpus=len(gpus.names())
    )


def known_hardware(device: Device) -> HardwareSpec | None:
    """The peaks of this machine; None where they were not measured yet, or there is no GPU that the table knows."""
    if device == "cpu":
        return _calibrated_cpu()
    try:
        return machine.hardware(device)
    except ConfigError:
        return None


def _calibrated_cpu() -> HardwareSpec | None:
    # Measuring takes seconds, which a reset must not; the first evaluation does it.
    key = _cpu_key()
    return cpu_hardware() if (environment.cache_dir() / "hardware" / f"cpu-{key}.json").exists() else None


@cache
def _cpu_key() -> str:
    return machine_key(cpu_info(), find_compiler())
