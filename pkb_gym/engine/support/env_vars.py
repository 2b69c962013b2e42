"""The environment variables that pkb-gym knows: the one module that reads them.

- PKB_CACHE_DIR: folder of all that may be made again (default: ~/.cache/pkb-gym); each user of a shared one has a part.
- PKB_TOKEN: the token of evaluation services that are named by url.
- PKB_EVALUATOR: "fresh" has `pkb eval` start processes of its own each time; "background", the default, lets it use the
  background evaluator.
- PKB_RUNTIME_DIR: folder of the sockets of background evaluators (default: pkb-gym in XDG_RUNTIME_DIR where there is
  one, else `run` in the cache folder).
- PKB_EVALUATOR_IDLE_S: seconds without a request after which a background evaluator ends (default: 600).
- XDG_RUNTIME_DIR: of the XDG base directory specification; a folder that the user alone can enter. One of another user,
  as `su` and `sudo` may leave behind, is not used.
- PYTHONPATH: Python's own; reference ranks import from it what declarations of problems outside this package import.
- LD_PRELOAD: the dynamic linker's own; reference ranks load these libraries too.
- PKB_EPISODE: settings of episodes as JSON, for servers that foreign frameworks start (docs/frameworks.md).
- OPENAI_BASE_URL, OPENAI_API_KEY: endpoint of the agent `openai`, and its key.
- PKB_CUDA_ARCHITECTURE: GPU architecture that a machine without a GPU compiles for, such as sm_100a (default: sm_90a).
- RAY_ADDRESS: Ray's own; the cluster that the evaluator "ray" connects to.
- CUDA_HOME, CUDA_PATH: where the CUDA toolkit lies, if nvcc is not on PATH.
- CUTLASS_PATH, THUNDERKITTENS_ROOT, CCCL_ROOT, NVSHMEM_HOME, NCCL_HOME: libraries for kernels (header_libraries.py).
- COLUMNS: of shells; the width of what `pkb` prints where it is no terminal (default: 120).
- LOCAL_RANK: of `accelerate launch` and `torchrun`; number of a training process among those of its node.
- RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, FSDP_VERSION, ACCELERATE_USE_FSDP, ACCELERATE_USE_DEEPSPEED,
  ACCELERATE_DEEPSPEED_ZERO_STAGE, ACCELERATE_MIXED_PRECISION: of `accelerate launch` too; how processes share a model.
- CUDA_VISIBLE_DEVICES: CUDA's own; which GPUs processes started from here may use.
- TORCH_SYMM_MEM_DISABLE_MULTICAST=1: torch's own; NVLink multicast is switched off on this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pkb_gym.engine.errors import ConfigError

_ARCHITECTURE = re.compile(r"sm_\d{2,3}[af]?")


def cache_dir() -> Path:
    """Folder of the caches; it may not exist yet.

    In a folder of another user that this user can write, a part of its own, `user-UID`: libraries from a cache are
    loaded into trusted processes, and files of one user cannot be replaced by another.

    Raises:
        ConfigError: that part belongs to another user.
    """
    folder = shared_cache_dir()
    if _owner(folder) in (None, os.geteuid()) or not os.access(folder, os.W_OK | os.X_OK):
        return folder
    own = folder / f"user-{os.geteuid()}"
    if (owner := _owner(own)) not in (None, os.geteuid()):
        raise ConfigError(f"the cache folder {own} belongs to user {owner}; set PKB_CACHE_DIR to a folder of your own")
    return own


def shared_cache_dir() -> Path:
    """The folder that is named for caches: `cache_dir`, or the one that several users have theirs in."""
    named = os.environ.get("PKB_CACHE_DIR", "")
    return Path(named).expanduser() if named else Path("~/.cache/pkb-gym").expanduser()


def _owner(path: Path) -> int | None:
    """The user that a path belongs to; None where there is none, or it cannot be seen."""
    try:
        return path.stat().st_uid
    except OSError:
        return None


def columns() -> int | None:
    """The width that a caller wants texts to have; None where it gives none."""
    named = os.environ.get("COLUMNS", "")
    return int(named) or None if named.isdecimal() else None


def python_path() -> tuple[str, ...]:
    """The folders of PYTHONPATH."""
    return tuple(folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder)


def preloads() -> tuple[str, ...]:
    """The libraries of LD_PRELOAD."""
    return tuple(re.split("[ :]+", named) if (named := os.environ.get("LD_PRELOAD", "").strip(" :")) else ())


def service_token() -> str | None:
    """The token that an evaluation service requires; None where it is not set."""
    return os.environ.get("PKB_TOKEN") or None


def background_evaluator() -> bool:
    """Whether `pkb eval` uses the background evaluator by default.

    Raises:
        ConfigError: PKB_EVALUATOR is neither "background" nor "fresh".
    """
    named = os.environ.get("PKB_EVALUATOR") or "background"
    if named not in ("background", "fresh"):
        raise ConfigError(f"PKB_EVALUATOR is {named!r}; expected 'background' or 'fresh'")
    return named == "background"


def evaluator_idle_s() -> float:
    """Seconds without a request after which a background evaluator ends.

    Raises:
        ConfigError: PKB_EVALUATOR_IDLE_S is no number above 0.
    """
    named = os.environ.get("PKB_EVALUATOR_IDLE_S") or "600"
    try:
        idle_s = float(named)
    except ValueError:
        idle_s = 0.0
    if not 0 < idle_s < float("inf"):
        raise ConfigError(f"PKB_EVALUATOR_IDLE_S is {named!r}; expected a number of seconds above 0")
    return idle_s


def runtime_dir() -> Path:
    """Folder of the sockets of background evaluators; it may not exist yet."""
    if named := os.environ.get("PKB_RUNTIME_DIR", ""):
        return Path(named).expanduser().absolute()
    of_user = os.environ.get("XDG_RUNTIME_DIR", "")
    if of_user and Path(of_user).is_dir() and _owner(Path(of_user)) == os.geteuid():
        return Path(of_user, "pkb-gym")
    return cache_dir().absolute() / "run"


def runtime_dir_is_named() -> bool:
    """Whether the user names that folder."""
    return bool(os.environ.get("PKB_RUNTIME_DIR"))


def episode_settings() -> str:
    """Settings of episodes as JSON; an empty object where it is not set."""
    return os.environ.get("PKB_EPISODE") or "{}"


def openai_base_url() -> str | None:
    """Endpoint of models, without blanks around it; None where it is not set."""
    return os.environ.get("OPENAI_BASE_URL", "").strip() or None


def openai_api_key() -> str | None:
    """Key of that endpoint, without the line breaks that files leave; None where it is not set."""
    return os.environ.get("OPENAI_API_KEY", "").strip() or None


def cuda_home() -> Path | None:
    """The folder of the CUDA toolkit that the user names."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Path(named).expanduser() if named else None


