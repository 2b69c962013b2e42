"""A Python newer than this one, of Debian's packages, in a folder of its own: nothing of the system is changed.

A framework may need one: the package indexes of Python hold no interpreters. The packages are those of another release
than this machine's, so the interpreter is started by the loader and with the C library that come with it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.doors.commands import run

VERSION = (3, 13)
NAME = "python3.13"
RELEASE = "trixie"
MIRROR = "http://deb.debian.org/debian"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = ("python3.13-minimal", "libpython3.13-stdlib")
FETCH_S = 180
"""Deadline of one command, in seconds."""

SETTINGS = """\
Dir::State "{folder}/state";
Dir::State::status "{folder}/state/status";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferencesparts "-";
Acquire::Languages "none";
Acquire::http::Timeout "20";
Acquire::Retries "1";
APT::Install-Recommends "false";
APT::Sandbox::User "";
"""
LAUNCHER = """\
#!/bin/sh
exec {libraries}/{loader} --library-path {libraries} --argv0 "$0" {program} "$@"
"""


class NoInterpreter(Exception):
    """Raised when the packages cannot be had."""


def is_offered() -> bool:
    """Whether this system has the client, and the keys of the release."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg-deb") is not None and KEYS.exists()


def provide(place: Path) -> Path:
    """The interpreter, in a folder; fetched unless it is there.

    Args:
        place: Folder, which may not move afterwards.

    Raises:
        NoInterpreter: the packages cannot be fetched, or do not run.
    """
    python, complete = place / "usr" / "bin" / NAME, place / ".complete"
    if not complete.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="pkb-doors-") as folder:
            for package in _fetch(Path(folder)):
                _run(["dpkg-deb", "--extract", str(package), str(place)])
        _launch_by_own_loader(python)
        complete.touch()
    return python


def _fetch(folder: Path) -> list[Path]:
    """The packages and all that they depend on."""
    (folder / "state" / "lists" / "partial").mkdir(parents=True)
    (folder / "cache" / "archives" / "partial").mkdir(parents=True)
    (folder / "state" / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={KEYS}] {MIRROR} {RELEASE} main\n", encoding="utf-8")
    (folder / "apt.conf").write_text(SETTINGS.format(folder=folder), encoding="utf-8")
    apt = {"APT_CONFIG": str(folder / "apt.conf")}
    _run(["apt-get", "update", "--quiet", "--error-on=any"], **apt)
    _run(["apt-get", "install", "--quiet", "--yes", "--download-only", *PACKAGES], **apt)
    return sorted((folder / "cache" / "archives").glob("*.deb"))


def _launch_by_own_loader(python: Path) -> None:
    """Puts a launcher in the interpreter's place; libraries named in the environment would reach all its children."""
    (loader,) = python.parents[1].glob("lib/*/ld-linux-*.so.*")
    program = python.with_name(f"{NAME}.program")
    python.rename(program)
    python.write_text(LAUNCHER.format(libraries=loader.parent, loader=loader.name, program=program), encoding="utf-8")
    python.chmod(0o755)
    _run([str(python), "-c", "import ctypes, sqlite3, ssl"])


def _run(command: list[str], **changes: str) -> None:
    done = run(command, FETCH_S, **changes)
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise NoInterpreter("; ".join(lines[-3:]) or f"{' '.join(command)} failed")
