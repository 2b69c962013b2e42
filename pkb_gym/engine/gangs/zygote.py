"""The evaluator's handle on a zygote: starts it, asks it for gangs, ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.heaps import memory_file
from pkb_gym.engine.gangs.sandbox import (
    ROOT_INSIDE,
    Policy,
    bubblewrap_arguments,
    bubblewrap_works,
    zygote_policy,
)
from pkb_gym.engine.gangs.visible_folders import is_below, package_folders
from pkb_gym.engine.rankside.remove_tree import remove_tree
from pkb_gym.engine.support.emulator_package import emulator_package
from pkb_gym.engine.support.env_vars import for_candidates, preloads, python_path, with_changes
from pkb_gym.engine.support.ownership import TemporaryFolder
from pkb_gym.engine.support.priority import at_low_priority, lower_session
from pkb_gym.engine.wire.forking import PRELOADED, ForkFailed, GangRequest, GangStarted, ZygoteReady
from pkb_gym.engine.wire.frames import pair
from pkb_gym.engine.wire.messages import WireError

START_TIMEOUT_S = 120.0
MAX_OUTPUT = 2000
"""Bytes that an error quotes of what a zygote wrote last."""

TEMPORARY_BYTES = 256 << 20
"""Size of /tmp and of /dev/shm in each gang."""


class Zygote:
    """A process that has torch loaded and forks gangs.

    Args:
        trusted: Whether it forks reference gangs, which may import all of pkb_gym; otherwise it is sandboxed where
            bubblewrap works, and its gangs are confined.
        low_priority: Whether it and its gangs leave processors to whatever else wants them.
        preloaded: A shared library whose functions take the place of others' of the same name (ld.so(8)), if any.

    Raises:
        OSError: there are no descriptors or processes left.
    """

    def __init__(self, *, trusted: bool, preloaded: bytes | None = None, low_priority: bool = False) -> None:
        self.trusted = trusted
        self.sandboxed = not trusted and bubblewrap_works()
        self._lock = threading.Lock()
        self._ready = False
        self._policy: Policy | None = None
        with contextlib.ExitStack() as resources:
            folder = None if self.sandboxed else resources.enter_context(TemporaryFolder())
            self.scratch = Path("/tmp/scratch") if folder is None else folder.path
            self._control, theirs = pair()
            resources.callback(self._control.close)
            with contextlib.closing(theirs), _as_file(preloaded) as library:
                fd = theirs.fileno()
                command = self._command(fd)
                self._process = subprocess.Popen(
                    at_low_priority(command) if low_priority else command,
                    pass_fds=(fd,) if library is None else (fd, library),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C in a terminal reaches the evaluator alone
                    env=self._environment(library),
                )
            if low_priority:
                lower_session(self._process.pid)
            self._resources = resources.pop_all()

    def _command(self, fd: int) -> list[str]:
        # -P: nothing of the folder that the user works in is imported. -u, of Python as of C: what a rank wrote is
        # there however it ended, and blocks need not flush.
        command = [sys.executable, "-P", "-u", "-m", "pkb_gym.engine.rankside.zygote", str(fd)]
        if not self.sandboxed:
            return [*command, str(self.scratch)]
        self._policy = zygote_policy(TEMPORARY_BYTES)
        return bubblewrap_arguments(self._policy, command)

    def shows(self, folder: Path) -> bool:
        """Whether its gangs can read a folder, which may be younger than the sandbox."""
        real = str(folder.resolve())
        if self._policy is None or is_below(real, self._policy.hidden):
            return False
        return is_below(real, [os.path.realpath(outside) for outside, _ in self._policy.read_only])

    def _environment(self, library: int | None) -> dict[str, str]:
        here = str(Path(__file__).resolve().parents[3])
        # Folders that candidates import from are theirs alone; declarations may import from those of this process.
        emulator = emulator_package()
        outside = (here,) if emulator is None else (here, str(emulator.parent))
        own = (*((ROOT_INSIDE,) if self.sandboxed else outside), *package_folders())
        folders = (here, *python_path()) if self.trusted else own
        base = with_changes if self.trusted else for_candidates
        preloaded = {"LD_PRELOAD": ":".join([f"{PRELOADED}{library}", *preloads()])} if library is not None else {}
        # The user's name stands in for a list of users, which no candidate needs to read.
        return base(
            PYTHONPATH=os.pathsep.join(folders),
            PYTHONDONTWRITEBYTECODE="1",
            HOME="/tmp",
            LOGNAME="pkb",
            USER="pkb",
            GLOO_SOCKET_IFNAME="lo",
            **preloaded,
        )

    def wait_until_ready(self) -> None:
        """Waits until torch is loaded.

        Raises:
            InfrastructureError: it did not start.
        """
        with self._lock:
            self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        try:
            self._control.sock.settimeout(START_TIMEOUT_S)
            self._control.receive(ZygoteReady)
        except (WireError, OSError) as error:  # closed meanwhile, or too late, among others
            self._process.kill()
            raise InfrastructureError(f"the zygote did not start: {error}\n{self._last_output()}") from None
        self._ready = True

    def _last_output(self) -> str:
        assert self._process.stderr is not None
        try:
            return self._process.stderr.read().decode(errors="replace")[-MAX_OUTPUT:]
        except ValueError:  # closed meanwhile, by another thread
            return ""

    def fork(self, request: GangRequest, fds: list[int]) -> int:
        """Forks a gang.

        Args:
            request: Settings of the gang.
            fds: The leader's end, where output of each rank goes, the ranks' ends; the caller keeps and closes its own
                copies.

        Returns:
            A pidfd of the gang's leader.

        Raises:
            InfrastructureError: the zygote is gone, did not answer and was ended, or could not fork.
        """
        with self._lock:
            self._wait_until_ready()
            try:
                self._control.send(request, fds=fds)
                reply, _, received = self._control.receive_with_fds(GangStarted, ForkFailed)
            except BaseException as error:
                self._abandon()
                if isinstance(error, (WireError, TimeoutError)):
                    raise InfrastructureError(f"the zygote is gone: {error}") from None
                raise
        if isinstance(reply, ForkFailed):
            raise InfrastructureError(f"no gang could be forked: {reply.text}")
        return received[0]

    def _abandon(self) -> None:
        """Ends it where a request has no reply: a late one would be taken for that of the next request, and so on.

        Every gang of such a zygote would have another's leader, and every evaluation end as infrastructure failure.
        """
        with contextlib.suppress(OSError):
            self._control.sock.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it and every gang it forked; calling it again changes nothing."""
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._resources.close()

    def new_scratch(self) -> tuple[str, Callable[[], None]]:
        """A working folder for one gang: its path as the gang sees it, and a function that removes it.

        Raises:
            InfrastructureError: the zygote is gone, and its folder with it, or no folder can be made.
        """
        if self.sandboxed:
            return str(self.scratch), lambda: None  # in the gang's own /tmp, gone with it
        try:
            path = tempfile.mkdtemp(dir=self.scratch)
        except OSError as error:
            gone = "the zygote is gone: " if not self.alive else ""
            raise InfrastructureError(f"{gone}no working folder for a gang can be made: {error}") from None
        return path, lambda: remove_tree(path)


@contextlib.contextmanager
def _as_file(library: bytes | None) -> Iterator[int | None]:
    """The descriptor of a library, if there is one; closed here at the end."""
    if library is None:
        yield None
        return
    fd = memory_file("pkb-preloaded", library)
    try:
        yield fd
    finally:
        os.close(fd)
