"""The folders of this machine that a sandbox shows, and those that it never may: this installation, wherever it lies.

Beside what candidates need (system libraries, Python and its packages, the CUDA toolkit) a machine holds what would be
an answer: the known-good kernels of the problems, in a source tree or in site-packages, and compiled ones in the cache.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.problem_folders import folders_with_answers

PACKAGE = Path(__file__).resolve().parents[2]
DISTRIBUTION = "pkb-gym"

_PARTS = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "share")
"""The parts of a prefix that everybody installs into, where sources and whole projects may lie too."""

_SHARED_PREFIXES = (Path("/usr"), Path("/usr/local"))
_TOP = ("/lib", "/lib32", "/lib64", "/bin", "/sbin")
_LOADER_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/alternatives")
COMPILER_FOLDERS = tuple(f"/usr/{part}" for part in _PARTS if part != "share")
"""The folders below /usr that compilers, linkers and the shell need."""


def system_paths() -> tuple[str, ...]:
    """System programs and libraries, without what is merely kept below /usr and /opt."""
    parts = [prefix / part for prefix in _SHARED_PREFIXES for part in _PARTS]
    folders = [*map(str, parts), *_TOP, *_cuda_toolkits(), *_library_folders()]
    return _existing([*folders, *_LOADER_FILES, "/etc/localtime"])


def compiler_paths(programs: Iterable[Path] = ()) -> tuple[str, ...]:
    """The folders and files that compilers need, and no others: an error message may quote a file that is opened.

    Args:
        programs: Programs that the gang runs.
    """
    own = [str(folder) for program in programs for folder in (program.parent, program.resolve().parent)]
    return _existing([*COMPILER_FOLDERS, *_TOP, "/usr/local/include", "/usr/local/lib", *own, *_LOADER_FILES])


def python_paths() -> tuple[tuple[str, str], ...]:
    """System libraries, this Python and its packages, read-only at their own places."""
    hidden = set(hidden_folders())
    shown = list(system_paths())
    prefixes = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), Path(sys.prefix)}
    prefixes |= {Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))}
    prefixes |= {Path(folder) for folder in package_folders()}
    for folder in sorted(prefixes):
        if folder in _SHARED_PREFIXES or str(folder.resolve()) in hidden:
            shown += _existing([str(folder / part) for part in (*_PARTS, "pyvenv.cfg")])
        elif folder.exists():
            shown.append(str(folder))
    return tuple((path, path) for path in dict.fromkeys(shown))


def package_folders() -> tuple[str, ...]:
    """The folders of PYTHONPATH that packages were installed into, absolute: torch may lie in one of them."""
    folders = map(os.path.abspath, env_vars.python_path())
    return tuple(folder for folder in folders if next(Path(folder).glob("*.dist-info"), None) is not None)


def hidden_folders() -> tuple[str, ...]:
    """Real paths of folders that hold this installation, others of its name, other problems, or compiled kernels."""
    return tuple(dict.fromkeys(str(path) for path in _hidden() if path.is_dir()))


def _hidden() -> Iterator[Path]:
    yield from _installation(PACKAGE)
    for linked in PACKAGE.iterdir():
        if linked.is_symlink():
            yield linked.resolve()
    for entry in sys.path:
        yield from _installation(Path(entry, PACKAGE.name).resolve())
    for distribution in importlib.metadata.distributions(name=DISTRIBUTION):
        yield from _installation(Path(str(distribution.locate_file(PACKAGE.name))).resolve())
        url = urlparse(_direct_url(distribution.read_text("direct_url.json")))
        if url.scheme == "file":
            yield Path(unquote(url.path)).resolve()
    yield from folders_with_answers()
    yield env_vars.shared_cache_dir().resolve()


def _installation(package: Path) -> Iterator[Path]:
    """A package, and the source tree that it stands in."""
    if (package / "engine" / "rankside").is_dir():
        yield package
        if (package.parent / "pyproject.toml").is_file():
            yield package.parent


def _direct_url(record: str | None) -> str:
    """The folder that pip installed a distribution from (PEP 610); empty where it is not recorded."""
    try:
        return str(json.loads(record or "{}").get("url", ""))
    except ValueError:
        return ""


def _cuda_toolkits() -> list[str]:
    home = env_vars.cuda_home()
    own = [str(home)] if home is not None and home.is_absolute() else []
    return [*own, *sorted(str(path) for path in Path("/usr/local").glob("cuda*"))]


def _library_folders() -> list[str]:
    """The folders below /usr and /opt in the dynamic loader's configuration."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        folders += [line.strip() for line in file.read_text(errors="replace").splitlines()]
    hidden = hidden_folders()
    return [
        folder
        for folder in folders
        if folder.startswith(("/usr/", "/opt/")) and not is_below(os.path.realpath(folder), hidden)
    ]


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these folders, or lies in one."""
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _existing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for path in paths if Path(path).exists()))
