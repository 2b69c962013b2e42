"""Compilers, and tools that read what compilers made, over untrusted text: in a sandbox, with limits and a deadline.

Nothing here knows which compiler it is. Files go in and the result comes out by descriptors, so that nothing of the
user's file system is written to; without bubblewrap a temporary folder takes the sandbox's place.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

from pkb_gym.engine.compile.cached_compile import Compiled
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.sandbox import DEVICES, Policy, bubblewrap_arguments, bubblewrap_works
from pkb_gym.engine.gangs.visible_folders import compiler_paths, hidden_folders
from pkb_gym.engine.records.artifact import Artifact
from pkb_gym.engine.support.env_vars import for_candidates
from pkb_gym.engine.support.ownership import TemporaryFolder
from pkb_gym.engine.support.priority import at_low_priority, lower_session
from pkb_gym.engine.support.problem_folders import folders_with_answers

MAX_LOG_CHARS = 12_000
MAX_RESULT_BYTES = 256 << 20

_SCRIPT = """
ulimit -v "$1"; ulimit -f "$2"; ulimit -t "$3"; ulimit -c 0
out="$4"; result="$5"; folder="$6"; shift 6
printf started > "/proc/self/fd/$out"
exec 3<&0
(trap "" TERM; read -r _; kill -TERM 0; sleep 0.1; test -z "$folder" || rm -rf "$folder"; kill -KILL 0) <&3 &
"$@" < /dev/null && { test -z "$result" || { test -f "$result" && cat "$result" > "/proc/self/fd/$out"; }; }
"""
"""Its standard input ends with the evaluator, and so does everything it started; $6 is a folder to be removed then."""

_STARTED = b"started"
"""Content in place of the result until there is one: the sandbox stands, and what fails from now on is the command."""

PROGRAMS = ("sh", "g++", "ld", "as", "c++filt", "cat")
"""Programs of the system that are run."""

_LIMITED = ("sh", "-c", _SCRIPT, "sh")


@dataclass(frozen=True)
class CompilerLimits:
    """The limits of one run.

    Attributes:
        timeout_s: Wall time in seconds; the processor time of each process is limited accordingly.
        memory_kib: Address space of each process, in KiB; None for no limit.
        file_blocks: Size of the largest file, in blocks of 512 bytes.
        output_bytes: Maximum number of bytes read of stdout and stderr.
        low_priority: Whether the command leaves processors to whatever else wants them.
    """

    timeout_s: float
    memory_kib: int | None = 6 << 20
    file_blocks: int = 1 << 19
    output_bytes: int = 2 << 20
    low_priority: bool = False


@dataclass(frozen=True)
class Run:
    """The result of one run.

    Attributes:
        status: Exit status, negative after a signal; None where the deadline passed.
        output: Output of the command, stdout and stderr.
        result: Content of the requested file; empty where it was not made.
        duration_s: Wall time, in seconds.
        truncated: Whether the command wrote more output than was read.
    """

    status: int | None
    output: str
    result: bytes
    duration_s: float
    truncated: bool = False


def run_sandboxed(
    command: Sequence[str],
    *,
    files: Mapping[str, bytes],
    limits: CompilerLimits,
    result: str = "",
    readable: Sequence[Path] = (),
    devices: Sequence[str] = (),
) -> Run:
    """Runs a command in a folder that holds some files.

    Args:
        command: Program and arguments.
        files: Contents of the input files, by name.
        limits: Limits of the command.
        result: Name of the file that is returned; empty for none.
        readable: Readable folders besides those of the system; without bubblewrap the user's permissions apply.
        devices: Device files that the command may use, beside those that every command may.

    Raises:
        InfrastructureError: its sandbox could not be made, or it failed and the disk is full.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        # The log comes first: descriptor 3, if it is free, becomes its number, and the script needs 3 for itself.
        log, out = _memory_file(stack, "log"), _memory_file(stack, "result")
        folder = None if bubblewrap_works() else str(stack.enter_context(TemporaryFolder()).path)
        inputs = {} if folder else {name: _memory_file(stack, name, content) for name, content in files.items()}
        for name, content in files.items() if folder else ():
            Path(folder or "", name).write_bytes(content)
        limited = [*_LIMITED, *_limit_arguments(limits), str(out), result, folder or "", *command]
        whole = limited if folder else _in_bubblewrap(limited, inputs, readable, devices)
        process = subprocess.Popen(
            at_low_priority(whole) if limits.low_priority else whole,
            cwd=folder,
            env=for_candidates(TMPDIR=folder or "/tmp"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(out, *inputs.values()),
            start_new_session=True,
        )
        if limits.low_priority:
            lower_session(process.pid)
        try:
            status: int | None = process.wait(limits.timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _kill_session(process)
        output = _content(log, limits.output_bytes).decode(errors="replace")
        for name in files:  # linkers name them by their whole path
            output = output.replace(f"{folder or '/tmp'}/{name}:", f"{name}:")
        truncated = os.fstat(log).st_size > limits.output_bytes
        if status != 0 and folder and (left := shutil.disk_usage(folder).free) < DISK_BYTES:
            raise InfrastructureError(f"{command[0]} had {left} bytes of disk left in {folder}; it needs {DISK_BYTES}")
        made = _content(out, MAX_RESULT_BYTES)
        if status and not made:
            raise InfrastructureError(
                f"the sandbox of {command[0]} could not be made (status {status}): {output[-500:]}"
            )
        return Run(status, output, b"" if made == _STARTED else made, time.monotonic() - began, truncated)


DISK_BYTES = 64 << 20
"""Free space that a compiler may need for its files, without a sandbox."""

_KILLED_STATUSES = (-signal.SIGKILL, 128 + signal.SIGKILL)
_KILLED_STAGE = re.compile(r"signal 9\b|\bKilled signal terminated program\b")
"""A message of g++ or nvcc on a stage that was killed; their own status is 1 then. A source can have it printed."""

ENDED_BY_OTHERS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals that no source brings upon its compiler."""


def compiled_of(run: Run, limits: CompilerLimits) -> Compiled:
    """The result of a compiler's run.

    Raises:
        InfrastructureError: somebody ended the compiler.
    """
    log = cut_log(run.output)
    if run.status is not None and (-run.status in ENDED_BY_OTHERS or run.status - 128 in ENDED_BY_OTHERS):
        raise InfrastructureError(f"the compiler was ended from outside (status {run.status}): {log[-500:]}")
    if run.status is None:
        log = f"{log}\nthe compiler took longer than {limits.timeout_s:g} s"
        return Compiled(Artifact(ok=False, log=log, duration_s=run.duration_s), lasting=False)
    if run.status != 0 or not run.result:
        reason = "" if "error" in log else f"\nthe compiler ended with status {run.status}"
        failed = Artifact(ok=False, log=log + reason, duration_s=run.duration_s)
        killed = run.status in _KILLED_STATUSES or bool(_KILLED_STAGE.search(run.output))
        # A command that a signal ended (status 128 + signal, or negative) might have been short of memory for once.
        return Compiled(failed, lasting=0 < run.status < 128, killed=killed)
    return Compiled(Artifact(ok=True, log=log, duration_s=run.duration_s, binary=run.result), lasting=True)


def cut_log(text: str) -> str:
    """A log without its middle if it is very long."""
    if len(text) <= MAX_LOG_CHARS:
        return text
    half = MAX_LOG_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _limit_arguments(limits: CompilerLimits) -> Iterator[str]:
    memory = "unlimited" if limits.memory_kib is None else limits.memory_kib
    yield from map(str, (memory, limits.file_blocks, ceil(limits.timeout_s) + 1))


def _in_bubblewrap(
    command: Sequence[str], inputs: Mapping[str, int], readable: Sequence[Path], devices: Sequence[str]
) -> list[str]:
    """The command in its sandbox, with files made from descriptors in /tmp."""
    policy = Policy(
        read_only=tuple((path, path) for path in dict.fromkeys((*_system(), *map(str, readable)))),
        devices=(*DEVICES, *devices),
        hidden=_hidden(),
        dies_with_parent=True,
    )
    arguments = bubblewrap_arguments(policy, command)
    place = arguments.index("--chdir")
    for name, fd in inputs.items():
        arguments[place:place] = ["--file", str(fd), f"/tmp/{name}"]
    return arguments


@cache
def _system() -> tuple[str, ...]:
    return compiler_paths([Path(found) for name in PROGRAMS if (found := shutil.which(name))])


def _hidden() -> tuple[str, ...]:
    return _hidden_beside(folders_with_answers())


@cache
def _hidden_beside(_: tuple[Path, ...]) -> tuple[str, ...]:
    """Found anew when other problems have been registered."""
    return hidden_folders()


def _memory_file(stack: contextlib.ExitStack, name: str, content: bytes = b"") -> int:
    """A file without a name, gone with the last process that has it open."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _content(fd: int, most: int) -> bytes:
    return os.pread(fd, min(os.fstat(fd).st_size, most), 0)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
