"""The virtual environments of the doors: what each needs, and how it is installed."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.doors import debian_python, uv
from tests.doors.commands import HERE, ROOT, run

SIDE_BY_SIDE = 2
"""Installations at once, as each waits for the index and the disk."""

NEWEST_PYTHON = {"verl": (3, 12)}
"""Door -> the newest Python that its framework takes."""
OLDEST_PYTHON = {"harbor": (3, 12)}
"""Door -> the oldest Python that its framework takes; an older machine gets one of Debian's for it."""
DISTRIBUTIONS = {"trl": "openenv"}
"""Door -> the folder of adapters/ that is installed for it, where that has another name."""
SHARES_PACKAGES = {"trl", "verl", "vllm"}
"""Doors that see the packages of this environment behind their own: torch takes half a gigabyte."""


@dataclass(frozen=True)
class Door:
    """One framework.

    Attributes:
        name: Name of its folder.
        venv: Virtual environment; None for the frameworks that this environment holds.
    """

    name: str
    venv: Path | None

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def python(self) -> str:
        return sys.executable if self.venv is None else str(self.venv / "bin" / "python")

    @property
    def distribution(self) -> Path | None:
        folder = ROOT / "adapters" / DISTRIBUTIONS.get(self.name, self.name)
        return folder if folder.is_dir() else None


def doors(venvs: Path, names: list[str]) -> list[Door]:
    """The doors asked for; all, where none is named."""
    known = sorted(each.name for each in HERE.iterdir() if any(each.glob("test_*.py")))
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"no door {', '.join(unknown)}; there are {', '.join(known)}")
    own = {name for name in known if (HERE / name / "requirements.txt").exists()}
    return [Door(name, venvs / name if name in own else None) for name in names or known]


class NotInstalled(Exception):
    """Raised when the environment of a door cannot be made."""


class NotForThisPython(NotInstalled):
    """Raised when a framework takes neither this Python nor one that can be had here."""


def install_all(chosen: list[Door], venvs: Path) -> dict[str, NotInstalled]:
    """Brings environments in line with their requirements; the doors whose could not be, and why."""
    installer = Installer(venvs)

    def attempt(door: Door) -> NotInstalled | None:
        try:
            installer.install(door)
        except NotInstalled as error:
            return error
        return None

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        reasons = zip(chosen, threads.map(attempt, chosen), strict=True)
        return {door.name: reason for door, reason in reasons if reason is not None}


class Installer:
    """Brings environments in line with their requirements; safe to use from several threads.

    Args:
        venvs: Folder of the environments.
    """

    def __init__(self, venvs: Path) -> None:
        self._venvs = venvs
        self._fetching = threading.Lock()

    def install(self, door: Door) -> None:
        """Makes the environment of a door anew, unless it is as its pins say.

        Raises:
            NotInstalled: with the reason.
        """
        if door.venv is None or _is_installed(door):
            return
        python, program = self._python_for(door), self._uv()
        # Where uv reaches no index, pip may.
        for make, installer in (*([] if program is None else [_by_uv(program, python, door)]), _by_pip(python, door)):
            if (reason := _install_by(door, make, installer)) is None:
                break
        else:
            raise NotInstalled(reason)
        if door.name in SHARES_PACKAGES:
            packages = sysconfig.get_path("purelib")
            library = sysconfig.get_path("purelib", vars={"base": str(door.venv), "platbase": str(door.venv)})
            Path(library, "zz_main_environment.pth").write_text(f"{packages}\n", encoding="utf-8")
        _state(door).write_text(_digest(door), encoding="utf-8")

    def _python_for(self, door: Door) -> str:
        """The interpreter of a door's environment."""
        here, this = sys.version_info[:2], sys.version.split()[0]
        if (newest := NEWEST_PYTHON.get(door.name, here)) < here:
            raise NotForThisPython(f"it needs Python {'.'.join(map(str, newest))} or older, and this is {this}")
        if (oldest := OLDEST_PYTHON.get(door.name, here)) <= here:
            return sys.executable
        if oldest > debian_python.VERSION or not debian_python.is_offered():
            raise NotForThisPython(f"it needs Python {'.'.join(map(str, oldest))} or newer, and this is {this}")
        with self._fetching:
            try:
                return str(debian_python.provide(self._venvs / debian_python.NAME))
            except debian_python.NoInterpreter as error:
                raise NotInstalled(f"{debian_python.NAME} of Debian cannot be had: {error}") from None

    def _uv(self) -> Path | None:
        """The program uv; None where it cannot be had, so that pip takes its place."""
        with self._fetching:
            return uv.provide(self._venvs)


def _pip(*options: str) -> list[str]:
    """The pip of this environment, which installs into others too."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *options]


def _by_uv(program: Path, python: str, door: Door) -> tuple[list[str], list[str]]:
    """The commands that make an environment, and that install into it without what packages depend on."""
    make = [str(program), "venv", "--quiet", "--clear", "--python", python, str(door.venv)]
    return make, [str(program), "pip", "install", "--quiet", "--no-deps", "--python", door.python]


def _by_pip(python: str, door: Door) -> tuple[list[str], list[str]]:
    """The same."""
    make = [python, "-m", "venv", "--without-pip", "--clear", str(door.venv)]
    return make, [*_pip("--python", door.python), "install", "--no-deps"]


def _install_by(door: Door, make: list[str], installer: list[str]) -> str | None:
    """Runs the commands; what went wrong, or None."""
    # All packages are pinned there, which spares the search for versions that fit.
    commands = [make, [*installer, "--requirement", str(door.folder / "constraints.txt")]]
    with tempfile.TemporaryDirectory(prefix="pkb-doors-") as temporary:
        if door.distribution is not None:
            # Built from a copy: setuptools leaves folders where it builds.
            copy = Path(temporary, door.distribution.name)
            commands.append(["cp", "-r", str(door.distribution), str(copy)])
            commands.append([*installer, "--no-build-isolation", str(copy)])
        for command in commands:
            done = run(command, uv.INSTALL_S, **uv.PATIENCE)
            if done.returncode != 0:
                lines = [line for line in done.stdout.splitlines() if line.strip() and "WARNING" not in line]
                return "; ".join(lines[-3:]) or f"{' '.join(command)} failed"
    return None


def _is_installed(door: Door) -> bool:
    return _state(door).exists() and _state(door).read_text(encoding="utf-8") == _digest(door)


def _state(door: Door) -> Path:
    assert door.venv is not None
    return door.venv / ".installed"


def _digest(door: Door) -> str:
    folders = [door.folder, *([] if door.distribution is None else [door.distribution])]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    kept = [path for path in files if path.suffix not in (".pyc",) and not path.name.startswith("test_")]
    parts = [sys.version, *(f"{path.relative_to(ROOT)}\n{path.read_text(encoding='utf-8')}" for path in kept)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
