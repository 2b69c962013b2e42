"""Sets up a virtual environment for each foreign framework and runs the tests of its door there: `make doors`.

    python -m tests.doors [--venvs FOLDER] [NAME ...]

Doors: the folders beside this file. The packages of a constraints.txt are installed from the package index; they were
resolved from the requirements.txt beside it. The service that judges runs in the environment of this interpreter, so
that the doors need no torch. A door that cannot be installed here is skipped and named at the end; a test that fails
fails all.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CONTRACT_S, INSTALL_S, TESTS_S = 600, 600, 600
"""Deadlines in seconds: of judging the contract, of one installation, of the tests of one door."""

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


def install(door: Door) -> str | None:
    """Brings the environment of a door in line with its requirements; what is missing, or None."""
    if door.venv is None:
        return None
    newest = NEWEST_PYTHON.get(door.name)
    if newest is not None and sys.version_info[:2] > newest:
        return f"it needs Python {'.'.join(map(str, newest))} or older, and this is {sys.version.split()[0]}"
    oldest = OLDEST_PYTHON.get(door.name)
    if oldest is not None and sys.version_info[:2] < oldest:
        return f"it needs Python {'.'.join(map(str, oldest))} or newer, and this is {sys.version.split()[0]}"
    state = door.venv / ".installed"
    digest = _digest(door)
    if state.exists() and state.read_text(encoding="utf-8") == digest:
        return None
    with tempfile.TemporaryDirectory(prefix="pkb-doors-") as temporary:
        for command in _installation(door, Path(temporary)):
            done = _run(command, INSTALL_S)
            if done.returncode != 0:
                lines = [line for line in done.stdout.splitlines() if line.strip() and "WARNING" not in line]
                return "; ".join(lines[-3:]) or f"{' '.join(command)} failed"
    if door.name in SHARES_PACKAGES:
        packages = sysconfig.get_path("purelib")
        library = sysconfig.get_path("purelib", vars={"base": str(door.venv), "platbase": str(door.venv)})
        Path(library, "zz_main_environment.pth").write_text(f"{packages}\n", encoding="utf-8")
    state.write_text(digest, encoding="utf-8")
    return None


def install_all(chosen: list[Door]) -> dict[str, str]:
    """Installs two at a time, as that waits for the index and the disk; the doors that could not be, and why."""
    with ThreadPoolExecutor(2) as threads:
        reasons = dict(zip((door.name for door in chosen), threads.map(install, chosen), strict=True))
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _installation(door: Door, temporary: Path) -> Iterator[list[str]]:
    pip = [door.python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    yield [sys.executable, "-m", "venv", "--clear", str(door.venv)]
    # All packages are pinned there, which spares the search for versions that fit.
    yield [*pip, "install", "--no-deps", "--requirement", str(door.folder / "constraints.txt")]
    if door.distribution is not None:
        # Built from a copy: setuptools leaves folders where it builds.
        copy = temporary / door.distribution.name
        yield ["cp", "-r", str(door.distribution), str(copy)]
        yield [*pip, "install", "--no-deps", "--no-build-isolation", str(copy)]


def _digest(door: Door) -> str:
    folders = [door.folder, *([] if door.distribution is None else [door.distribution])]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    kept = [path for path in files if path.suffix not in (".pyc",) and not path.name.startswith("test_")]
    parts = [sys.version, *(f"{path.relative_to(ROOT)}\n{path.read_text(encoding='utf-8')}" for path in kept)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@contextmanager
def service(contract: Path, token: str) -> Iterator[subprocess.Popen[str]]:
    """The service of the contract, which begins to judge at once."""
    command = [sys.executable, "-m", "tests.doors.service", str(contract)]
    caches = str(contract.with_name("caches"))
    environment = _environment(PKB_TOKEN=token, PKB_CACHE_DIR=caches)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_tests(door: Door, contract: Path, token: str) -> bool:
    """The tests of one door, in its environment."""
    command = [
        door.python,
        "-m",
        "pytest",
        "-c",
        str(HERE / "pytest.ini"),
        f"--rootdir={ROOT}",
        "-p",
        "no:cacheprovider",
    ]
    command += [f"--confcutdir={HERE}", str(door.folder)]
    # Task texts tell the speed of a machine that was measured, so no door may see measurements of another.
    caches = str(contract.with_name(f"caches-{door.name}"))
    shared = {
        "PKB_CACHE_DIR": caches,
        "PKB_DOORS_CONTRACT": str(contract),
        "PKB_TOKEN": token,
        "PKB_DOORS_PYTHON": sys.executable,
    }
    return _run(command, TESTS_S, echo=True, **shared).returncode == 0


def _environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def _run(command: list[str], limit_s: float, *, echo: bool = False, **changes: str) -> subprocess.CompletedProcess[str]:
    """A command, from the root of the repository; ended after `limit_s`."""
    stdout = None if echo else subprocess.PIPE
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(**changes),
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, f"{' '.join(command)} took more than {limit_s:g} s", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.doors", description=__doc__.splitlines()[0])
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-doors", help="folder of the virtual environments")
    parser.add_argument("names", nargs="*", metavar="NAME", help="doors; all by default")
    options = parser.parse_args()
    chosen = doors(options.venvs.absolute(), options.names)
    token, began = secrets.token_hex(16), time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="pkb-doors-") as folder:
        contract = Path(folder, "contract.json")
        with service(contract, token) as judging, ThreadPoolExecutor(1) as threads:
            assert judging.stdout is not None
            judged = threads.submit(judging.stdout.readline)  # while packages are installed
            say(f"installing {', '.join(door.name for door in chosen)}; the contract is being judged")
            missing = install_all(chosen)
            say("installed")
            try:
                line = judged.result(timeout=CONTRACT_S).strip()
            except TimeoutError:
                judging.kill()
                line = ""
            if not line:
                say("the contract could not be judged; see above")
                return 1
            say(line)
            failed = []
            for door in chosen:
                if door.name in missing:
                    continue
                say(f"tests of {door.name}")
                if not run_tests(door, contract, token):
                    failed.append(door.name)
    for name, reason in missing.items():
        say(f"SKIPPED {name}: it cannot be installed here: {reason}")
    say(f"FAILED: {', '.join(failed)}" if failed else f"{len(chosen) - len(missing)} of {len(chosen)} doors passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
