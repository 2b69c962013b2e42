"""What a sandboxed process may see and do, as bubblewrap arguments and resource limits.

`bubblewrap_arguments` is a pure function from policy to arguments. The file system is an allow-list: system libraries,
the Python installation and the few files of `rankside`; no home, no problem folders, no caches.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RANKSIDE = Path(__file__).resolve().parent.parent / "rankside"
RANKSIDE_INSIDE = "/pkb/rankside"
"""Where the rank programs lie inside the sandbox: a package of its own, without the rest of pkb_gym."""

SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives", "/etc/passwd", "/etc/localtime")
CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_NET_ADMIN")
"""For the zygote alone, inside its own user namespace: it gives each gang fresh namespaces."""


@dataclass(frozen=True)
class Policy:
    """What a sandbox contains.

    Attributes:
        read_only: (outside, inside) paths that can be read.
        writable: (outside, inside) paths that can be written.
        devices: device files that can be used.
        capabilities: kept inside, relative to the sandbox's own user namespace.
        temporary_bytes: size of /tmp and of /dev/shm.
        dies_with_parent: whether it ends with the thread that started it.
    """

    read_only: tuple[tuple[str, str], ...]
    writable: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    temporary_bytes: int = 1 << 30
    dies_with_parent: bool = False


def bubblewrap_arguments(policy: Policy, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` under a policy: own user, pid, IPC, network and mount namespaces."""
    arguments = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
    if policy.dies_with_parent:
        arguments.append("--die-with-parent")
    for capability in policy.capabilities:
        arguments += ["--cap-add", capability]
    size = str(policy.temporary_bytes)
    arguments += ["--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/tmp", "--size", size]
    arguments += ["--tmpfs", "/dev/shm"]
    # After /tmp, since what is to be read may lie there.
    for outside, inside in policy.read_only:
        arguments += ["--ro-bind", outside, inside]
    for device in policy.devices:
        arguments += ["--dev-bind", device, device]
    for outside, inside in policy.writable:
        arguments += ["--bind", outside, inside]
    # The rest is a memory file system that all gangs of a sandbox share: writable, it would have no limit, and what one
    # candidate left there the next would find.
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*arguments, "--chdir", "/tmp", "--", *command]


def python_paths() -> tuple[tuple[str, str], ...]:
    """System libraries, this Python and its packages, read-only at their own places."""
    paths = [path for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES) if Path(path).exists()]
    folders = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), Path(sys.prefix)}
    folders |= {Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    inside_system = tuple(f"{folder}/" for folder in SYSTEM_FOLDERS)
    outside = [folder for folder in sorted(folders) if not f"{folder}/".startswith(inside_system)]
    paths += [str(folder) for folder in outside if folder.exists()]
    return tuple((path, path) for path in paths)


def gpu_devices() -> tuple[str, ...]:
    """What a process needs in order to use NVIDIA GPUs; nothing where there are none."""
    return tuple(sorted(str(path) for path in Path("/dev").glob("nvidia*")))


def hidden_package() -> str | None:
    """Where a non-editable install of this package would be seen through site-packages; covered by an empty folder."""
    package = RANKSIDE.parent.parent
    return str(package) if any(str(package).startswith(entry[0] + "/") for entry in python_paths()) else None


def zygote_policy(temporary_bytes: int) -> Policy:
    """The sandbox that candidate gangs are forked in."""
    devices = gpu_devices()
    # How GPUs are connected is told there; without it NCCL cannot choose its paths.
    system = (("/sys", "/sys"),) if devices else ()
    return Policy(
        read_only=(*python_paths(), *system, (str(RANKSIDE), RANKSIDE_INSIDE)),
        devices=devices,
        capabilities=CAPABILITIES,
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
