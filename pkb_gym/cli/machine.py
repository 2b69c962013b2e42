"""This machine, as far as commands need it before an evaluator is opened."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

from pkb_gym.engine.config import Device, EvalConfig, Language, ResolvedConfig, resolve
from pkb_gym.engine.hardware import HardwareSpec, find_gpu
from pkb_gym.engine.problem import Problem

from .progress import StageProgress

QUERY_S = 20.0


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """The GPUs, as the driver names them; none where there is no driver."""
    query = first_line_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], all_lines=True)
    return () if query is None else tuple(line.strip() for line in query.splitlines() if line.strip())


def first_line_of(command: list[str], *, all_lines: bool = False) -> str | None:
    """What a program prints, its first line alone unless `all_lines`; None where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if ran.returncode != 0:
        return None
    return ran.stdout if all_lines else (ran.stdout.splitlines() or [""])[0].strip()


def resolve_here(config: EvalConfig, problem: Problem) -> ResolvedConfig:
    """What the configuration comes to on this machine, for a native source.

    Raises:
        ConfigError, SizeError: it cannot be met.
    """
    gpu_count = len(gpu_names())
    on_gpu = config.device == "cuda" or (config.device == "auto" and gpu_count > 0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    language: Language = "cuda" if on_gpu else "cpp"
    return resolve(config, problem, language=language, gpu_count=gpu_count, memory_total_bytes=memory)


def hardware_for(device: Device) -> HardwareSpec:
    """The peaks of the device; the first time a CPU machine is measured, which takes seconds and is said.

    Raises:
        ConfigError: there is no GPU, or one without known peaks.
        InfrastructureError: the machine could not be measured.
    """
    if device == "cuda":
        return find_gpu(gpu_names()[0] if gpu_names() else "none")
    from pkb_gym.engine.calibrate import cpu_hardware

    with StageProgress("this machine") as progress:
        if not calibrated():
            progress("measuring its peaks, once (about 6 s)")
        return cpu_hardware()


def calibrated() -> bool:
    """Whether this machine's peaks were measured before."""
    from pkb_gym.engine import environment
    from pkb_gym.engine.calibrate import find_compiler, machine_key
    from pkb_gym.engine.cpu_info import cpu_info

    key = machine_key(cpu_info(), find_compiler())
    return (environment.cache_dir() / "hardware" / f"cpu-{key}.json").exists()
