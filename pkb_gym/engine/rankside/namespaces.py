"""Gives a gang a view of the machine of its own: processes, IPC objects, network, temporary files.

Needs CAP_SYS_ADMIN in the current user namespace, which the sandbox grants to the zygote and the leader gives up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import socket
import struct
import sys
from functools import cache

from .confine import ConfineError, call

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWUSER = 0x20000000, 0x40000000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MAX_FILES = 1 << 16
"""Files in /tmp and in /dev/shm: an empty one costs kernel memory too."""

RESERVED_PIDS = 301
"""Numbers that are not given out again, see pid_namespaces(7)."""

MACHINE_SETTINGS = (
    "/proc/sys",
    "/proc/sysrq-trigger",
    "/proc/bus",
    "/proc/acpi",
    "/proc/mtrr",
)
"""To the kernel a sandboxed root is root, which may write these without any capability. The rest of /proc stays as it
is: CUDA names its threads there, and does not start where it cannot."""

COUNTERS = (
    *("buddyinfo", "diskstats", "interrupts", "loadavg", "locks", "meminfo", "schedstat", "softirqs", "stat", "swaps"),
    *("uptime", "vmstat", "zoneinfo", "pressure/cpu", "pressure/io", "pressure/irq", "pressure/memory", "cgroups"),
    *("sys/fs/aio-nr", "sys/fs/dentry-state", "sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/inode-state"),
    *("cpuinfo", "mdstat", "modules", "sys/kernel/pty/nr", "sys/kernel/random/entropy_avail"),
)
"""Files of /proc that count what the whole machine does, which a candidate could move and a later one read: a gang has
copies of them that never change."""

SECRETS = (
    *("allocinfo", "kcore", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "keys", "key-users", "pagetypeinfo"),
    *("sched_debug", "slabinfo", "timer_list", "vmallocinfo", "fs", "irq", "tty/driver"),
)
"""Files and folders of /proc that show the machine's pages, kernel objects and devices: a gang has empty ones."""

COPIES = "/tmp/pkb-counters"
"""Folder of the copies, in the /tmp of the zygote, which no gang sees."""

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"

_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """unshare(2)."""
    call(_LIBC.unshare(flags), "unshare")


def fork_into_new_pid_namespace() -> int:
    """Forks a child that is process 1 of a new pid namespace; this process stays where it is.

    When that child ends, the kernel ends everything in its namespace.

    Returns:
        Result of os.fork: 0 in the child, the child's pid here.
    """
    here = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    unshare(CLONE_NEWPID)
    pid = os.fork()
    if pid != 0:
        # Without this, the next child would be born into the same new namespace.
        call(_LIBC.setns(here, CLONE_NEWPID), "setns")
    os.close(here)
    return pid


@cache
def copy_counters() -> tuple[str, ...]:
    """Copies `COUNTERS`, once, before there is a gang; returns the names of those that this kernel has."""
    os.makedirs(f"{COPIES}/empty.d")
    with open(f"{COPIES}/empty", "wb"):
        pass
    found = []
    for name in COUNTERS:
        with contextlib.suppress(OSError), open(f"/proc/{name}", "rb") as file:
            content = file.read()
            with open(f"{COPIES}/{name.replace('/', '.')}", "wb") as copy:
                copy.write(content)
            found.append(name)
    return tuple(found)


def enter(temporary_bytes: int, max_threads: int) -> None:
    """Moves this process (process 1 of its pid namespace) into fresh mount, IPC, UTS and network namespaces.

    /tmp and /dev/shm become empty memory file systems of `temporary_bytes` each; the network has a loopback alone. What
    counts or shows the whole machine in /proc becomes a copy that never changes, or empty.
    Where the kernel can, the namespace has no room for more than about `max_threads` threads.
    """
    unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)
    _mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    counters = {name: _open_copy(name.replace("/", ".")) for name in copy_counters()}
    counters |= {name: _open_copy("empty.d" if os.path.isdir(f"/proc/{name}") else "empty") for name in SECRETS}
    # An installation that lies in /tmp stays where it is.
    kept = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in sorted(_import_folders("/tmp"))}
    for path in ("/tmp", "/dev/shm"):
        _mount_memory(path, temporary_bytes)
    for path, fd in kept.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}".encode(), path.encode(), None, MS_BIND | MS_REC, None)
        os.close(fd)
    # A kernel may refuse this in a nested namespace; the zygote's /proc shows nothing outside the sandbox.
    with contextlib.suppress(ConfineError):
        _mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
        _limit_threads(max_threads)
    _send_without_a_pace()
    for path in MACHINE_SETTINGS:
        if os.path.exists(path):
            _make_read_only(path.encode())
    for name, fd in counters.items():
        if os.path.exists(f"/proc/{name}"):
            _make_read_only(f"/proc/{name}".encode(), f"/proc/self/fd/{fd}".encode())
        os.close(fd)
    _bring_up_loopback()


def enter_with_own_shared_memory(temporary_bytes: int) -> None:
    """Moves this process into a mount namespace whose /dev/shm is an empty memory file system of `temporary_bytes`.

    All else stays that of the machine. A user without privileges gets a user namespace for it, as the same user.

    Raises:
        ConfineError: the kernel refuses it.
        OSError: the same, of the user's own number.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWNS)
    except ConfineError:
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    _mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _mount_memory("/dev/shm", temporary_bytes)


@cache
def may_have_own_shared_memory() -> bool:
    """Whether the kernel lets this user do so: tried once, by a child, as half of it cannot be undone."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            enter_with_own_shared_memory(1 << 20)
            os.write(writing, b"yes")
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        return answer.read() == b"yes"


def _mount_memory(path: str, size_bytes: int) -> None:
    options = f"size={size_bytes},nr_inodes={MAX_FILES},mode=1777".encode()
    _mount(b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options)


def _open_copy(name: str) -> int:
    return os.open(f"{COPIES}/{name}", os.O_PATH)


def _send_without_a_pace() -> None:
    """Has connections of this network namespace send as soon as they may, as the baseline's do; see `tcp_pace.cpp`.

    What a rank sends at a pace, the kernel would go on to send while it is frozen.
    """
    with contextlib.suppress(OSError), open(CONGESTION_CONTROL, "w") as file:
        file.write("reno")


def _limit_threads(most: int) -> None:
    """Bounds the numbers of processes and threads in this pid namespace.

    Before Linux 6.14 the bound is the machine's, and a sandboxed root may write it.
    """
    release = [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]]
    if release >= [6, 14]:
        with contextlib.suppress(OSError), open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(RESERVED_PIDS + most))


def _import_folders(below: str) -> set[str]:
    """Folders below `below` that this Python still imports from."""
    folders = {sys.prefix, sys.base_prefix, *sys.path}
    return {folder for folder in folders if folder.startswith(f"{below}/") and os.path.isdir(folder)}


def _make_read_only(path: bytes, source: bytes | None = None) -> None:
    """Shows a file or folder, by default the one that is there, without the right to write."""
    _mount(source or path, path, None, MS_BIND | MS_REC, None)
    _mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None) -> None:
    call(_LIBC.mount(source, target, kind, ctypes.c_ulong(flags), data), f"mount {target.decode()}")


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
