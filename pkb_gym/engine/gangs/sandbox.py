"""The sandbox of a process: its files and rights, as bubblewrap arguments and resource limits.

The file system is an allow-list: system libraries, the Python installation, of pkb_gym the rooms `rankside` and `wire`,
and the package rank_emulator; no home, no problem folders, no caches. An empty folder covers what is hidden within
something shown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pkb_gym.engine.gangs.visible_folders import hidden_folders, is_below, python_paths
from pkb_gym.engine.support.emulator_package import PACKAGE, emulator_package
from pkb_gym.engine.support.header_libraries import find_all

ENGINE = Path(__file__).resolve().parent.parent
ROOT_INSIDE = "/pkb"
ROOMS_INSIDE = tuple((str(ENGINE / room), f"{ROOT_INSIDE}/pkb_gym/engine/{room}") for room in ("rankside", "wire"))
"""The rooms that the sandbox shows, of all of pkb_gym: their parents are namespace packages there (PEP 420)."""
EMULATOR_INSIDE = f"{ROOT_INSIDE}/{PACKAGE}"

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SHARED_ZEROS = "/dev/zero"
"""Shared memory without a name for whoever maps it, of which a rank on the CPU may have none (`Confinement`)."""
DEVICE_LINKS = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
)
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
"""Capabilities for the zygote alone, inside its own user namespace: it gives each gang fresh namespaces."""


@dataclass(frozen=True)
class Policy:
    """The contents of a sandbox.

    Attributes:
        read_only: (outside, inside) paths that can be read.
        writable: (outside, inside) paths that can be written.
        devices: Device files that can be used.
        capabilities: Kept inside, relative to the sandbox's own user namespace.
        hidden: Folders outside, by their real paths, that must not be seen, whatever else shows them; what of them is
            itself to be read or written is seen all the same.
        temporary_bytes: Size of /tmp and of /dev/shm.
        dies_with_parent: Whether it ends with the thread that started it.
        network: Whether the machine's network can be used.
        working_folder: Path inside that the command is started in.
    """

    read_only: tuple[tuple[str, str], ...]
    writable: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = DEVICES
    capabilities: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    temporary_bytes: int = 1 << 30
    dies_with_parent: bool = False
    network: bool = False
    working_folder: str = "/tmp"


def bubblewrap_arguments(policy: Policy, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` under a policy: own user, pid, IPC, network and mount namespaces."""
    network = () if policy.network else ("--unshare-net",)
    arguments = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", *network, "--unshare-uts"]
    if policy.dies_with_parent:
        arguments.append("--die-with-parent")
    for capability in policy.capabilities:
        arguments += ["--cap-add", capability]
    size = str(policy.temporary_bytes)
    arguments += ["--proc", "/proc", "--tmpfs", "/dev", "--size", size, "--tmpfs", "/tmp", "--size", size]
    arguments += ["--tmpfs", "/dev/shm"]
    # No terminals, which would send signals: what `--dev` mounts has them.
    for device in policy.devices:
        arguments += ["--dev-bind", device, device]
    for name, target in DEVICE_LINKS:
        arguments += ["--symlink", target, name]
    # After /tmp, since what is to be read may lie there.
    covers = list(dict.fromkeys(_covers(policy)))
    shown = [("--ro-bind", *pair) for pair in policy.read_only if os.path.realpath(pair[0]) not in policy.hidden]
    layers = [*(("--tmpfs", "", inside) for inside in covers), *shown]
    for option, outside, inside in sorted(layers, key=lambda layer: len(Path(layer[2]).parts)):
        arguments += [option, outside, inside] if outside else [option, inside]
    for outside, inside in policy.writable:
        arguments += ["--bind", outside, inside]
    # The rest is a memory file system that all gangs of a sandbox share: writable, it would have no limit, and what one
    # candidate left there the next would find.
    for path in (*covers, "/dev", "/"):
        arguments += ["--remount-ro", path]
    return [*arguments, "--chdir", policy.working_folder, "--", *command]


def _covers(policy: Policy) -> Iterator[str]:
    """The places where hidden folders would be seen: below each mount that shows them, by whatever name."""
    for outside, inside in policy.read_only:
        real = os.path.realpath(outside)
        for folder in policy.hidden:
            if folder != real and is_below(folder, [real]):
                yield str(Path(inside, os.path.relpath(folder, real)))


def gpu_devices() -> tuple[str, ...]:
    """The device files that a process needs in order to use NVIDIA GPUs; none where there are no GPUs."""
    return tuple(sorted(str(path) for path in Path("/dev").glob("nvidia*")))


def zygote_policy(temporary_bytes: int) -> Policy:
    """The sandbox that candidate gangs are forked in."""
    of_gpus = gpu_devices()
    # Describes how GPUs are connected; without it NCCL cannot choose its paths.
    system = (("/sys", "/sys"),) if of_gpus else ()
    # For sources that build extensions of torch, and for kernels that were linked with a library.
    libraries = [(str(folder), str(folder)) for found in find_all() for folder in found.shown]
    package = emulator_package()
    emulator = () if package is None else ((str(package), EMULATOR_INSIDE),)
    return Policy(
        read_only=(*python_paths(), *libraries, *system, *ROOMS_INSIDE, *emulator),
        devices=(*DEVICES, *of_gpus) if of_gpus else tuple(device for device in DEVICES if device != SHARED_ZEROS),
        capabilities=CAPABILITIES,
        hidden=hidden_folders(),
        temporary_bytes=temporary_bytes,
    )


@cache
def bubblewrap_works() -> bool:
    """Whether bubblewrap is installed and may make namespaces here; tried once."""
    if shutil.which("bwrap") is None:
        return False
    policy = Policy(read_only=python_paths(), capabilities=CAPABILITIES)
    try:
        command = bubblewrap_arguments(policy, [sys.executable, "-I", "-c", _PROBE])
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


_PROBE = "import ctypes; raise SystemExit(ctypes.CDLL(None).unshare(0x20000000))"  # CLONE_NEWPID
