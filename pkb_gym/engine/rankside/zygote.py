"""A process that has imported torch once and forks gangs on request.

    python -m pkb_gym.engine.rankside.zygote FD [FOLDER]

FD is its end of a connection to the evaluator; when that closes, however the evaluator ended, the zygote removes FOLDER
and ends, and its gangs with it. It runs no tensor operation itself, so that it stays single-threaded and safe to fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from pkb_gym.engine.wire.forking import PRELOADED, ForkFailed, GangRequest, GangStarted, ZygoteReady
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.messages import WireError

from . import leader, namespaces
from .confine import MADV_COLLAPSE, die_with_parent
from .remove_tree import remove_tree

RANK_MODULES = (".candidate", ".native", ".python", ".gloo_compat", ".cuda_heap")
EMULATED = ".emulated"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
JOINING_S, JOINED_TOGETHER = 0.5, 16 << 20
"""How long to look for huge pages, and the bytes after which to look at the clock, many such pages: where memory is in
pieces, the kernel moves others first."""


def main() -> None:
    """Serves fork requests until the connection closes."""
    control = Wire(socket.socket(fileno=int(sys.argv[1])))
    _forget_preloaded()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not take processors from other ranks
    os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler's lines would stand among what candidates write
    # Whoever asks torch whether there is a GPU must not touch CUDA here: forked ranks could not use it any more.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the evaluator's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    gc.disable()  # nothing of what is imported is garbage, and to look for it takes a sixth of the time
    with _ending_with(control):
        for module in ("torch", "torch.distributed", "tvm_ffi"):
            importlib.import_module(module)
        for module in RANK_MODULES:  # once, instead of in every rank: inside the sandbox nothing keeps their bytecode
            importlib.import_module(module, __package__)
    _keep_freed_memory()
    gc.enable()
    gc.collect()
    gc.freeze()  # collections in the ranks then pass over what was imported, and leave its pages shared
    _join_pages()
    control.send(ZygoteReady())
    while True:
        try:
            request, _, fds = control.receive_with_fds(GangRequest)
        except WireError:
            _end()
        _fork(control, request, fds)


def _forget_preloaded() -> None:
    """Programs that ranks start load what the user preloads, and nothing else."""
    first, _, others = os.environ.get("LD_PRELOAD", "").partition(":")
    if first.startswith(PRELOADED):
        os.close(int(first.removeprefix(PRELOADED)))
        del os.environ["LD_PRELOAD"]
        if others:
            os.environ["LD_PRELOAD"] = others


def _end() -> NoReturn:
    for folder in sys.argv[2:]:
        remove_tree(folder)  # in place of an evaluator that was killed
    os._exit(0)


@contextlib.contextmanager
def _ending_with(control: Wire) -> Iterator[None]:
    """Ends this process as soon as the connection closes, though nobody listens to it: importing takes seconds.

    A signal announces it (fcntl(2), O_ASYNC); a thread that waits would be in the way of forking. Nothing is sent to a
    zygote before it is ready.
    """
    sock = control.sock
    before = signal.signal(signal.SIGIO, lambda *_: _end())
    flags = fcntl.fcntl(sock, fcntl.F_GETFL)
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([sock], [], [], 0)[0]:  # it closed before
        _end()
    try:
        yield
    finally:
        fcntl.fcntl(sock, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, before)


def _keep_freed_memory() -> None:
    """Lets malloc keep what is freed, as GPU allocators do: otherwise each large result costs fresh pages every time.

    mallopt(3): up to 32 MiB, the most that glibc takes, from the heap; never give the heap's end back.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc alone has it
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def _join_pages() -> None:
    """Has the kernel put what was imported into huge pages, of which a fork copies one entry in place of 512.

    Every gang is forked several times, once for each rank. Ranks of both sides are forked from such a process: a page
    that one of them writes to is small again there. madvise(2), MADV_COLLAPSE; Linux before 6.1 knows no such advice.
    """
    libc, deadline = ctypes.CDLL(None), time.monotonic() + JOINING_S
    with open("/proc/self/maps") as file:
        mappings = [line.split() for line in file]
    for addresses, permissions, *rest in mappings:
        if permissions == "rw-p" and rest[3:] in ([], ["[heap]"]):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            for part in range(begin - begin % JOINED_TOGETHER, end, JOINED_TOGETHER):
                if time.monotonic() > deadline:
                    return
                first, last = max(begin, part), min(end, part + JOINED_TOGETHER)
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def _fork(control: Wire, request: GangRequest, fds: list[int]) -> None:
    try:
        if request.entry == EMULATED:  # as `RANK_MODULES`, when it is first asked for: rank_emulator may be missing
            importlib.import_module(EMULATED, __package__)
        own_shared_memory = request.confined and not request.isolate and namespaces.may_have_own_shared_memory()
        if request.isolate:
            namespaces.copy_counters()
        pid = namespaces.fork_into_new_pid_namespace() if request.isolate else os.fork()
    except Exception as error:  # reported at the boundary: the evaluator decides what it means
        control.send(ForkFailed(f"{type(error).__name__}: {error}"))
        for fd in fds:
            os.close(fd)
        return
    if pid == 0:
        control.close()
        leader_main(request, fds, own_shared_memory=own_shared_memory)
    for fd in fds:
        os.close(fd)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        control.send(ForkFailed("the gang's leader ended at once"))
        return
    control.send(GangStarted(), fds=[pidfd])
    os.close(pidfd)


def leader_main(request: GangRequest, fds: list[int], *, own_shared_memory: bool) -> None:
    """Runs the leader of a gang in this freshly forked process, see `leader.lead`; never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent()
        leader.lead(request, fds, own_shared_memory=own_shared_memory)
        status = 0
    except BaseException as error:  # a forked child must never run its parent's code
        os.write(2, f"gang leader: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
