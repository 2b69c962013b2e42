"""NVSHMEM and NCCL for kernels that are linked with them: each started once, on all ranks of a gang together.

A library whose source includes their headers exports functions by which that is done (`pkb/nvshmem_cuda.h`,
`pkb/nccl_cuda.h`). Rank 0 makes an id, the others find it in the working folder, which the ranks of a gang share. Both
libraries then connect by TCP on the loopback interface alone and send memory's descriptors by sockets of AF_UNIX.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

from .failures import CandidateError

ID_BYTES = 128
POLL_S = 0.002

NAMES = {"nvshmem": "NVSHMEM", "nccl": "NCCL"}
"""Prefix of the functions of a library -> its name."""

SETTINGS = {
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_DISABLE_LOCAL_ONLY_PROXY": "1",
    "NVSHMEM_DISABLE_NCCL": "1",
    "NVSHMEM_CUMEM_GRANULARITY": str(2 << 20),
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
}
"""Environment of the libraries, where the machine does not say otherwise: one node, no network adapter, no thread that
turns beside the clock, and a heap that takes GPU memory in steps of 2 MiB, not of 512."""

NO_MULTICAST = {"NVSHMEM_DISABLE_NVLS": "1", "NCCL_NVLS_ENABLE": "0"}
"""Environment where NVLink multicast is switched off; it may not be otherwise there."""


def start(path: str, rank: int, world_size: int) -> None:
    """Starts what a kernel's library is linked with; returns once it has been started on all ranks.

    Args:
        path: Path of the library, which has been loaded.
        rank: Number of this rank, whose device is the current one.
        world_size: Number of ranks.

    Raises:
        CandidateError: It could not be started.
    """
    library = ctypes.CDLL(path)
    for prefix in NAMES:
        if hasattr(library, f"pkb_{prefix}_begin"):
            _set_environment()
            _begin(library, prefix, _exchanged_id(library, prefix, rank), rank, world_size)


def start_emulated(path: str, rank: int, world_size: int) -> None:
    """The same on an emulated rank's thread, where all ranks are in one process; arguments and errors as `start`."""
    library = ctypes.CDLL(path)
    for prefix in NAMES:
        if hasattr(library, f"pkb_{prefix}_begin"):
            _begin(library, prefix, bytes(ID_BYTES), rank, world_size)


def _set_environment() -> None:
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    if os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0") not in ("", "0"):
        os.environ |= NO_MULTICAST


def _exchanged_id(library: ctypes.CDLL, prefix: str, rank: int) -> bytes:
    """The id that rank 0 makes. A wait for it ends with the gang, by the evaluator's deadline."""
    path = os.path.join(os.getcwd(), f"{prefix}.id")
    if rank == 0:
        made = ctypes.create_string_buffer(ID_BYTES)
        _check(prefix, "id", getattr(library, f"pkb_{prefix}_id")(made))
        with open(f"{path}.new", "wb") as file:
            file.write(made.raw)
        os.rename(f"{path}.new", path)
        return made.raw
    while True:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read(ID_BYTES)
        time.sleep(POLL_S)


def _begin(library: ctypes.CDLL, prefix: str, identity: bytes, rank: int, world_size: int) -> None:
    _check(prefix, "begin", getattr(library, f"pkb_{prefix}_begin")(identity, rank, world_size))


def _check(prefix: str, step: str, status: int) -> None:
    if status < -10_000:
        version = -status
        found = f"{version // 10_000}.{version // 100 % 100}.{version % 100}"
        raise CandidateError(
            "load_error",
            f"this process has NCCL {found}, torch's, and the kernel was compiled with headers of another version; "
            "install the wheel that torch asks for, or set NCCL_HOME to that version",
        )
    if status != 0:
        hint = f"{prefix.upper()}_DEBUG=INFO in the evaluator's environment has it say why"
        raise CandidateError("load_error", f"{NAMES[prefix]} could not be started: {step} returned {status}; {hint}")
