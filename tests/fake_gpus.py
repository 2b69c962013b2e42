"""A machine with other GPUs than this one's, as far as the package asks NVML."""

from __future__ import annotations

import pytest

from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.gpus import GpuConnections
from pkb_gym.engine.hardware.peaks import find_gpu
from pkb_gym.engine.records.machine import HeaderLibrary, Machine
from pkb_gym.engine.stages import execution_environment


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    *names: str,
    nvlinks: int = 18,
    apart: tuple[tuple[int, int], ...] = (),
    nvcc: bool = True,
) -> None:
    """This machine has GPUs of these names, of compute capability 9.0, and perhaps nvcc."""
    pretend_gpus(monkeypatch, *names, nvlinks=nvlinks, apart=apart)
    monkeypatch.setattr(execution_environment, "nvcc_available", lambda: nvcc)
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", raising=False)


def pretend_gpus(
    monkeypatch: pytest.MonkeyPatch, *names: str, nvlinks: int = 18, apart: tuple[tuple[int, int], ...] = ()
) -> None:
    """This machine has GPUs of these names: every answer of NVML, as each is remembered by itself."""
    connections = GpuConnections(nvlinks=(nvlinks,) * len(names), apart=apart)
    monkeypatch.setattr(gpus, "names", lambda: names)
    monkeypatch.setattr(gpus, "memory_bytes", lambda: 141 << 30 if names else None)
    monkeypatch.setattr(gpus, "driver_version", lambda: "580.95" if names else None)
    monkeypatch.setattr(gpus, "compute_capability", lambda: (9, 0) if names else None)
    monkeypatch.setattr(gpus, "connections", lambda: connections if names else None)


def gpu_node(count: int = 8, **changes: object) -> Machine:
    """The description of a node with H200s, as its evaluator hands it out."""
    machine = Machine(
        memory_bytes=1 << 40,
        gpu_names=("NVIDIA H200",) * count,
        gpu_memory_bytes=141 << 30,
        gpu_connections=GpuConnections(nvlinks=(18,) * count, apart=()),
        compiles_cuda=True,
        architecture="sm_100a",  # of no GPU of these tests, so that it can have come from the description alone
        header_libraries=(HeaderLibrary(title="CUTLASS 9.9", begins=("cutlass/",), folders=("/node/cutlass",)),),
        gpu=find_gpu("NVIDIA H200"),
    )
    return machine.model_copy(update=changes)
