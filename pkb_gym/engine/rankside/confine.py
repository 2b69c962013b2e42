"""Confinement of a rank process before it sees candidate code: system calls, resources, privileges.

The filter is a classic BPF program (seccomp(2), linux/seccomp.h, linux/bpf_common.h). It stops a rank from starting
processes, from touching other processes and from changing namespaces, under any user; the file system and the network
are the sandbox's part.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_CAPBSET_DROP = 1, 38, 22, 36, 24
PR_SET_DUMPABLE, SECCOMP_MODE_FILTER = 4, 2
CLONE_FILES, CLONE_VFORK, CLONE_THREAD = 0x00000400, 0x00004000, 0x00010000
CLOSE_RANGE_UNSHARE = 2
MAP_SHARED, MAP_ANONYMOUS = 0x01, 0x20

_LIBC = ctypes.CDLL(None, use_errno=True)

# linux/bpf_common.h: load word, jump if equal, if not less, if any bit set; return.
_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR_OFFSET, _ARCH_OFFSET = 0, 4
_ARG0_LOW_OFFSET, _ARG1_LOW_OFFSET, _ARG2_LOW_OFFSET, _ARG2_HIGH_OFFSET = 16, 24, 32, 36
_ARG3_LOW_OFFSET, _ARG5_LOW_OFFSET = 40, 56

# Architecture -> (audit number, system call numbers).
_ARCHITECTURES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "ptrace": 101, "mount": 165, "umount2": 166,
            "pivot_root": 155, "add_key": 248, "request_key": 249, "keyctl": 250, "tkill": 200, "tgkill": 234,
            "unshare": 272, "perf_event_open": 298, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
            "bpf": 321, "execveat": 322, "userfaultfd": 323, "pidfd_send_signal": 424, "clone3": 435,
            "pidfd_getfd": 438, "io_uring_setup": 425, "setpriority": 141, "sched_setscheduler": 144,
            "sched_setattr": 314, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "prlimit64": 302, "prctl": 157,
            "socket": 41, "memfd_create": 319, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
            "timer_create": 222, "fcntl": 72, "sched_setaffinity": 203, "migrate_pages": 256, "move_pages": 279,
            "io_setup": 206, "io_submit": 209, "vmsplice": 278, "setsid": 112, "setpgid": 109, "ioctl": 16,
            "seccomp": 317, "setsockopt": 54, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300,
            "timerfd_create": 283, "setrlimit": 160, "sync": 162, "syncfs": 306, "readahead": 187, "fadvise64": 221,
            "madvise": 28, "ioprio_set": 251, "mincore": 27, "preadv2": 327, "mmap": 9,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "clone": 220, "execve": 221, "kill": 129, "ptrace": 117, "mount": 40, "umount2": 39, "pivot_root": 41,
            "add_key": 217, "request_key": 218, "keyctl": 219, "tkill": 130, "tgkill": 131, "unshare": 97,
            "perf_event_open": 241, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280,
            "execveat": 281, "userfaultfd": 282, "pidfd_send_signal": 424, "clone3": 435, "pidfd_getfd": 438,
            "io_uring_setup": 425, "setpriority": 140, "sched_setscheduler": 119, "sched_setattr": 274,
            "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "prlimit64": 261, "prctl": 167, "socket": 198,
            "memfd_create": 279, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180,
            "timer_create": 107, "fcntl": 25, "sched_setaffinity": 122, "migrate_pages": 238, "move_pages": 239,
            "io_setup": 0, "io_submit": 2, "vmsplice": 75, "setsid": 157, "setpgid": 154, "ioctl": 29,
            "seccomp": 277, "setsockopt": 208, "inotify_init1": 26, "fanotify_init": 262, "timerfd_create": 85,
            "setrlimit": 164, "sync": 81, "syncfs": 267, "readahead": 213, "fadvise64": 223, "madvise": 233,
            "ioprio_set": 30, "mincore": 232, "preadv2": 286, "mmap": 222,
        },
    ),
}  # fmt: skip
# The newer calls have one number everywhere.
_EVERYWHERE = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "close_range": 436, "process_madvise": 440, "mount_setattr": 442, "landlock_create_ruleset": 444,
    "memfd_secret": 447, "process_mrelease": 448, "cachestat": 451,
}  # fmt: skip

F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY = 8, 10, 15, 1024, 1026
TERMINALS = (0x540E, 0x5410, 0x5412, 0x541C, 0x541D, 0x5423, 0x5437)
"""TIOCSCTTY, TIOCSPGRP, TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, TIOCVHANGUP: a terminal of its own would send a frozen
rank SIGCONT, and one that it was given would take input from it."""

FIOSETOWN, SIOCSPGRP = 0x8901, 0x8902
_REFUSED_REQUESTS = {
    "fcntl": (F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY),
    "ioctl": (*TERMINALS, FIOSETOWN, SIOCSPGRP),
}
"""A frozen rank could have SIGCONT sent to itself, as by `timer_create`, and other processes SIGIO, which ends them, as
owners of a descriptor. A lease on a file of the system would hold up whoever opens it, compilers of other candidates
too; a watch of a folder of the system has the kernel look through all of its watches at each file read there."""

_STARTS = ("fork", "vfork", "execve", "execveat", "setpgid")
"""System calls that start programs; ninja gives each a process group of its own."""

_NEW_NAMESPACES = 0x7E020000
"""Every CLONE_NEW flag: inside a user namespace of its own a process has all capabilities again."""

_SOCKETS = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK to list interfaces; AF_VSOCK for one heeds no network namespace."""

