"""Processes that are held by a pidfd: a number that is never another process's, whatever becomes of them."""

from __future__ import annotations

import contextlib
import signal

from pkb_gym.engine.support.proc_files import read_proc


def send(pidfd: int, number: signal.Signals) -> None:
    """Sends a signal, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def pid_of(pidfd: int) -> int | None:
    """The process's ordinary number; None if it has ended and was waited for."""
    lines = read_proc(f"/proc/self/fdinfo/{pidfd}").splitlines()
    pid = next((int(line.split()[1]) for line in lines if line.startswith(b"Pid:")), -1)
    return pid if pid > 0 else None


def stat(pidfd: int) -> tuple[str, int]:
    """State letter and processor time in clock ticks of a process; ("X", 0) if it has ended."""
    try:
        fields = read_proc(f"/proc/{pid_of(pidfd)}/stat").rpartition(b")")[2].split()
    except OSError:
        return "X", 0
    return fields[0].decode(), int(fields[11]) + int(fields[12])


def run_delay_ns(pidfd: int) -> int:
    """Nanoseconds that a process's main thread has waited for a processor; 0 if it has ended or nobody counts."""
    try:
        return int(read_proc(f"/proc/{pid_of(pidfd)}/schedstat").split()[1])
    except (OSError, IndexError):
        return 0
