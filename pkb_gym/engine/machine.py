"""Facts about this machine that need no measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from functools import cache
from typing import Literal

from pkb_gym.engine.compile.native import compiler_version
from pkb_gym.engine.config import Device
from pkb_gym.engine.cpu_info import cpu_info
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.feedback import Environment
from pkb_gym.engine.ranks.sandbox import bubblewrap_works

DEVICES: tuple[Device, ...] = ("cpu",)
"""Devices that `LocalEvaluator` runs kernels on; the first is what "auto" stands for."""


def choose_device(asked: Literal["auto", "cpu", "cuda"]) -> Device:
    """The device that a configuration comes to here.

    Raises:
        ConfigError: it cannot be had.
    """
    device = DEVICES[0] if asked == "auto" else asked
    if device not in DEVICES:
        raise ConfigError(f"device {device!r} is not available here; there is {', '.join(map(repr, DEVICES))}")
    return device


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
def describe(native: bool) -> Environment:
    """Where an evaluation runs, for its record.

    Args:
        native: whether a compiler takes part.
    """
    return Environment(
        hardware=cpu_info().model,
        processors=processors(),
        sandbox="bubblewrap" if bubblewrap_works() else "limits",
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        toolchain=compiler_version() if native else None,
    )