_PROTOCOLS = (0, 1, 6, 15, 17, 20)
"""Protocols of sockets: the family's own, AF_UNIX by its number, TCP, NETLINK_KOBJECT_UEVENT and NETLINK_RDMA, by which
libraries look for devices, and UDP. Connections of others, such as MPTCP, are in no list that the evaluator looks
at."""

_PLACES = ("sched_setaffinity", "migrate_pages", "move_pages")
"""System calls on the processors of a process and the nodes of its pages; of any process that the caller can name."""

SOL_SOCKET, SO_SNDBUF, SO_RCVBUF, SO_LINGER, SO_MAX_PACING_RATE, IPPROTO_TCP, TCP_CONGESTION = 1, 7, 8, 13, 47, 6, 13
_IDLE_OPTIONS = (
    *((SOL_SOCKET, option) for option in (SO_SNDBUF, SO_RCVBUF, SO_LINGER, SO_MAX_PACING_RATE)),
    (IPPROTO_TCP, TCP_CONGESTION),
)
"""Options of sockets that are taken and do nothing. Whoever closes a lingering connection last waits for its peer, and
that may be the evaluator, to which descriptors can be sent. What is sent at a set pace, as some ways of congestion
control do too, the kernel goes on to send while the rank is frozen. Data that nobody receives is memory of the kernel
that no limit of a process counts: with larger buffers, 3 GiB in the sockets of one rank."""

_IDLE = ("sync", "syncfs", "readahead", "fadvise64")
"""System calls that are taken and do nothing. The first two would write out what other programs of the machine have
written; the others drop files of the machine from its memory, and have the kernel go on to read them while the rank is
frozen."""

MADV_WILLNEED, MADV_MERGEABLE, MADV_PAGEOUT, MADV_COLLAPSE, PR_SET_MEMORY_MERGE = 3, 12, 21, 25, 67
_IDLE_ADVICE = (MADV_WILLNEED, MADV_MERGEABLE, MADV_PAGEOUT, MADV_COLLAPSE)
"""Advice of `madvise` that is taken and does nothing: to read, compare or write out pages while the rank is frozen, and
to make huge pages of a heap at once, of which the baseline's has none. The last name is of an option of `prctl`, by
which the kernel compares all pages of a process; it does nothing either."""

PR_SCHED_CORE, PR_FUTEX_HASH = 62, 78
_REFUSED_OPTIONS = (PR_SET_PDEATHSIG, PR_SCHED_CORE, PR_SET_SECCOMP, PR_FUTEX_HASH)
"""Options of `prctl`. A rank must not outlive its leader. By the second, other processes would not run beside this one
on a core that the baseline shares with them. Filters of its own could have the kernel write to the machine's log at
each system call. They, and tables of futexes, take memory of the kernel that no limit counts: 1 GiB by one call."""

_NOT_THERE = ("clone3", "timerfd_create", "cachestat")
"""The flags of the first lie in memory that a filter cannot read; libc falls back to `clone`. Timers of the second run
out while the rank is frozen, a thousand at a time, in interrupts beside the baseline. The third, like `mincore` and a
read that may not wait, shows which pages of a file lie in the machine's memory: what an earlier evaluation has read."""

RWF_NOWAIT = 8

RLIMIT_CORE = 4


