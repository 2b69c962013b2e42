"""The virtual environments of the doors: what each needs, and how it is installed."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.doors.commands import HERE, ROOT, run

INSTALL_S = 600
"""Deadline of one command, in seconds."""

SIDE_BY_SIDE = 2
"""Installations at once, as each waits for the index and the disk."""

UV = "uv==0.13.9"
"""Installs a door in seconds; pip spends half a minute of processor time on it."""

NEWEST_PYTHON = {"verl": (3, 12)}
"""Door -> the newest Python that its framework takes."""
OLDEST_PYTHON = {"harbor": (3, 12)}
"""Door -> the oldest Python that its framework takes."""
DISTRIBUTIONS = {"trl": "openenv"}
"""Door -> the folder of adapters/ that is installed for it, where that has another name."""
SHARES_PACKAGES = {"trl", "verl"}
"""Doors that see the packages of this environment behind their own: torch takes half a gigabyte."""


@dataclass(frozen=True)
class Door:
    """One framework.

    Attributes:
        name: of its folder.
        venv: its virtual environment; for the frameworks that this environment holds, None.
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


def install_all(chosen: list[Door], venvs: Path) -> dict[str, str]:
    """Brings environments in line with their requirements; the doors whose could not be, and why."""
    waiting = [door for door in chosen if door.venv is not None and not _is_installed(door)]
    reasons = {door.name: reason for door in waiting if (reason := _wrong_python(door)) is not None}
    waiting = [door for door in waiting if door.name not in reasons]
    uv = _uv(venvs) if waiting else None
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        for door, reason in zip(waiting, threads.map(lambda door: _install(door, uv), waiting), strict=True):
            if reason is not None:
                reasons[door.name] = reason
    return reasons


def _wrong_python(door: Door) -> str | None:
    here, this = sys.version_info[:2], sys.version.split()[0]
    if (newest := NEWEST_PYTHON.get(door.name, here)) < here:
        return f"it needs Python {'.'.join(map(str, newest))} or older, and this is {this}"
    if (oldest := OLDEST_PYTHON.get(door.name, here)) > here:
        return f"it needs Python {'.'.join(map(str, oldest))} or newer, and this is {this}"
    return None


def _uv(venvs: Path) -> Path | None:
    """The program uv; None where it cannot be had, so that pip takes its place."""
    folder = venvs / "uv"
    found = folder / "bin" / "uv"
    if not found.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        run([*pip, "install", "--no-deps", "--upgrade", "--target", str(folder), UV], INSTALL_S)
    return found if found.exists() else None


def _install(door: Door, uv: Path | None) -> str | None:
    """Makes the environment of a door anew; what went wrong, or None."""
    assert door.venv is not None
    # Where uv reaches no index, pip may: it has settings of its own.
    for make, installer in (*([] if uv is None else [_by_uv(uv, door)]), _by_pip(door)):
        wrong = _install_by(door, make, installer)
        if wrong is None:
            break
    else:
        return wrong
    if door.name in SHARES_PACKAGES:
        packages = sysconfig.get_path("purelib")
        library = sysconfig.get_path("purelib", vars={"base": str(door.venv), "platbase": str(door.venv)})
        Path(library, "zz_main_environment.pth").write_text(f"{packages}\n", encoding="utf-8")
    _state(door).write_text(_digest(door), encoding="utf-8")
    return None


def _by_uv(uv: Path, door: Door) -> tuple[list[str], list[str]]:
    """The commands that make an environment, and that install into it without what packages depend on."""
    make = [str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(door.venv)]
    return make, [str(uv), "pip", "install", "--quiet", "--no-deps", "--python", door.python]


def _by_pip(door: Door) -> tuple[list[str], list[str]]:
    """The same."""
    pip = [door.python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    return [sys.executable, "-m", "venv", "--clear", str(door.venv)], [*pip, "install", "--no-deps"]


def _install_by(door: Door, make: list[str], installer: list[str]) -> str | None:
    # All packages are pinned there, which spares the search for versions that fit.
    commands = [make, [*installer, "--requirement", str(door.folder / "constraints.txt")]]
    with tempfile.TemporaryDirectory(prefix="pkb-doors-") as temporary:
        if door.distribution is not None:
            # Built from a copy: setuptools leaves folders where it builds.
            copy = Path(temporary, door.distribution.name)
            commands.append(["cp", "-r", str(door.distribution), str(copy)])
            commands.append([*installer, "--no-build-isolation", str(copy)])
        for command in commands:
            done = run(command, INSTALL_S)
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
