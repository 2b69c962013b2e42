"""Compiler flags for CUDA sources that include a library: folders, standard, definitions, what they are linked with.

On emulated GPUs the package rank_emulator has headers of its own for the libraries that ranks start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pkb_gym.engine.rankside.thunderkittens import MACROS
from pkb_gym.engine.support.emulator_package import emulator_package
from pkb_gym.engine.support.header_libraries import (
    CCCL,
    KNOWN,
    STARTED,
    THUNDERKITTENS,
    FoundLibrary,
    find_all,
    mentions,
    version_of,
)

STANDARD = "-std=c++17"
NO_DEVICE_LINK = "--no-device-link"
"""Option for sources without separately compiled device code; archives of device code are linked to such alone."""

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


def included_libraries(source: str, toolkit: Path, *, emulated: bool = False) -> tuple[FoundLibrary, ...]:
    """The libraries whose headers a source names and the compiler does not find by itself.

    Args:
        source: Source text of one translation unit.
        toolkit: Folder of the CUDA toolkit.
        emulated: Whether it is compiled for emulated GPUs.
    """
    here = header_libraries(toolkit)
    if emulated and (package := emulator_package()) is not None:
        headers = (package / "include",)
        own = [FoundLibrary(library, headers, "", f"package {package.name}") for library in STARTED]
        here = (*(found for found in here if found.library not in STARTED), *own)
    return tuple(found for found in here if not found.is_built_in and mentions(source, found.library))


def is_started(source: str) -> bool:
    """Whether ranks start a library for a source: NVSHMEM, or NCCL."""
    return any(mentions(source, library) for library in STARTED)


def with_libraries(
    flags: Sequence[str], libraries: Sequence[FoundLibrary], architecture: str, toolkit: Path
) -> tuple[str, ...]:
    """The flags of nvcc for a source that includes these libraries; arguments as `options`."""
    kept = flags
    if any(found.is_device_linked for found in libraries):
        kept = [flag for flag in flags if flag != NO_DEVICE_LINK]
    return (*options(libraries, architecture, toolkit), *kept)


def options(libraries: Sequence[FoundLibrary], architecture: str, toolkit: Path) -> tuple[str, ...]:
    """Options of nvcc for a source that includes these libraries; the C++ standard comes first.

    Args:
        libraries: Libraries that the source includes, as from `included_libraries`.
        architecture: Architecture of the GPU, such as "sm_90a".
        toolkit: Folder of the CUDA toolkit.
    """
    used = [found.library for found in libraries]
    added = [f"-I{folder}" for folder in dict.fromkeys(folder for found in libraries for folder in found.folders)]
    for found in libraries:
        if found.library.starter:
            added += ["-include", found.library.starter]
        if found.runtime_folder is not None:
            added += [f"-L{found.runtime_folder}", f"-Xlinker=-rpath,{found.runtime_folder}"]
            if found.is_device_linked:
                added += ["-rdc=true", f"-l{found.library.device_runtime}"]
            added.append(f"-l:{found.library.runtime}")  # a wheel has no link without the number
    if THUNDERKITTENS not in used:
        return STANDARD, *added
    macro = MACROS.get(architecture.rstrip("a"))
    driver = any((toolkit / folder / "libcuda.so").exists() for folder in DRIVER_FOLDERS)
    return (
        "-std=c++20",
        *added,
        *([f"-D{macro}"] if macro else []),
        *(["-lcuda"] if driver else []),  # for tensor maps
    )


def missing_libraries_note(source: str, found: Sequence[FoundLibrary]) -> str:
    """A line for the log of a source that names headers of libraries that are not here; empty where there are none.

    Args:
        source: Source text of one translation unit.
        found: Libraries that it was compiled with.
    """
    here = [CCCL, *(each.library for each in found)]
    missing = [library for library in KNOWN if library not in here and mentions(source, library)]
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