def cuda_architecture() -> str | None:
    """GPU architecture that a machine without a GPU compiles for; None where it is not set.

    Raises:
        ConfigError: PKB_CUDA_ARCHITECTURE has not the form of one.
    """
    named = os.environ.get("PKB_CUDA_ARCHITECTURE") or None
    if named is not None and not _ARCHITECTURE.fullmatch(named):
        raise ConfigError(f"PKB_CUDA_ARCHITECTURE is {named!r}; expected one like 'sm_90a'")
    return named


def set_cuda_architecture(architecture: str) -> None:
    """Has this process compile for an architecture from now on, where its machine has no GPU."""
    os.environ["PKB_CUDA_ARCHITECTURE"] = architecture


def ray_address() -> str | None:
    """The address of the cluster that this process is meant to join; None where it is not set."""
    return os.environ.get("RAY_ADDRESS") or None


def folder_named(variable: str) -> Path | None:
    """The folder that a variable of the user's names, absolute; None where it is not set."""
    named = os.environ.get(variable)
    return Path(named).expanduser().absolute() if named else None


@dataclass(frozen=True)
class AccelerateLaunch:
    """The launch of a training process.

    Attributes:
        rank: Number of this process, from 0.
        processes: Number of processes of all nodes together, at least 1.
        per_node: Number of processes of this node, at least 1.
        fsdp_version: Version of FSDP; None without FSDP.
        zero_stage: Stage of DeepSpeed's ZeRO; None without DeepSpeed.
        mixed_precision: Whether accelerate computes in bfloat16 or float16.
        visible: Entries of CUDA_VISIBLE_DEVICES; None where it is not set.
    """

    rank: int
    processes: int
    per_node: int
    fsdp_version: int | None
    zero_stage: int | None
    mixed_precision: bool
    visible: tuple[str, ...] | None


