"""The machine that judges, as far as requests resolve by it and task texts describe it."""

from __future__ import annotations

from typing import Literal, Self

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware.gpus import GpuConnections
from pkb_gym.engine.hardware.peaks import HardwareSpec
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.records.config import Device, EvalConfig, ResolvedConfig, resolve
from pkb_gym.engine.records.source import Source
from pkb_gym.engine.support.header_libraries import FoundLibrary


class HeaderLibrary(Record):
    """A header library that CUDA sources may include."""

    title: str
    """Name and version."""
    begins: tuple[str, ...]
    """Prefixes of its headers' names in `#include`."""
    note: str = ""
    """Limit that an author of kernels has to know."""
    folders: tuple[str, ...]
    """Absolute paths of the header folders."""
    is_built_in: bool = False
    """Whether compilers search its folders by themselves."""

    @classmethod
    def of(cls, found: FoundLibrary) -> Self:
        """The record of a library that was found."""
        return cls(
            title=found.title,
            begins=found.library.begins,
            note=found.library.note,
            folders=tuple(map(str, found.folders)),
            is_built_in=found.is_built_in,
        )


class Machine(Record):
    """The machine of an evaluator: what its devices, compilers and libraries are."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that the evaluator is limited to; "auto" for none."""
    memory_bytes: int
    """Main memory."""
    gpu_names: tuple[str, ...] = ()
    """Names of the GPUs, such as "NVIDIA H200"."""
    gpu_memory_bytes: int | None = None
    """Least memory of the GPUs; None where it is unknown."""
    gpu_connections: GpuConnections | None = None
    """Connections between the GPUs; None where there are no GPUs, or where they are unknown."""
    multicast_disabled: bool = False
    """Whether NVLink multicast is switched off."""
    compiles_cuda: bool = False
    """Whether CUDA sources can be compiled."""
    architecture: str
    """Architecture that CUDA sources are compiled for, such as "sm_90a"."""
    no_emulator: str = ""
    """Why kernels cannot be emulated, with the remedy; empty where they can."""
    no_detector: str = ""
    """Why the race detector cannot judge beside the GPUs; empty where it can."""
    no_gsan: str = "its evaluator does not know of GSan"
    """Why Triton's GSan cannot look for races on the GPUs; empty where it can."""
    header_libraries: tuple[HeaderLibrary, ...] = ()
    """Libraries that CUDA sources may include."""
    cpu: HardwareSpec | None = None
    """Peaks of the CPU; None where they were not measured yet."""
    gpu: HardwareSpec | None = None
    """Peaks of one GPU; None where there is none, or none that is known."""

    def hardware(self, device: Device) -> HardwareSpec | None:
        """The peaks of a device; None where they are not known, and of emulated GPUs, which have none."""
        return {"cpu": self.cpu, "cuda": self.gpu, "emulated": None}[device]

    def can_run(self, device: Device) -> bool:
        """Whether kernels run on that device; otherwise they are compiled, and that is all."""
        return device != "cuda" or bool(self.gpu_names)

    def choose_device(self, requested: Literal["auto"] | Device, language: str = "auto") -> Device:
        """The device of a configuration: by default GPUs, where there are any.

        Args:
            requested: Requested device, as in `EvalConfig`.
            language: Requested language, as in `EvalConfig`; one that runs on one device alone decides where the device
                is left open.

        Raises:
            ConfigError: It cannot be had. Without a GPU, "cuda" sources can still be compiled where there is nvcc.
        """
        if requested == "auto":
            requested = self.device
        elif self.device not in ("auto", requested):
            raise ConfigError(f"device {requested!r} is not available here: all is judged on device {self.device!r}")
        if requested == "auto" and language in ("cuda", "triton"):
            requested = "cuda"
        if requested == "auto":
            return "cuda" if self.gpu_names and language != "cpp" else "cpu"
        if requested == "cuda" and not self.gpu_names and not self.compiles_cuda:
            raise ConfigError("device 'cuda' is not available here: there is neither an NVIDIA GPU nor nvcc")
        if requested == "emulated" and self.no_emulator:
            raise ConfigError(f"device 'emulated' is not available here: {self.no_emulator}")
        return requested

    def resolve(self, config: EvalConfig, problem: Problem, source: Source | None = None) -> ResolvedConfig:
        """Resolves a configuration on this machine.

        Args:
            config: Requested configuration.
            problem: Problem to be solved.
            source: Source text; where there is none yet, the device's native language is assumed.

        Raises:
            ConfigError: It cannot be met here.
            SizeError: Size, dtype and world size do not fit the problem.
        """
        device = self.choose_device(config.device, config.language)
        return resolve(
            config,
            problem,
            device=device,
            language=source.language if source else ("cpp" if device == "cpu" else "cuda"),
            memory_total_bytes=self.memory_bytes,
            gpus=len(self.gpu_names),
            no_detector=self.no_detector if device == "cuda" else "",
            no_gsan=self.no_gsan,
        )
