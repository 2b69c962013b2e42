"""Findings of `pkb doctor` on GPUs and the compiler for them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys

from pkb_gym.engine.compile.nvcc import default_architecture, find_toolkit, nvcc_available, nvcc_version
from pkb_gym.engine.compile.sass import disassembler_version, find_disassembler
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.engine.gangs.sandbox import bubblewrap_arguments, bubblewrap_works, zygote_policy
from pkb_gym.engine.hardware import gpus
from pkb_gym.engine.hardware.peaks import find_gpu
from pkb_gym.engine.support import env_vars

from .diagnosis import Diagnosis

NEEDED = (
    ("cuda.bindings", "cuda-bindings", "nothing can be judged on GPUs"),
    ("triton", "triton", "Triton kernels cannot be judged"),
)
"""(module, its package, what does not work without it)."""

PROBE_S = 60.0
PROBE = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print(f"error {status} of cuInit" if status else count.value)
"""
"""Run by a Python in the sandbox; asks the driver, and makes no context."""


def examine_gpus() -> list[Diagnosis]:
    """The GPUs, what they need beside a driver, and the compiler; the latter is of use without a GPU too."""
    names = gpus.names()
    if not names:
        none = "none; device cpu judges everything but CUDA and Triton kernels"
        return [Diagnosis("GPUs", "limited", none), *compilers()]
    return [Diagnosis("GPUs", "ok", describe(names)), *peaks(names), *packages(), *sandbox(len(names)), *compilers()]


def describe(names: tuple[str, ...]) -> str:
    """Models, driver, links."""
    models = ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
    parts = [models, f"driver {gpus.driver_version()}"]
    connections = gpus.connections()
    if connections is not None and len(names) > 1:
        links = " or ".join(map(str, sorted(set(connections.nvlinks))))
        apart = f", none between {len(connections.apart)} pairs" if connections.apart else ""
        parts.append(f"{links} NVLinks up on each{apart}")
    if env_vars.multicast_disabled():
        parts.append("multicast switched off")
    return ", ".join(parts)


def peaks(names: tuple[str, ...]) -> list[Diagnosis]:
    """Models that no roofline can be drawn for."""
    found = []
    for name in sorted(set(names)):
        try:
            find_gpu(name)
        except ConfigError as error:
            found.append(Diagnosis("GPU peaks", "limited", "no roofline", str(error)))
    return found


def packages() -> list[Diagnosis]:
    """Findings on the packages that ranks on GPUs import."""
    found = []
    if importlib.metadata.version("torch").endswith("+cpu"):
        detail = "this build of torch has no CUDA; nothing can be judged on GPUs"
        found.append(Diagnosis("torch on GPUs", "limited", detail, "install torch from a CUDA index of pytorch.org"))
    for module, package, without in NEEDED:
        if not _is_there(module):
            found.append(Diagnosis(package, "limited", f"not installed; {without}", f"pip install {package}"))
    return found


def sandbox(count: int) -> list[Diagnosis]:
    """Whether CUDA works in the sandbox; nothing where there is none."""
    if not bubblewrap_works():
        return []
    seen = seen_in_sandbox()
    if seen == str(count):
        return [Diagnosis("GPUs in sandbox", "ok", f"CUDA finds {seen} of {count}")]
    detail = f"CUDA does not find all {count} there: {seen}; candidates cannot run on them"
    remedy = "check whether this user may open /dev/nvidia*, and whether CUDA works outside the sandbox"
    return [Diagnosis("GPUs in sandbox", "limited", detail, remedy)]


def seen_in_sandbox() -> str:
    """The number of GPUs that CUDA finds in the sandbox of candidates, or the error."""
    command = bubblewrap_arguments(zygote_policy(64 << 20), [sys.executable, "-I", "-c", PROBE])
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_S, check=False, env=env_vars.for_candidates()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (ran.stdout.strip() or ran.stderr.strip() or f"status {ran.returncode}").splitlines()
    return lines[-1]


def compilers() -> list[Diagnosis]:
    """nvcc, and what reads its machine code."""
    if not nvcc_available():
        remedy = "install the CUDA toolkit, or set CUDA_HOME to its folder" if gpus.names() else ""
        return [Diagnosis("nvcc", "limited", "none; CUDA kernels cannot be compiled", remedy)]
    try:
        toolkit, version = find_toolkit(), nvcc_version()
    except InfrastructureError as error:
        return [Diagnosis("nvcc", "limited", f"it does not work; CUDA kernels cannot be compiled: {error}")]
    try:
        compiler = Diagnosis("nvcc", "ok", f"{version} ({toolkit}), compiles for {default_architecture()}")
    except ConfigError as error:
        compiler = Diagnosis("nvcc", "limited", f"{version} ({toolkit}); {error}", "unset or correct the variable")
    if find_disassembler(toolkit) is None:
        detail = "none; the instructions of CUDA kernels are not counted"
        return [compiler, Diagnosis("cuobjdump", "limited", detail, "pip install 'pkb-gym[cuda]'")]
    return [compiler, Diagnosis("cuobjdump", "ok", f"{disassembler_version(toolkit)} ({find_disassembler(toolkit)})")]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that would hold it
        return False