def accelerate_launch() -> AccelerateLaunch:
    """How `accelerate launch` started this process; one process, and no sharding, where it did not."""

    def number(name: str, default: int) -> int:
        value = os.environ.get(name, "")
        return int(value) if value.isdecimal() else default

    def is_set(name: str) -> bool:
        return os.environ.get(name, "").lower() in ("1", "true")

    processes, named = number("WORLD_SIZE", 1), visible_devices()
    return AccelerateLaunch(
        number("RANK", 0),
        processes,
        number("LOCAL_WORLD_SIZE", processes),
        number("FSDP_VERSION", 1) if is_set("ACCELERATE_USE_FSDP") else None,
        number("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2) if is_set("ACCELERATE_USE_DEEPSPEED") else None,
        os.environ.get("ACCELERATE_MIXED_PRECISION", "no") in ("bf16", "fp16"),
        None if named is None else tuple(entry for entry in named.split(",") if entry),
    )


def local_rank() -> int:
    """Number of this training process among those of its node; 0 outside of a distributed run."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def multicast_disabled() -> bool:
    """Whether torch must not use NVLink multicast."""
    return os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") not in ("", "0")


def visible_devices() -> str | None:
    """Value of CUDA_VISIBLE_DEVICES; None where it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


FOR_CANDIDATES = (
    *("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"),
    *("CUTLASS_PATH", "THUNDERKITTENS_ROOT", "CCCL_ROOT"),
)
FAMILIES_FOR_CANDIDATES = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "NVIDIA_", "CUDA_DEVICE_")
"""The variables that processes which may run or compile candidate code get: no tokens, no keys. How the machine's
GPUs may be used, and what is switched off on it, holds for them too."""


def for_candidates(**changes: str) -> dict[str, str]:
    """The environment of such a process, with some variables set."""
    kept = (name for name in os.environ if name in FOR_CANDIDATES or name.startswith(FAMILIES_FOR_CANDIDATES))
    return {name: os.environ[name] for name in kept} | changes


FOR_EVALUATORS = ("HOME", "PYTHONPATH", "TMPDIR", "PKB_CACHE_DIR", "PKB_CUDA_ARCHITECTURE")
"""Further variables that the processes of an evaluator depend on."""


def for_evaluators() -> dict[str, str]:
    """The part of this process's environment that decides what an evaluator finds and measures."""
    return for_candidates(**{name: os.environ[name] for name in FOR_EVALUATORS if name in os.environ})


FOR_WORKSPACES = ("LANG", "LC_ALL", "TZ", "CUDA_HOME")
"""The variables that programs in the sandbox of a workspace get: no tokens, no keys."""


def for_workspaces(names: Iterable[str], last_folder: str, **changes: str) -> dict[str, str]:
    """The environment of such a program, with the named variables, a further last folder of PATH, and some set."""
    kept = (name for name in (*FOR_WORKSPACES, *names) if name in os.environ)
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{last_folder}"
    return {name: os.environ[name] for name in kept} | {"PATH": path} | changes


def with_changes(**changes: str) -> dict[str, str]:
    """This process's environment with some variables set, for a child."""
    return {**os.environ, **changes}


FOR_TRAINING_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
FAMILIES_FOR_TRAINING_RANKS = ("ACCELERATE_", "FSDP_", "GROUP_", "OMP_", "ROLE_", "TORCHELASTIC_")
"""Variables that `accelerate launch` and `torchrun` set for the ranks of a training run and no other process."""


def without_launcher(**changes: str) -> dict[str, str]:
    """The environment for a child of a training rank that is no rank itself."""
    own = (
        name
        for name in os.environ
        if name not in FOR_TRAINING_RANKS and not name.startswith(FAMILIES_FOR_TRAINING_RANKS)
    )
    return {name: os.environ[name] for name in own} | changes
