"""Header libraries are found where a variable or a wheel says, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.gangs.sandbox import zygote_policy
from pkb_gym.engine.support import env_vars
from pkb_gym.engine.support.header_libraries import (
    CCCL,
    CUTLASS,
    NVSHMEM,
    THUNDERKITTENS,
    find,
    mentions,
    version_of,
    why_not_found,
)
from tests.engine.header_libraries import cutlass, thunderkittens, wheel, without_libraries, write


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    without_libraries(monkeypatch)


def test_a_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cutlass(tmp_path / "cutlass")
    monkeypatch.setenv("CUTLASS_PATH", str(root))
    found = find(CUTLASS)
    assert found is not None and found.title == "CUTLASS 4.2.1"
    assert found.folders == (root / "include", root / "tools/util/include")
    assert found.origin == f"CUTLASS_PATH={root}"


def test_a_variable_that_leads_nowhere_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking the wheel instead would compile against headers that nobody asked for."""
    wheel(tmp_path, "nvidia-cutlass", "4.2.1.0", **{"cutlass_library/source/include/cutlass/cutlass.h": ""})
    monkeypatch.syspath_prepend(tmp_path)
    assert find(CUTLASS) is not None
    monkeypatch.setenv("CUTLASS_PATH", "/nowhere")
    assert find(CUTLASS) is None
    assert why_not_found(CUTLASS) == "CUTLASS_PATH=/nowhere has no include/cutlass/cutlass.h"
    assert why_not_found(THUNDERKITTENS) == "none; kernels cannot include kittens.cuh"


def test_a_wheel_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = "".join(f"#define NVSHMEM_VENDOR_{part}_VERSION 3\n" for part in ("MAJOR", "MINOR", "PATCH"))
    headers = {"nvshmem.h": "", "non_abi/nvshmem_version.h": version}
    wheel(tmp_path, "nvidia-nvshmem-cu13", "3.3.3", **{f"nvidia/nvshmem/include/{k}": v for k, v in headers.items()})
    monkeypatch.syspath_prepend(tmp_path)
    assert find(NVSHMEM) is None, "headers without the library that a kernel is linked with"
    write(tmp_path, **{"nvidia/nvshmem/lib/libnvshmem_host.so.3": ""})
    found = find(NVSHMEM)
    assert found is not None and found.title == "NVSHMEM 3.3.3"
    assert found.shown == (*found.folders, tmp_path / "nvidia/nvshmem/lib")
    assert found.folders == (tmp_path / "nvidia/nvshmem/include",)
    assert found.identity == "NVSHMEM nvidia-nvshmem-cu13 3.3.3"


def test_the_number_of_cccl_is_a_version(tmp_path: Path) -> None:
    write(tmp_path, **{"cuda/std/__cccl/version.h": "#define CCCL_VERSION 3001002\n"})
    assert version_of(CCCL, tmp_path) == "3.1.2"


def test_the_identity_follows_the_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel compiled against a checkout was taken from the cache after a pull."""
    root = cutlass(tmp_path)
    monkeypatch.setenv("CUTLASS_PATH", str(root))

    def identity() -> str:
        found = find(CUTLASS)
        assert found is not None
        return found.identity

    before = identity()
    (root / "secret.txt").write_text("changed")
    assert identity() == before, "no header"
    (root / "include/cutlass/cutlass.h").write_text("// changed")
    assert identity() != before


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("#include <cutlass/cutlass.h>", True),
        ('#include "cute/tensor.hpp"', True),
        ("#if __has_include(<cutlass/version.h>)", True),
        ("// cutlass/cutlass.h is not included", False),
        ("#include <execute/x.h>", False),
    ],
)
def test_sources_that_name_its_headers(source: str, named: bool) -> None:
    assert mentions(source, CUTLASS) is named


def test_ranks_see_the_headers_and_the_variable_and_nothing_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """THUNDERKITTENS_ROOT did not reach the sandbox in which Python solutions build their extensions."""
    root = thunderkittens(tmp_path / "tk")
    monkeypatch.setenv("THUNDERKITTENS_ROOT", str(root))
    shown = [outside for outside, _ in zygote_policy(1 << 20).read_only]
    assert {str(root / "include"), str(root / "prototype")} <= set(shown)
    assert str(root) not in shown
    assert env_vars.for_candidates()["THUNDERKITTENS_ROOT"] == str(root)