class ConfineError(Exception):
    """Raised when a limit could not be put in force."""


def call(result: int, what: str) -> None:
    """Raises ConfineError if a libc call failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise ConfineError(f"{what}: {os.strerror(number)}")


def prctl(option: int, argument: int = 0) -> None:
    """prctl(2) with one argument."""
    call(_LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0), f"prctl {option}")


def die_with_parent() -> None:
    """This process is killed when the one that forked it ends."""
    prctl(PR_SET_PDEATHSIG, 9)


def drop_capabilities() -> None:
    """Gives up every capability, for good."""
    for capability in range(64):
        _LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)  # refused where there is nothing to drop
    header = struct.pack("II", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    call(_LIBC.capset(header, bytes(24)), "capset")


def offer_to_the_oom_killer() -> None:
    """Has this process and those that it forks killed before any other when the machine runs out of memory."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def limit_resources(limits: Mapping[str, int]) -> None:
    """Sets resource limits by their names in `resource`, such as RLIMIT_FSIZE; soft and hard alike.

    RLIMIT_AS and RLIMIT_DATA count from what the process has already.
    """
    for name, value in limits.items():
        number = getattr(resource, name)
        if name in _STATM_FIELDS:
            value += _memory_bytes(_STATM_FIELDS[name])
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


_STATM_FIELDS = {"RLIMIT_AS": 0, "RLIMIT_DATA": 5}
"""Index in proc(5)'s statm of the memory that counts: all that is mapped, or private data and stack."""


def _memory_bytes(field: int) -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * resource.getpagesize()


