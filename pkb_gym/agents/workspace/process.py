"""The process of a program in its workspace: its start, its output, its end."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from pkb_gym.agents.protocol import AgentError
from pkb_gym.agents.workspace.confinement import Confinement
from pkb_gym.engine.records.attempt import TokenCounts
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support.priority import at_low_priority, lower_session

MAX_TRANSCRIPT_CHARS = 1 << 16
"""Output between two calls that is recorded, the last of it."""

MAX_LINE_BYTES = 1 << 20
"""Length of a line that reports tokens."""

FILE_BLOCKS = 2 << 20
"""Size of the largest file that the program may write, its output included, in blocks of 512 bytes."""

COOKIE = "PKB_WORKSPACE"
"""Variable that every process of a workspace inherits, by which those that left its session are found."""

_END_S = 10.0
_LIMITED = ("sh", "-c", 'ulimit -f "$1"; ulimit -c 0; shift; exec "$@"', "sh", str(FILE_BLOCKS))


class Usage(Record):
    """The report of tokens, as `usage` of a line of JSON: totals of the program since it began."""

    model_config = ConfigDict(extra="ignore")

    input_tokens: int = Field(ge=0)
    """Tokens read."""
    output_tokens: int = Field(ge=0)
    """Tokens written, reasoning included."""
    cache_read_input_tokens: int = Field(default=0, ge=0)
    """Tokens read from a cache, where `input_tokens` leaves them out."""
    cache_creation_input_tokens: int = Field(default=0, ge=0)
    """Tokens written to a cache, where `input_tokens` leaves them out."""

    @property
    def tokens(self) -> TokenCounts:
        """The counts, all that was read together."""
        read = self.input_tokens + self.cache_read_input_tokens + self.cache_creation_input_tokens
        return TokenCounts(prompt=read, completion=self.output_tokens)


class WorkspaceProcess:
    """A running program.

    Args:
        confinement: Where and how it runs.
        words: Program and its arguments.
        workspace: Folder that it works in.
        output: File for its output, outside of the workspace.
        variables: Variables of the episode.

    Attributes:
        tokens: Tokens that it has reported in all; None before the first report.
        cost_usd: Price in US dollars that it has reported in all; None before the first report.

    Raises:
        AgentError: It cannot be started.
    """

    def __init__(
        self,
        confinement: Confinement,
        words: Sequence[str],
        workspace: Path,
        output: Path,
        variables: Mapping[str, str],
    ) -> None:
        self.tokens: TokenCounts | None = None
        self.cost_usd: float | None = None
        self._confinement = confinement
        self._name = f"pkb-workspace-{secrets.token_hex(8)}"
        self._line = b""
        self._transcript = ""
        given = {**variables, COOKIE: self._name}
        command = [*_LIMITED, *at_low_priority(confinement.command(words, workspace, given, self._name))]
        self._output = os.open(output, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read = 0
        try:
            self._process = subprocess.Popen(
                command,
                cwd=workspace,
                env=confinement.environment(given),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._output)
            raise AgentError(f"{words[0]} could not be started: {error.strerror}") from None
        lower_session(self._process.pid)

    @property
    def exit_status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    def read_output(self) -> None:
        """Reads what was printed since, and the reports of tokens in it."""
        while self._output >= 0 and (part := os.pread(self._output, 1 << 20, self._read)):
            self._read += len(part)
            self._transcript = (self._transcript + part.decode("utf-8", "replace"))[-MAX_TRANSCRIPT_CHARS:]
            *lines, rest = (self._line + part).split(b"\n")
            for line in lines:
                self._read_report(line)
            self._line = rest[: MAX_LINE_BYTES + 1]

    def take_transcript(self) -> str:
        """The output since the last call of this method, the last of it where it is long."""
        self.read_output()
        taken, self._transcript = self._transcript, ""
        return taken

    def end(self) -> None:
        """Ends it with all that it started; calling it again changes nothing."""
        if self._output < 0:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._confinement.end(self._name)
        if not self._confinement.hides_answers:
            _end_marked(self._name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self.read_output()
        self._read_report(self._line)
        os.close(self._output)
        self._output = -1

    def kill(self) -> None:
        """Kills it from another thread, which does not wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read_report(self, line: bytes) -> None:
        if not line.lstrip().startswith(b"{") or len(line) > MAX_LINE_BYTES:
            return
        try:
            found = json.loads(line)
            reported = Usage.model_validate(found["usage"]).tokens if "usage" in found else None
        except (ValueError, RecursionError, ValidationError):
            return
        if reported is not None:
            self.tokens = reported
        cost = found.get("total_cost_usd")
        if isinstance(cost, int | float) and 0 <= cost < float("inf"):
            self.cost_usd = float(cost)


def _end_marked(name: str) -> None:
    """Ends the processes that left the session of a program: they have its name in their environment."""
    mark = f"{COOKIE}={name}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(int(entry.name))
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
