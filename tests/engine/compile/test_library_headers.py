"""CUDA sources that include header libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.cli import doctor_libraries
from pkb_gym.cli.doctor_libraries import examine_libraries
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.compile.library_headers import header_libraries, included_libraries, options, with_libraries
from pkb_gym.engine.compile.nvcc import FLAGS, compile_cuda, nvcc_available
from pkb_gym.engine.compile.toolchain import exports_solution
from pkb_gym.engine.records.compiler_report import InstructionCounts
from pkb_gym.engine.stages import execution_environment
from pkb_gym.engine.support.emulator_package import emulator_package
from pkb_gym.engine.support.header_libraries import NCCL, NVSHMEM, find
from pkb_gym.envs.text import contracts
from pkb_gym.problems.catalogue import find_problem
from tests.engine.candidates import Candidate, candidates
from tests.engine.header_libraries import (
    cutlass,
    nvshmem_and_nccl,
    thunderkittens,
    wheel,
    without_libraries,
    write,
)

needs_nvcc = pytest.mark.skipif(not nvcc_available(), reason="needs nvcc, of the CUDA toolkit, and g++")

KERNEL = """
#include "cutlass/cutlass.h"
#include "kittens.cuh"
__global__ void kernel(float* out) { out[threadIdx.x] = twice(four()); }
extern "C" int __tvm_ffi_solution() { return 0; }
"""
READS_BESIDE = '#include "cutlass/cutlass.h"\n#include "../secret.txt"\n'


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    without_libraries(monkeypatch)
    execution_environment.describe.cache_clear()


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A CUDA toolkit, as far as its CCCL goes."""
    version = {"cuda/std/version": "", "cuda/std/__cccl/version.h": "#define CCCL_VERSION 3000001\n"}
    return write(tmp_path / "cuda", **{f"include/cccl/{name}": text for name, text in version.items()})


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CUTLASS and ThunderKittens."""
    monkeypatch.setenv("CUTLASS_PATH", str(cutlass(tmp_path / "cutlass")))
    monkeypatch.setenv("THUNDERKITTENS_ROOT", str(thunderkittens(tmp_path / "tk")))
    return tmp_path


@needs_nvcc
@pytest.mark.usefixtures("checkouts")
def test_a_kernel_includes_what_is_configured(tmp_path: Path) -> None:
    artifact = compile_cuda(KERNEL, CompileCache(tmp_path / "cache"), 110.0, "sm_90a")
    assert artifact.ok, artifact.log
    assert [kernel.name for kernel in artifact.kernels] == ["kernel"]


@needs_nvcc
def test_without_configuration_it_is_refused_with_the_reason(tmp_path: Path) -> None:
    artifact = compile_cuda(KERNEL, CompileCache(tmp_path / "cache"), 110.0, "sm_90a")
    assert not artifact.ok
    assert "cutlass/cutlass.h: No such file" in artifact.log
    assert "note: CUTLASS is not on this machine" in artifact.log
    assert "note: ThunderKittens is not on this machine" in artifact.log


@needs_nvcc
@pytest.mark.usefixtures("checkouts")
def test_what_lies_beside_the_headers_is_not_shown(tmp_path: Path) -> None:
    artifact = compile_cuda(READS_BESIDE, CompileCache(tmp_path / "cache"), 110.0, "sm_90a")
    assert not artifact.ok and "no header" not in artifact.log.replace("no header of the compiler", "")


@pytest.mark.usefixtures("checkouts")
def test_only_what_a_source_includes_changes_its_compilation(toolkit: Path) -> None:
    """Otherwise every kernel of the cache would be compiled again when a library comes."""
    assert included_libraries("#include <cuda_bf16.h>\n#include <cuda/barrier>\n", toolkit) == ()
    assert options((), "sm_90a", toolkit) == ("-std=c++17",)
    used = included_libraries('#include "kittens.cuh"', toolkit)
    assert [found.library.name for found in used] == ["ThunderKittens"]
    assert options(used, "sm_90a", toolkit)[0] == "-std=c++20"
    assert "-DKITTENS_SM120" in options(used, "sm_120a", toolkit)


def test_what_ranks_start_is_linked(toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvshmem, nccl = nvshmem_and_nccl(tmp_path)
    monkeypatch.setenv("NVSHMEM_HOME", str(nvshmem))
    monkeypatch.setenv("NCCL_HOME", str(nccl))
    used = included_libraries("#include <nvshmem.h>", toolkit)
    flags = with_libraries(FLAGS, used, "sm_90a", toolkit)
    assert flags[1:4] == (f"-I{nvshmem}/include", "-include", "pkb/nvshmem_cuda.h")
    assert {f"-L{nvshmem}/lib", f"-Xlinker=-rpath,{nvshmem}/lib", "-rdc=true", "-lnvshmem_device"} < {*flags}
    assert "-l:libnvshmem_host.so.3" in flags and "--no-device-link" not in flags
    used = included_libraries('#include "pkb/nccl_cuda.h"', toolkit)
    flags = with_libraries(FLAGS, used, "sm_90a", toolkit)
    assert "-l:libnccl.so.2" in flags and "--no-device-link" in flags and "-rdc=true" not in flags


def test_emulated_gpus_have_headers_of_their_own(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = emulator_package()
    assert package is not None
    monkeypatch.setenv("NVSHMEM_HOME", str(nvshmem_and_nccl(tmp_path)[0]))
    source = "#include <nvshmem.h>\n#include <nccl_device.h>"
    assert [found.library for found in included_libraries(source, toolkit)] == [NVSHMEM], "NCCL is not here"
    used = included_libraries(source, toolkit, emulated=True)
    assert [found.library for found in used] == [NVSHMEM, NCCL]
    assert options(used, "sm_90a", toolkit) == (
        *("-std=c++17", f"-I{package / 'include'}"),
        *("-include", "pkb/nvshmem_cuda.h", "-include", "pkb/nccl_cuda.h"),
    )


@needs_nvcc
@pytest.mark.slow
@pytest.mark.skipif(None in (find(NVSHMEM), find(NCCL)), reason="needs the wheels of NVSHMEM and NCCL")
@pytest.mark.parametrize("candidate", candidates("cuda/libraries"), ids=lambda candidate: candidate.path.stem)
def test_a_kernel_is_linked_with_what_is_installed(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    artifact = compile_cuda(candidate.source, CompileCache(tmp_path / "cache"), 300.0, "sm_90a")
    assert artifact.binary is not None, artifact.log
    prefix = candidate.path.stem.partition("_")[0]
    kernel = sum((each.instructions or InstructionCounts() for each in artifact.kernels), InstructionCounts())
    assert artifact.transfers in (None, kernel), "of the library's own kernels, none counts"
    assert exports_solution(artifact.binary) and f"pkb_{prefix}_begin".encode() in artifact.binary


def test_the_cccl_of_the_toolkit_gives_way_to_the_variable_and_not_to_a_wheel(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "site", "nvidia-cuda-cccl", "9.9", **{"nvidia/cu13/include/cccl/cuda/std/version": ""})
    monkeypatch.syspath_prepend(tmp_path / "site")
    (own,) = header_libraries(toolkit)
    assert own.title == "CCCL 3.0.1" and own.is_built_in
    (brought,) = header_libraries(tmp_path / "a toolkit without it")
    assert brought.origin == "wheel nvidia-cuda-cccl 9.9"
    monkeypatch.setenv("CCCL_ROOT", str(write(tmp_path / "cccl", **{"include/cuda/std/version": ""})))
    (named,) = header_libraries(toolkit)
    assert named.folders == (tmp_path / "cccl/include",)
    assert included_libraries("#include <cub/cub.cuh>", toolkit) == (named,)


@pytest.mark.usefixtures("checkouts")
def test_the_record_the_task_text_and_doctor_name_them(toolkit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (execution_environment, doctor_libraries):
        monkeypatch.setattr(module, "find_toolkit", lambda: toolkit)
        monkeypatch.setattr(module, "nvcc_available", lambda: True)
    monkeypatch.setattr(execution_environment, "nvcc_version", lambda: "nvcc 13.0")
    titles = ("CUTLASS 4.2.1", "ThunderKittens", "CCCL 3.0.1")
    assert execution_environment.describe("cuda", "native").header_libraries == titles
    assert execution_environment.describe("cpu", "native").header_libraries == ()
    machine = execution_environment.this_machine()
    native = contracts.native_contract(find_problem("AllReduce"), "cuda", machine, "full")
    assert "  - CUTLASS 4.2.1: `cutlass/...`, `cute/...`\n" in native and "  - ThunderKittens: `kittens.cuh`" in native
    python = contracts.python_contract("def solution():", "cuda", machine, "full")
    assert "tk/include`" in python and "CCCL" not in python
    findings = {finding.name: finding for finding in examine_libraries()}
    assert list(findings) == ["CUTLASS", "ThunderKittens", "CCCL", "NVSHMEM", "NCCL's device API"]
    assert findings["CUTLASS"].detail.startswith("4.2.1 (CUTLASS_PATH=")
    assert findings["NVSHMEM"].state == "limited" and "nvidia-nvshmem-cu13" in findings["NVSHMEM"].remedy
    monkeypatch.setenv("CCCL_ROOT", "/nowhere")  # it said "ok", and that of the toolkit was taken
    cccl = {finding.name: finding for finding in examine_libraries()}["CCCL"]
    assert cccl.state == "limited" and cccl.remedy.startswith("unset CCCL_ROOT")
    assert cccl.detail.startswith("CCCL_ROOT=/nowhere has no ") and "; kernels get 3.0.1 (" in cccl.detail
    monkeypatch.setattr(doctor_libraries, "nvcc_available", lambda: False)
    assert examine_libraries() == []
