"""Libraries that CUDA kernels are written with: found by an environment variable, else by an installed wheel.

A library counts as found where its own header lies below the folder that was named, with the shared library where it
has one; its header folders are then shown to compilers, that of the shared library too, and nothing else of the folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pkb_gym.engine.support import env_vars


@dataclass(frozen=True)
class Library:
    """A library that is looked for.

    Attributes:
        name: Name of the library, as it is written.
        variable: Environment variable that names the library's folder.
        layouts: Header folders below that folder, one tuple for each way to lay it out.
        header: Header that proves the presence of the library; below the first folder of a layout.
        begins: Prefixes of its headers' names in `#include`.
        wheels: (distribution, folder of the library in site-packages), in order of preference.
        version_header: Header with the version, and the pattern of each number in it; None where it has none.
        remedy: Instructions for the installation.
        note: Limit that an author of kernels has to know.
        runtime: Shared library below the folder's `lib` that a source which includes its headers is linked with; empty
            where there are headers alone.
        device_runtime: Name of the archive of device code beside it, as a linker takes it; empty for none.
        starter: Our header, in `pkb/`, by which ranks start the library.
    """

    name: str
    variable: str
    layouts: tuple[tuple[str, ...], ...]
    header: str
    begins: tuple[str, ...]
    remedy: str
    wheels: tuple[tuple[str, str], ...] = ()
    version_header: tuple[str, str] | None = None
    note: str = ""
    runtime: str = ""
    device_runtime: str = ""
    starter: str = ""


CUTLASS = Library(
    name="CUTLASS",
    variable="CUTLASS_PATH",
    layouts=(("include", "tools/util/include"), ("include",)),
    header="cutlass/cutlass.h",
    begins=("cutlass/", "cute/"),
    remedy="pip install nvidia-cutlass, or set CUTLASS_PATH to a checkout of github.com/NVIDIA/cutlass",
    wheels=(("nvidia-cutlass", "cutlass_library/source"),),
    version_header=("cutlass/version.h", r"#define CUTLASS_(?:MAJOR|MINOR|PATCH) (\d+)"),
)
THUNDERKITTENS = Library(
    name="ThunderKittens",
    variable="THUNDERKITTENS_ROOT",
    layouts=(("include", "prototype"), ("include",)),
    header="kittens.cuh",
    begins=("kittens.cuh", "prototype.cuh", "pyutils/"),
    remedy="set THUNDERKITTENS_ROOT to a checkout of github.com/HazyResearch/ThunderKittens",
    note="a source that includes it is compiled as C++20, with the macro of this architecture",
)
CCCL = Library(
    name="CCCL",
    variable="CCCL_ROOT",
    layouts=(("libcudacxx/include", "cub", "thrust"), ("include/cccl",), ("include",)),
    header="cuda/std/version",
    begins=("cuda/", "cub/", "thrust/"),
    remedy="it comes with the CUDA toolkit; set CCCL_ROOT to a checkout of github.com/NVIDIA/cccl for another version",
    wheels=(("nvidia-cuda-cccl", "nvidia/cu13"), ("nvidia-cuda-cccl-cu12", "nvidia/cuda_cccl")),
    version_header=("cuda/std/__cccl/version.h", r"#define CCCL_VERSION (\d+)"),
)
NVSHMEM = Library(
    name="NVSHMEM",
    variable="NVSHMEM_HOME",
    layouts=(("include",),),
    header="nvshmem.h",
    begins=("nvshmem", "pkb/nvshmem_cuda.h"),
    remedy="pip install nvidia-nvshmem-cu13, or set NVSHMEM_HOME to its folder",
    wheels=(("nvidia-nvshmem-cu13", "nvidia/nvshmem"), ("nvidia-nvshmem-cu12", "nvidia/nvshmem")),
    version_header=(
        "non_abi/nvshmem_version.h",
        r"#define NVSHMEM_VENDOR_(?:MAJOR|MINOR|PATCH)_VERSION (\d+)",
    ),
    note="started before the first call, one PE a rank; `pkb/nvshmem_cuda.h` says how it sees arguments",
    runtime="libnvshmem_host.so.3",
    device_runtime="nvshmem_device",
    starter="pkb/nvshmem_cuda.h",
)
NCCL = Library(
    name="NCCL's device API",
    variable="NCCL_HOME",
    layouts=(("include",),),
    header="nccl_device.h",
    begins=("nccl.h", "nccl_device", "pkb/nccl_cuda.h"),
    remedy="pip install nvidia-nccl-cu13 (2.28 or newer, the version that torch has), or set NCCL_HOME to its folder",
    wheels=(("nvidia-nccl-cu13", "nvidia/nccl"), ("nvidia-nccl-cu12", "nvidia/nccl")),
    version_header=("nccl.h", r"#define NCCL_(?:MAJOR|MINOR|PATCH) (\d+)"),
    note="LSA pointers and barriers, by the communicator of `pkb/nccl_cuda.h`; no GIN, as all ranks are on one node",
    runtime="libnccl.so.2",
    starter="pkb/nccl_cuda.h",
)
KNOWN = (CUTLASS, THUNDERKITTENS, CCCL, NVSHMEM, NCCL)
STARTED = (NVSHMEM, NCCL)
"""Libraries that ranks start for a source that includes their headers."""


@dataclass(frozen=True)
class FoundLibrary:
    """A library on this machine.

    Attributes:
        library: Library that was found.
        folders: Absolute paths of the header folders.
        version: Version of the library; empty where it has none.
        origin: Description of the place where it was found.
        installed: Wheel and its version, or the compiler that it belongs to; None for a folder that any user may have
            changed.
        is_built_in: Whether compilers search its folders by themselves.
        runtime_folder: Folder of its shared library; None where a source is not linked with one.
    """

    library: Library
    folders: tuple[Path, ...]
    version: str
    origin: str
    installed: str | None = None
    is_built_in: bool = False
    runtime_folder: Path | None = None

    @property
    def is_device_linked(self) -> bool:
        """Whether device code is linked with device code of the library."""
        return bool(self.library.device_runtime) and self.runtime_folder is not None

    @property
    def shown(self) -> tuple[Path, ...]:
        """The folders that compilers and ranks read."""
        return self.folders if self.runtime_folder is None else (*self.folders, self.runtime_folder)

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.library.name} {self.version}".rstrip()

    @property
    def identity(self) -> str:
        """Equal for equal headers: the wheel and its version, or a digest of the contents."""
        return f"{self.library.name} {self.installed or content_sha256(self.folders)}"


def mentions(source: str, library: Library) -> bool:
    """Whether a header of the library is named in a source, in angle brackets or quotes."""
    return re.search(rf"[<\"](?:{'|'.join(map(re.escape, library.begins))})", source) is not None


def find_all() -> tuple[FoundLibrary, ...]:
    """The libraries that a variable or a wheel brings."""
    return tuple(found for library in KNOWN if (found := find(library)) is not None)


def find(library: Library) -> FoundLibrary | None:
    """The library as its variable names it, else as a wheel brings it.

    A variable that leads nowhere hides the wheel: whoever set it would not know which headers were taken.
    """
    named = env_vars.folder_named(library.variable)
    if named is not None:
        return _in_folder(library, named, f"{library.variable}={named}")
    for distribution, folder in library.wheels:
        try:
            wheel = importlib.metadata.distribution(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        installed = f"{distribution} {wheel.version}"
        found = _in_folder(library, Path(str(wheel.locate_file(folder))), f"wheel {installed}", installed)
        if found is not None:
            return found
    return None


def why_not_found(library: Library) -> str:
    """The mistake in the variable, or a remark that it is not set."""
    return wrong_variable(library) or f"none; kernels cannot include {library.header}"


def wrong_variable(library: Library) -> str:
    """The mistake in the variable; empty where it is not set, or leads to the library."""
    named = env_vars.folder_named(library.variable)
    if named is None or find(library) is not None:
        return ""
    places = " or ".join(dict.fromkeys(str(Path(layout[0], library.header)) for layout in library.layouts))
    runtime = f" with lib/{library.runtime}" if library.runtime else ""
    return f"{library.variable}={named} has no {places}{runtime}"


def version_of(library: Library, folder: Path) -> str:
    """The version that a header folder declares; empty where it does not."""
    if library.version_header is None:
        return ""
    name, pattern = library.version_header
    try:
        numbers = re.findall(pattern, (folder / name).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    if len(numbers) == 1:  # CCCL's MMMmmmppp
        number = int(numbers[0])
        return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
    return ".".join(numbers[:3])


def content_sha256(folders: tuple[Path, ...]) -> str:
    """A digest of all files in header folders: names and contents."""
    files = tuple(_files(folders))
    return _sha256_of(files)


def _in_folder(library: Library, root: Path, origin: str, installed: str | None = None) -> FoundLibrary | None:
    for layout in library.layouts:
        folders = tuple(root / name for name in layout)
        runtime_folder = root / "lib" if library.runtime else None
        if (
            (folders[0] / library.header).is_file()
            and all(folder.is_dir() for folder in folders)
            and (runtime_folder is None or (runtime_folder / library.runtime).is_file())
        ):
            version = version_of(library, folders[0])
            return FoundLibrary(library, folders, version, origin, installed, runtime_folder=runtime_folder)
    return None


def _files(folders: tuple[Path, ...]) -> Iterator[tuple[Path, int, int]]:
    for folder in folders:
        for parent, subfolders, names in os.walk(folder):
            subfolders.sort()
            for path in (Path(parent, name) for name in sorted(names)):
                if path.is_file():  # a link may lead nowhere
                    state = path.stat()
                    yield path, state.st_size, state.st_mtime_ns


@lru_cache(maxsize=16)
def _sha256_of(files: tuple[tuple[Path, int, int], ...]) -> str:
    """Read again only when a file has another size or time."""
    digest = hashlib.sha256()
    for path, size, _ in files:
        digest.update(f"{path}\0{size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
