"""`pkb serve` as a child of this process."""

from __future__ import annotations

import contextlib
import logging
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.stages.machine_sharing import folder_apart
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.atomic_write import FOR_OWNER, write_atomically
from pkb_gym.engine.support.ownership import TemporaryFolder
from pkb_gym.serve.ready_line import read_ready

logger = logging.getLogger(__name__)

START_S = 120.0
END_S = 10.0
"""The time that a service may take to start, and to end."""

RESTART_S = 5.0
"""Between attempts to start it anew."""


class ServiceProcess:
    """`pkb serve` as a child of this process, with which it ends; started anew, at the same url, whenever it dies.

    Clients ask again until a service is there, so that nothing is lost but what it had in hand.

    Args:
        gpus: Entries of the service's CUDA_VISIBLE_DEVICES; None for those of this process.
        start_s: Maximum time for the start, in seconds.
        processors: Processors of the service and its ranks, beside other services, for whose timings it does not wait;
            None for all of this process.
        variables: Additional environment variables of the service.
        options: Further words of its command line.
        replay_key: Key of the inputs, which no other process sees; None for a random one.

    Attributes:
        url: Address of the service.
        token: Token that requests carry.
        on_restart: Function called, in a thread, after a restart of the service.

    Raises:
        InfrastructureError: it did not start.
    """

    def __init__(
        self,
        gpus: Sequence[str] | None = None,
        start_s: float = START_S,
        processors: Sequence[int] | None = None,
        variables: Mapping[str, str] | None = None,
        *,
        options: Sequence[str] = (),
        replay_key: bytes | None = None,
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self.on_restart: Callable[[], None] = lambda: None
        self._changes = dict(variables or {}) | ({} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)})
        self._start_s, self._options, self._replay_key = start_s, tuple(options), replay_key
        bound = ",".join(map(str, processors or ()))
        self._binding = ["taskset", "--cpu-list", bound] if bound else []
        self._folder = TemporaryFolder()
        if bound:
            self._changes["TMPDIR"] = str(folder_apart(self._folder.path))
        write_atomically(self._folder.path / "token", self.token, FOR_OWNER)
        try:
            self._process, self.url = self._start(port=0)
        except InfrastructureError:
            self._folder.close()
            raise
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, name="pkb-owner", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        """The number of the process that runs, or ran last."""
        return self._process.pid

    def close(self) -> None:
        """Ends it; calling it again changes nothing."""
        self._closing.set()
        while self._watch.is_alive():
            self._process.terminate()
            self._watch.join(END_S)
            if self._watch.is_alive():
                self._process.kill()
        self._folder.close()

    def _keep_running(self) -> None:
        while True:
            status = self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            if self._closing.is_set():
                return
            logger.warning("the evaluation service ended with status %s; it is started anew", status)
            try:
                self._process, self.url = self._start(port=int(self.url.rpartition(":")[2]))
            except InfrastructureError:
                logger.warning("the evaluation service does not start", exc_info=True)
                self._closing.wait(RESTART_S)
            else:
                self.on_restart()

    def _start(self, port: int) -> tuple[subprocess.Popen[str], str]:
        token_file = self._folder.path / "token"
        options = ["--port", str(port), "--token-file", str(token_file), "--with-parent", *self._options]
        if self._replay_key is not None:
            options += ["--replay-key", "-"]
        process = subprocess.Popen(
            [*self._binding, sys.executable, "-m", "pkb_gym.cli", "serve", *options],
            env=env_vars.without_launcher(**self._changes),
            stdin=subprocess.DEVNULL if self._replay_key is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends this process first, and the service with it
        )
        assert process.stdout is not None
        if self._replay_key is not None:
            assert process.stdin is not None
            with contextlib.suppress(OSError), process.stdin:  # it may have ended, which is found below
                process.stdin.write(f"{self._replay_key.hex()}\n")
        try:
            line = read_ready(process.stdout.fileno(), self._start_s)
        except (TimeoutError, ValueError):
            line = None
        if line is not None:
            return process, line.url
        process.kill()
        process.wait()
        process.stdout.close()
        raise InfrastructureError(
            f"the evaluation service did not start within {self._start_s:g} s; its errors stand above"
        )
