"""The first process of a gang: sets up its surroundings, forks the ranks, reports how each ended, cleans up."""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import socket
import tempfile
import traceback
from pathlib import Path

from pkb_gym.engine.wire.forking import GangRequest, RankEnded, RanksStarted
from pkb_gym.engine.wire.frames import Wire
from pkb_gym.engine.wire.messages import WireError

from . import confine, landlock, namespaces
from .shared_files import SharedFiles


def lead(request: GangRequest, fds: list[int], *, own_shared_memory: bool) -> None:
    """Runs a gang until its evaluator closes the connection.

    Args:
        request: Settings of the gang.
        fds: The leader's connection, then for each rank where its stdout and stderr go, then a connection per rank.
        own_shared_memory: Whether a confined gang that is not isolated has a /dev/shm of its own; without one, it takes
            the files along that its processes hold at their end.
    """
    leader_fd, output_fds, rank_fds = fds[0], fds[1 : 1 + request.world_size], fds[1 + request.world_size :]
    wire = Wire(socket.socket(fileno=leader_fd))
    os.setsid()
    if request.confined:
        confine.offer_to_the_oom_killer()  # now: /proc is read-only later
    if request.isolate:
        namespaces.enter(request.temporary_bytes, request.max_threads)
        os.makedirs(request.scratch, exist_ok=True)
    else:
        confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)  # what the ranks leave behind becomes ours to end
        if request.confined:
            _keep_files_in(request.scratch)
    shared_files = None
    if own_shared_memory:
        namespaces.enter_with_own_shared_memory(request.temporary_bytes)
    elif request.confined and not request.isolate:
        shared_files = SharedFiles()
    pids = [_fork_rank(request, rank, wire, output_fds, rank_fds, shared_files) for rank in range(request.world_size)]
    for fd in (*output_fds, *rank_fds):
        os.close(fd)
    if request.confined:
        confine.prctl(confine.PR_SET_DUMPABLE, 0)  # its memory is not the ranks' to open through /proc
    pidfds = [os.pidfd_open(pid) for pid in pids]
    wire.send(RanksStarted(), fds=pidfds)
    try:
        _report_ends(wire, pids, pidfds)
    finally:
        _end_descendants(shared_files)


def _keep_files_in(folder: str) -> None:
    """Temporary files and caches of the ranks are made where they go with the gang."""
    os.environ |= {"TMPDIR": folder, "HOME": folder}
    tempfile.tempdir = None  # which may have been looked up before


def _fork_rank(
    request: GangRequest,
    rank: int,
    leader: Wire,
    output_fds: list[int],
    rank_fds: list[int],
    shared_files: SharedFiles | None,
) -> int:
    pid = os.fork()
    if pid != 0:
        return pid
    status = 0
    try:
        confine.die_with_parent()
        leader.close()
        os.dup2(output_fds[rank], 1)
        os.dup2(output_fds[rank], 2)
        for fd in output_fds:
            os.close(fd)
        for other, fd in enumerate(rank_fds):
            if other != rank:
                os.close(fd)
        os.chdir(request.scratch)
        for number in (signal.SIGINT, signal.SIGXFSZ):  # Python ignores the latter: a file's limit would go unnoticed
            signal.signal(number, signal.SIG_DFL)
        entry = importlib.import_module(request.entry, __package__)
        if request.confined:
            confine.limit_resources(request.limits)
            confine.drop_capabilities()
            if not request.isolate:
                landlock.keep_out_of_other_processes()
            confine.filter_system_calls(
                request.allow_processes, isolated=request.isolate, pins_memory=request.pins_memory
            )
        entry.main(Wire(socket.socket(fileno=rank_fds[rank])), rank, request.world_size)
    except WireError:
        pass  # the evaluator let go of this gang
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        status = 70
    finally:
        try:
            if shared_files is not None:
                shared_files.remove_held_by([os.getpid()])
        finally:
            os._exit(status)


def _report_ends(wire: Wire, pids: list[int], pidfds: list[int]) -> None:
    """Reports each rank's end to the evaluator, until the evaluator closes the connection."""
    with selectors.DefaultSelector() as selector:
        selector.register(wire, selectors.EVENT_READ, -1)
        for rank, pidfd in enumerate(pidfds):
            selector.register(pidfd, selectors.EVENT_READ, rank)
        while True:
            for key, _ in selector.select():
                rank = key.data
                if rank < 0:
                    return
                selector.unregister(pidfds[rank])
                status = os.waitpid(pids[rank], 0)[1]
                try:
                    wire.send(RankEnded(rank, os.waitstatus_to_exitcode(status)))
                except WireError:
                    return


def _end_descendants(shared_files: SharedFiles | None) -> None:
    """Kills and reaps children until there are none, those of children included: orphans become ours."""
    for _ in range(100):
        children = _children()
        if not children:
            return
        if shared_files is not None:
            shared_files.remove_held_by(children)
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def _children() -> list[int]:
    me = str(os.getpid())
    children = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == me:
                children.append(int(entry.name))
    return children
