"""The agent `workspace`: a program that edits, evaluates and submits by itself in a folder of its own."""

from __future__ import annotations

import shlex
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field

from pkb_gym.agents.options import parse_options
from pkb_gym.agents.protocol import AgentError, Setting
from pkb_gym.agents.workspace.coding_clis import command_words
from pkb_gym.agents.workspace.confinement import Confinement, choose_confinement
from pkb_gym.agents.workspace.folder import PROMPT
from pkb_gym.agents.workspace.process import WorkspaceProcess
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.base import Record


class WorkspaceOptions(Record):
    """Options of the agent."""

    minutes: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Time of the program in minutes, evaluations excluded."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens that the program may report; no limit by default."""
    sandbox: Literal["auto", "bubblewrap", "none"] = "auto"
    """bubblewrap, none, or auto: bubblewrap where it works."""
    image: str | None = Field(default=None, min_length=1)
    """Container image that docker or podman runs, in place of the sandbox."""
    prefix: str | None = Field(default=None, min_length=1)
    """Command before the program, in place of the sandbox; {folder} in it stands for the workspace."""
    network: bool = False
    """Whether the program can use the network."""
    variables: str = ""
    """Names of environment variables that are handed on, with commas between them."""
    readable: str = ""
    """Further paths that the program can read, with colons between them."""


@dataclass(frozen=True)
class WorkspaceProvider:
    """Programs in workspaces.

    Attributes:
        words: Program and its arguments; {prompt} and {solution} are open.
        command: Command line as it was given.
        options: Options of the agent.
        confinement: Where and how the program runs.
    """

    words: tuple[str, ...]
    command: str
    options: WorkspaceOptions
    confinement: Confinement
    _running: dict[int, WorkspaceProcess] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The command, its budget, and its confinement."""
        chosen = self.confinement
        return {
            "command": self.command,
            "minutes": self.options.minutes,
            "tokens": self.options.tokens,
            "sandbox": chosen.kind,
            "image": chosen.image,
            "prefix": self.options.prefix,
            "network": chosen.network,
            "variables": ",".join(chosen.variables),
            "readable": ":".join(chosen.readable),
        }

    @property
    def warning(self) -> str | None:
        """The warning that the program can read the answers; None where they are hidden from it."""
        if self.confinement.hides_answers:
            return None
        if self.confinement.kind == "prefix":
            return "what the command prefix hides is not known here: the known-good kernels lie on this machine"
        return (
            "NOTHING IS HIDDEN from the program: it runs with your rights, and the known-good kernels lie on this "
            "machine. Install bubblewrap, or give --set image=IMAGE"
        )

    def start(self, workspace: Path, output: Path, solution: str, variables: Mapping[str, str]) -> WorkspaceProcess:
        """Starts the program in a workspace.

        Args:
            workspace: Folder that it works in.
            output: File for its output.
            solution: Name of the file that it is to write.
            variables: Variables of the episode.

        Raises:
            AgentError: It cannot be started, or the run has ended.
        """
        words = [word.replace("{prompt}", PROMPT).replace("{solution}", solution) for word in self.words]
        with self._lock:
            if self._closed.is_set():
                raise AgentError("the run has ended")
            process = WorkspaceProcess(self.confinement, words, workspace, output, variables)
            self._running[id(process)] = process
        return process

    def end(self, process: WorkspaceProcess) -> None:
        """Ends a program with all that it started."""
        process.end()
        with self._lock:
            self._running.pop(id(process), None)

    def close(self) -> None:
        """Ends the programs that still run; no other is started."""
        with self._lock:
            self._closed.set()
            for process in self._running.values():
                process.kill()


def open_provider(argument: str, options: Mapping[str, str]) -> WorkspaceProvider:
    """The provider of a program in workspaces, for `registry.open_agent`.

    Raises:
        ConfigError: There is no such program, or this machine has not the confinement that is asked for.
    """
    chosen = parse_options("workspace", WorkspaceOptions, options)
    try:
        given = tuple(shlex.split(argument))
    except ValueError as error:
        raise ConfigError(f"agent workspace: {argument!r}: {error}") from None
    if chosen.image is None:  # the program runs in another folder
        given = (given[0], *(str(Path(word).absolute()) if Path(word).is_file() else word for word in given[1:]))
    words, keys = command_words(given)
    confinement = choose_confinement(
        chosen.sandbox,
        chosen.image,
        chosen.prefix,
        network=chosen.network,
        variables=(*keys, *_listed(chosen.variables, ",")),
        readable=tuple(str(Path(path).expanduser().absolute()) for path in _listed(chosen.readable, ":")),
    )
    if chosen.image is None:
        program = shutil.which(words[0])
        if program is None:
            raise ConfigError(f"agent workspace: no program {words[0]!r} on PATH, or it cannot be executed")
        words = (str(Path(program).absolute()), *words[1:])
    return WorkspaceProvider(words, argument, chosen, confinement)


def _listed(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]
