"""The environment variables that pkb-gym knows: the one module that reads them.

- PKB_CACHE_DIR: folder of everything that may be made again (default: ~/.cache/pkb-gym).
- PKB_TOKEN: the token of evaluation services that are named by url.
- PYTHONPATH: Python's own; reference ranks import from it what declarations of problems outside this package import.
- CUDA_HOME, CUDA_PATH: where the CUDA toolkit lies, if nvcc is not on PATH.
- CUTLASS_PATH, THUNDERKITTENS_ROOT, CCCL_ROOT, NVSHMEM_HOME: header libraries for CUDA kernels (header_libraries.py).
- LOCAL_RANK: of `accelerate launch` and `torchrun`; number of a training process among those of its node.
- CUDA_VISIBLE_DEVICES: CUDA's own; which GPUs processes started from here may use.
- TORCH_SYMM_MEM_DISABLE_MULTICAST=1: torch's own; NVLink multicast is switched off on this machine.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Folder of the caches; it may not exist yet."""
    named = os.environ.get("PKB_CACHE_DIR", "")
    return Path(named).expanduser() if named else Path("~/.cache/pkb-gym").expanduser()


def python_path() -> tuple[str, ...]:
    """Folders that Python is told to import from."""
    return tuple(folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder)


def service_token() -> str | None:
    """What an evaluation service asks for; None where it is not set."""
    return os.environ.get("PKB_TOKEN") or None


def cuda_home() -> Path | None:
    """Where the user says that the CUDA toolkit lies."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Path(named).expanduser() if named else None


def folder_named(variable: str) -> Path | None:
    """The folder that a variable of the user's names, absolute; None where it is not set."""
    named = os.environ.get(variable)
    return Path(named).expanduser().absolute() if named else None


def local_rank() -> int:
    """Number of this training process among those of its node; 0 outside of a distributed run."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def multicast_disabled() -> bool:
    """Whether torch is told not to use NVLink multicast."""
    return os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") not in ("", "0")


def visible_devices() -> str | None:
    """Value of CUDA_VISIBLE_DEVICES; None where it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


FOR_CANDIDATES = (
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
    *("CUTLASS_PATH", "THUNDERKITTENS_ROOT", "CCCL_ROOT"),
)
FAMILIES_FOR_CANDIDATES = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "NVIDIA_", "CUDA_DEVICE_")
"""What processes that may run or compile candidate code see of the environment: no tokens, no keys. How the machine's
GPUs may be used, and what is switched off on it, holds for them too."""


def for_candidates(**changes: str) -> dict[str, str]:
    """The environment of such a process, with some variables set."""
    kept = (name for name in os.environ if name in FOR_CANDIDATES or name.startswith(FAMILIES_FOR_CANDIDATES))
    return {name: os.environ[name] for name in kept} | changes


def with_changes(**changes: str) -> dict[str, str]:
    """This process's environment with some variables set, for a child."""
    return {**os.environ, **changes}


FOR_TRAINING_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FAMILIES_FOR_TRAINING_RANKS = ("ACCELERATE_", "FSDP_", "GROUP_", "OMP_", "ROLE_", "TORCHELASTIC_")
"""What `accelerate launch` and `torchrun` tell the ranks of a training run, and nobody else is meant to hear."""


def without_launcher(**changes: str) -> dict[str, str]:
    """As `with_changes`, for a child of a training rank that is no rank itself."""
    own = (
        name
        for name in os.environ
        if name not in FOR_TRAINING_RANKS and not name.startswith(FAMILIES_FOR_TRAINING_RANKS)
    )
    return {name: os.environ[name] for name in own} | changes
