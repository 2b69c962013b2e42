"""Compiler flags for CUDA sources that include a header library: folders, standard, definitions, libraries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pkb_gym.engine.support.header_libraries import (
    CCCL,
    KNOWN,
    THUNDERKITTENS,
    FoundLibrary,
    find,
    find_all,
    mentions,
    version_of,
)

STANDARD = "-std=c++17"

KITTENS_MACROS = {
    "sm_80": "KITTENS_AMPERE",
    "sm_90": "KITTENS_HOPPER",
    "sm_100": "KITTENS_BLACKWELL",
    "sm_103": "KITTENS_SM103",
    "sm_120": "KITTENS_SM120",
}
"""ThunderKittens compiles for exactly one architecture. The first three names are understood by every version of it."""

DRIVER_FOLDERS = ("lib64/stubs", "lib/stubs", "targets/x86_64-linux/lib/stubs", "targets/sbsa-linux/lib/stubs")


def header_libraries(toolkit: Path) -> tuple[FoundLibrary, ...]:
    """The libraries that CUDA sources may include here; the toolkit's CCCL unless a variable names another.

    Args:
        toolkit: Folder of the CUDA toolkit, which brings CCCL.
    """
    own = _cccl_of(toolkit)
    others = [found for found in find_all() if found.library is not CCCL or own is None or found.installed is None]
    if own is not None and all(found.library is not CCCL for found in others):
        others.append(own)
    return tuple(sorted(others, key=lambda found: KNOWN.index(found.library)))


def included_libraries(source: str, toolkit: Path) -> tuple[FoundLibrary, ...]:
    """The libraries whose headers a source names and the compiler does not find by itself."""
    return tuple(
        found for found in header_libraries(toolkit) if not found.is_built_in and mentions(source, found.library)
    )


def options(libraries: Sequence[FoundLibrary], architecture: str, toolkit: Path) -> tuple[str, ...]:
    """Options of nvcc for a source that includes these libraries; the C++ standard comes first.

    Args:
        libraries: Libraries that the source includes, as from `included_libraries`.
        architecture: Architecture of the GPU, such as "sm_90a".
        toolkit: Folder of the CUDA toolkit.
    """
    used = [found.library for found in libraries]
    added = [f"-I{folder}" for found in libraries for folder in found.folders]
    if THUNDERKITTENS not in used:
        return STANDARD, *added
    macro = KITTENS_MACROS.get(architecture.rstrip("a"))
    driver = any((toolkit / folder / "libcuda.so").exists() for folder in DRIVER_FOLDERS)
    return (
        "-std=c++20",
        *added,
        *([f"-D{macro}"] if macro else []),
        *(["-lcuda"] if driver else []),  # for tensor maps
    )


def missing_libraries_note(source: str) -> str:
    """A line for the log of a source that names headers of libraries that are not here; empty where there are none."""
    missing = [library for library in KNOWN if library is not CCCL and mentions(source, library) and not find(library)]
    return "".join(
        f"\nnote: {library.name} is not on this machine, so its headers are not found" for library in missing
    )


def _cccl_of(toolkit: Path) -> FoundLibrary | None:
    for name in ("include/cccl", "include"):
        folder = toolkit / name
        if (folder / CCCL.header).is_file():
            origin = f"CUDA toolkit {toolkit}"
            return FoundLibrary(CCCL, (folder,), version_of(CCCL, folder), origin, origin, is_built_in=True)
    return None
