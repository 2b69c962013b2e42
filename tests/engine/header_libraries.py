"""Header libraries made up for tests: in folders that variables name, and as installed wheels."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from pkb_gym.engine.support.header_libraries import KNOWN

CUTLASS_VERSION = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n"


def write(folder: Path, **texts: str) -> Path:
    """Files, by name."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def cutlass(root: Path) -> Path:
    """A checkout with a function `four` on the device."""
    headers = {
        "include/cutlass/cutlass.h": "#pragma once\n__device__ inline float four() { return 4; }\n",
        "include/cutlass/version.h": CUTLASS_VERSION,
        "tools/util/include/cutlass/util.h": "",
        "secret.txt": "no header",
    }
    return write(root, **headers)


def thunderkittens(root: Path) -> Path:
    """A checkout that asks for what the real one asks for: C++20, one architecture."""
    header = """\
#pragma once
#if !defined(KITTENS_HOPPER)
#error "Define exactly one architecture"
#endif
template <class T> concept Number = requires(T x) { x + x; };
template <Number T> __device__ T twice(T x) { return x + x; }
"""
    return write(root, **{"include/kittens.cuh": header, "prototype/prototype.cuh": ""})


def wheel(site: Path, distribution: str, version: str, **files: str) -> Path:
    """An installed wheel."""
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    return write(site, **files, **{f"{info}/METADATA": metadata})


def nvshmem_and_nccl(root: Path) -> tuple[Path, Path]:
    """Folders of the two, as far as options of compilers go."""
    nvshmem = write(root / "nvshmem", **{"include/nvshmem.h": "", "lib/libnvshmem_host.so.3": ""})
    nccl = write(root / "nccl", **{"include/nccl.h": "", "include/nccl_device.h": "", "lib/libnccl.so.2": ""})
    return nvshmem, nccl


def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a variable nor a wheel brings a library, whatever this machine has; wheels of folders added later do.

    Builds of torch for CUDA depend on the wheels of NCCL and NVSHMEM.
    """
    for library in KNOWN:
        monkeypatch.delenv(library.variable, raising=False)
    names = {distribution for library in KNOWN for distribution, _ in library.wheels}
    folders = [Path(entry) for entry in sys.path]
    distribution_of = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        found = distribution_of(name)
        if name in names and Path(str(found.locate_file(""))) in folders:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
