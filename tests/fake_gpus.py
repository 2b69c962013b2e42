"""A machine with other GPUs than this one's, as far as the package asks NVML."""

from __future__ import annotations

import pytest

from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.gpus import GpuConnections
from pkb_gym.engine.stages import execution_environment


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    *names: str,
    nvlinks: int = 18,
    apart: tuple[tuple[int, int], ...] = (),
    nvcc: bool = True,
) -> None:
    """This machine has GPUs of these names, of compute capability 9.0, and perhaps nvcc."""
    connections = GpuConnections(nvlinks=(nvlinks,) * len(names), apart=apart)
    monkeypatch.setattr(gpus, "names", lambda: names)
    monkeypatch.setattr(gpus, "driver_version", lambda: "580.95" if names else None)
    monkeypatch.setattr(gpus, "compute_capability", lambda: (9, 0) if names else None)
    monkeypatch.setattr(gpus, "connections", lambda: connections if names else None)
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: nvcc)
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", raising=False)
