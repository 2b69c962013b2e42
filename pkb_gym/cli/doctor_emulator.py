"""Findings of `pkb doctor` on emulated GPUs."""

from __future__ import annotations

from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.emulator import is_built
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.stages.execution_environment import no_detector, no_gsan, why_not_emulated

from .diagnosis import Diagnosis

NAME = "emulated GPUs"


def examine_emulator() -> Diagnosis:
    """Whether CUDA sources run on emulated GPUs here."""
    why = why_not_emulated()
    if why is not None:
        return Diagnosis(NAME, "limited", "none; CUDA kernels do not run on device emulated", why)
    try:
        built = is_built(CompileCache.in_folder(None))
    except InfrastructureError as error:
        return Diagnosis(NAME, "limited", "none; CUDA kernels do not run on device emulated", str(error))
    how = "the emulator is compiled" if built else "the first evaluation compiles the emulator (about two minutes)"
    return Diagnosis(NAME, "ok", f"device emulated runs and checks CUDA kernels, untimed; {how}{_beside_gpus()}")


def _beside_gpus() -> str:
    """Whether the race detector and GSan judge beside the GPUs of this machine; empty where there is none."""
    if not gpus.names():
        return ""
    why, why_triton = no_detector(), no_gsan()
    native = f"the race detector does not judge beside GPUs: {why}" if why else "the race detector judges beside GPUs"
    of_triton = f"does not judge Triton sources: {why_triton}" if why_triton else "judges Triton sources"
    return f"; {native}; Triton's GSan {of_triton}"