def filter_system_calls(allow_processes: bool, *, isolated: bool = False, pins_memory: bool = False) -> bool:
    """Puts the filter in force for this process, its threads and whatever it starts.

    Args:
        allow_processes: Whether it may start processes and programs (a compiler must); they are bound by it too.
        isolated: Whether it sees no processes but its gang's, so that others are out of reach of calls that name one.
        pins_memory: Whether it may map shared memory without a name, as CUDA's driver does for pinned memory.

    Returns:
        False on an architecture that the filter does not know.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return False
    arch, numbers = architecture
    allowed = {
        *(_STARTS if allow_processes else ()),
        *(_PLACES if isolated else ()),
        *(("mmap",) if pins_memory else ()),
    }
    denied = {name: number for name, number in {**numbers, **_EVERYWHERE}.items() if name not in allowed}
    program = b"".join(_program(arch, denied, os.getpid(), allow_processes))
    buffer = ctypes.create_string_buffer(program)
    fprog = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    call(_LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(fprog), 0, 0), "seccomp")
    return True


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _program(arch: int, numbers: Mapping[str, int], pid: int, allow_processes: bool) -> Sequence[bytes]:
    """The filter: each denied call is compared by number; some kinds look at an argument too.

    Memory files, the IPC objects of System V, and shared memory without a name, all but a page of which is unmapped,
    hold memory that no resource limit counts. What `io_submit` and `vmsplice` begin, the kernel ends without a thread
    of the rank. A thread cannot be stopped while a listener of `seccomp` decides over its system call, nor while it
    waits for the end of a thread that it has started by CLONE_VFORK. Threads with tables of descriptors of their own
    would each have as many as the limit allows; and rules of `landlock` take memory of the kernel that no limit counts.
    """
    deny, idle = _op(_RET, _DENY | errno.EPERM), _op(_RET, _DENY)  # error 0 is success
    only = {
        "kill": (pid,),
        "tgkill": (pid,),
        "prlimit64": (0, pid),
        **dict.fromkeys(_PLACES, (0, pid)),  # 0 is the calling thread
    }
    program = [
        _op(_LD, _ARCH_OFFSET),
        _op(_JEQ, arch, 1, 0),
        _op(_RET, _KILL),
        _op(_LD, _NR_OFFSET),
        _op(_JGE, 0x40000000, 0, 1),  # the x32 numbers of the same calls
        deny,
    ]
    for name, number in numbers.items():
        if name == "clone":
            body = [_op(_LD, _ARG0_LOW_OFFSET), _op(_JSET, _NEW_NAMESPACES, 0, 1), deny]
            body += [] if allow_processes else [_op(_JSET, CLONE_THREAD, 1, 0), deny]
            body += [_op(_JSET, CLONE_THREAD, 0, 3), _op(_JSET, CLONE_VFORK, 1, 0), _op(_JSET, CLONE_FILES, 1, 0), deny]
            body.append(_op(_RET, _ALLOW))
        elif name == "prctl":
            body = [*_none_of(_ARG0_LOW_OFFSET, _REFUSED_OPTIONS)]
            body += [_op(_JEQ, PR_SET_MEMORY_MERGE, 0, 1), idle, _op(_RET, _ALLOW)]
        elif name == "close_range":
            body = [_op(_LD, _ARG2_LOW_OFFSET), _op(_JSET, CLOSE_RANGE_UNSHARE, 0, 1), deny, _op(_RET, _ALLOW)]
        elif name in _REFUSED_REQUESTS:
            body = [*_none_of(_ARG1_LOW_OFFSET, _REFUSED_REQUESTS[name])]
            if name == "fcntl":  # of its own signals a rank may be the owner
                body += [_op(_JEQ, F_SETOWN, 0, 3), _op(_LD, _ARG2_LOW_OFFSET), _op(_JEQ, pid, 1, 0), deny]
            body.append(_op(_RET, _ALLOW))
        elif name == "socket":
            body = [*_only(_ARG0_LOW_OFFSET, _SOCKETS), *_only(_ARG2_LOW_OFFSET, _PROTOCOLS), _op(_RET, _ALLOW)]
        elif name == "prlimit64":
            body = [*_only(_ARG0_LOW_OFFSET, only[name]), _op(_LD, _ARG1_LOW_OFFSET), _op(_JEQ, RLIMIT_CORE, 0, 5)]
            body += [_op(_LD, _ARG2_LOW_OFFSET), _op(_JEQ, 0, 0, 2), _op(_LD, _ARG2_HIGH_OFFSET), _op(_JEQ, 0, 1, 0)]
            body += [deny, _op(_RET, _ALLOW)]  # without a new limit, it only returns the present one
        elif name in only:
            body = [*_only(_ARG0_LOW_OFFSET, only[name]), _op(_RET, _ALLOW)]
        elif name == "mmap":
            body = [_op(_LD, _ARG3_LOW_OFFSET), _op(_JSET, MAP_ANONYMOUS, 0, 2), _op(_JSET, MAP_SHARED, 0, 1), deny]
            body.append(_op(_RET, _ALLOW))
        elif name == "preadv2":
            body = [_op(_LD, _ARG5_LOW_OFFSET), _op(_JSET, RWF_NOWAIT, 0, 1), deny, _op(_RET, _ALLOW)]
        elif name == "setsockopt":
            body = []
            for level, option in _IDLE_OPTIONS:
                body += [_op(_LD, _ARG1_LOW_OFFSET), _op(_JEQ, level, 0, 3)]
                body += [_op(_LD, _ARG2_LOW_OFFSET), _op(_JEQ, option, 0, 1), idle]
            body.append(_op(_RET, _ALLOW))
        elif name == "madvise":
            jumps = [_op(_JEQ, value, len(_IDLE_ADVICE) - index, 0) for index, value in enumerate(_IDLE_ADVICE)]
            body = [_op(_LD, _ARG2_LOW_OFFSET), *jumps, _op(_RET, _ALLOW), idle]
        elif name == "setrlimit":
            body = [_op(_LD, _ARG0_LOW_OFFSET), _op(_JEQ, RLIMIT_CORE, 0, 1), deny, _op(_RET, _ALLOW)]
        elif name in _IDLE:
            body = [idle]
        elif name in _NOT_THERE:
            body = [_op(_RET, _DENY | errno.ENOSYS)]
        else:
            body = [deny]
        program += [_op(_JEQ, number, 0, len(body)), *body]
    program.append(_op(_RET, _ALLOW))
    return program


def _only(offset: int, values: Sequence[int]) -> Sequence[bytes]:
    """Denies a call unless the argument at an offset is one of these values; else goes on behind these instructions."""
    jumps = [_op(_JEQ, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [_op(_LD, offset), *jumps, _op(_RET, _DENY | errno.EPERM)]


def _none_of(offset: int, values: Sequence[int]) -> Sequence[bytes]:
    """Denies a call if the argument at an offset is one of these values; else goes on behind these instructions."""
    jumps = [_op(_JEQ, value, len(values) - 1 - index, 0) for index, value in enumerate(values[:-1])]
    return [_op(_LD, offset), *jumps, _op(_JEQ, values[-1], 0, 1), _op(_RET, _DENY | errno.EPERM)]
