"""The confinement of a program in its workspace: bubblewrap, a container image, a command prefix, or none.

Bubblewrap shows the system, this Python without this package, the program itself and the workspace: no known-good
kernels, no starters, no tests, no corpus, no home, no other workspace, and no network unless it is allowed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.gangs.sandbox import Policy, bubblewrap_arguments, bubblewrap_works
from pkb_gym.engine.gangs.visible_folders import hidden_folders, is_below, python_paths
from pkb_gym.engine.support import env_vars

Kind: TypeAlias = Literal["bubblewrap", "image", "prefix", "none"]

INSIDE = "/workspace"
"""Path of the workspace inside bubblewrap and containers."""

_ACCOUNTS = ("/etc/passwd", "/etc/group")
_NETWORK = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki", "/etc/ca-certificates"),
    *("/etc/gai.conf", "/etc/services"),
)
"""Files that names and certificates are looked up in."""

_FOLDER = "{folder}"
_END_S = 30.0


@dataclass(frozen=True)
class Confinement:
    """Where and how a program runs.

    Attributes:
        kind: Kind of confinement.
        image: Container image; None without one.
        engine: Path of docker or podman; None without an image.
        prefix: Words before the command, in which {folder} stands for the workspace.
        network: Whether the network can be used.
        variables: Names of variables that are handed on.
        readable: Further paths outside that can be read inside.
    """

    kind: Kind
    image: str | None = None
    engine: str | None = None
    prefix: tuple[str, ...] = ()
    network: bool = False
    variables: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()

    @property
    def hides_answers(self) -> bool:
        """Whether the known-good kernels of this machine are known to be out of reach."""
        return self.kind in ("bubblewrap", "image")

    def command(self, words: Sequence[str], workspace: Path, variables: Mapping[str, str], name: str) -> list[str]:
        """The command line that runs a program.

        Args:
            words: Program and its arguments.
            workspace: Folder that the program works in.
            variables: Variables of the episode.
            name: Name that nothing else of this machine has.
        """
        if self.kind == "bubblewrap":
            return bubblewrap_arguments(self._policy(words, workspace), words)
        if self.kind == "image":
            return [*self._container(workspace, variables, name), *words]
        return [*(word.replace(_FOLDER, str(workspace)) for word in self.prefix), *words]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment of the command.

        Args:
            variables: Variables of the episode.
        """
        if self.kind != "bubblewrap":
            return env_vars.with_changes(**variables)
        own = str(Path(sys.executable).parent)  # the last one, so that there is a Python for ./evaluate
        return env_vars.for_workspaces(self.variables, own, HOME="/tmp", **variables)

    def end(self, name: str) -> None:
        """Ends the container of a name, which outlives the client that started it."""
        if self.engine is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([self.engine, "kill", name], capture_output=True, timeout=_END_S, check=False)

    def _policy(self, words: Sequence[str], workspace: Path) -> Policy:
        files = [word for word in words if word.startswith("/") and Path(word).is_file()]
        etc = (*_ACCOUNTS, *(_NETWORK if self.network else ()))
        wanted = [path for path in (*files, os.path.realpath(words[0]), *self.readable, *etc) if Path(path).exists()]
        shown, hidden = dict(python_paths()), hidden_folders()
        for path in dict.fromkeys(wanted):
            if _depth(path, shown) <= _depth(path, hidden):  # a file cannot be mounted on a link that is seen already
                shown[path] = path
        return Policy(
            read_only=tuple(shown.items()),
            writable=((str(workspace), INSIDE),),
            hidden=hidden,
            dies_with_parent=True,
            network=self.network,
            working_folder=INSIDE,
        )

    def _container(self, workspace: Path, variables: Mapping[str, str], name: str) -> list[str]:
        assert self.engine is not None and self.image is not None, "a container has an engine and an image"
        stat = workspace.stat()
        words = [self.engine, "run", "--rm", "--init", "--name", name, "--user", f"{stat.st_uid}:{stat.st_gid}"]
        words += ["--volume", f"{workspace}:{INSIDE}", "--workdir", INSIDE, "--env", "HOME=/tmp"]
        words += [] if self.network else ["--network", "none"]
        for variable in (*variables, *self.variables):
            words += ["--env", variable]  # the value is that of the client's environment
        for path in self.readable:
            words += ["--volume", f"{path}:{path}:ro"]
        return [*words, self.image]


def _depth(path: str, folders: Iterable[str]) -> int:
    """Length of the longest of these folders that a path lies in; 0 where it lies in none."""
    return max((len(folder) for folder in folders if is_below(path, [folder])), default=0)


def choose_confinement(
    sandbox: Literal["auto", "bubblewrap", "none"],
    image: str | None,
    prefix: str | None,
    *,
    network: bool,
    variables: tuple[str, ...],
    readable: tuple[str, ...],
) -> Confinement:
    """The confinement that options ask for.

    Args:
        sandbox: "bubblewrap", "none", or "auto": bubblewrap where it works.
        image: Container image, in place of a sandbox.
        prefix: Command prefix, in place of a sandbox.
        network: Whether the network can be used.
        variables: Names of variables that are handed on.
        readable: Further paths that can be read.

    Raises:
        ConfigError: Two of them are asked for, or this machine has not what is asked for.
    """
    if sum((sandbox != "auto", image is not None, prefix is not None)) > 1:
        raise ConfigError("agent workspace: give one of sandbox, image and prefix")
    if image is not None:
        engine = shutil.which("docker") or shutil.which("podman")
        if engine is None:
            raise ConfigError("agent workspace: an image needs docker or podman on PATH")
        return Confinement("image", image, engine, (), network, variables, readable)
    if prefix is not None:
        return Confinement("prefix", prefix=_prefix_words(prefix), network=True)
    if sandbox == "bubblewrap" and not bubblewrap_works():
        raise ConfigError("agent workspace: bubblewrap is not installed, or may make no namespaces here")
    if sandbox == "none" or not bubblewrap_works():
        return Confinement("none", network=True)
    missing = [path for path in readable if not Path(path).exists()]
    if missing:
        raise ConfigError(f"agent workspace: readable={missing[0]}: there is no such path")
    return Confinement("bubblewrap", network=network, variables=variables, readable=readable)


def _prefix_words(prefix: str) -> tuple[str, ...]:
    try:
        words = shlex.split(prefix)
    except ValueError as error:
        raise ConfigError(f"agent workspace: prefix={prefix!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"agent workspace: prefix={prefix!r}: no such program on PATH")
    return tuple(words)
