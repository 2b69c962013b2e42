"""What `pkb doctor` makes of GPUs and of the compiler for them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from pkb_gym.cli import doctor_gpus
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.gangs.sandbox import bubblewrap_works
from pkb_gym.engine.hardware import gpus
from tests.fake_gpus import pretend

H200 = ("NVIDIA H200",) * 4


@pytest.fixture(autouse=True)
def gpu_machine(monkeypatch):
    """Four GPUs, a sandbox that sees them, and all packages."""
    pretend(monkeypatch, *H200)
    monkeypatch.setattr(doctor_gpus, "bubblewrap_works", lambda: True)
    monkeypatch.setattr(doctor_gpus, "seen_in_sandbox", lambda: "4")
    monkeypatch.setattr(doctor_gpus, "_is_there", lambda module: True)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0+cu130")


def found(name):
    return next((finding for finding in doctor_gpus.examine_gpus() if finding.name == name), None)


def test_gpus_are_described(monkeypatch):
    assert found("GPUs").detail == "4 x NVIDIA H200, driver 580.95, 18 NVLinks up on each"
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    assert found("GPUs").detail.endswith("multicast switched off")
    pretend(monkeypatch, "NVIDIA H200", "NVIDIA H200", nvlinks=0, apart=((0, 1),))
    assert found("GPUs").detail == "2 x NVIDIA H200, driver 580.95, 0 NVLinks up on each, none between 1 pairs"


def test_all_is_well():
    states = {finding.name: finding.state for finding in doctor_gpus.examine_gpus() if finding.name != "nvcc"}
    assert states.pop("cuobjdump", "ok") in ("ok", "limited")
    assert states == {"GPUs": "ok", "GPUs in sandbox": "ok"}


def test_unknown_peaks_are_reported(monkeypatch):
    assert found("GPU peaks") is None
    pretend(monkeypatch, "NVIDIA Imaginary")
    assert found("GPU peaks").state == "limited" and "NVIDIA Imaginary" in found("GPU peaks").remedy


def test_gpus_that_the_sandbox_hides_are_reported(monkeypatch):
    monkeypatch.setattr(doctor_gpus, "seen_in_sandbox", lambda: "error 100 of cuInit")
    assert found("GPUs in sandbox").state == "limited" and "error 100 of cuInit" in found("GPUs in sandbox").detail
    monkeypatch.setattr(doctor_gpus, "bubblewrap_works", lambda: False)
    assert found("GPUs in sandbox") is None


def test_packages_that_ranks_need_are_reported(monkeypatch):
    monkeypatch.setattr(doctor_gpus, "_is_there", lambda module: module != "triton")
    assert found("cuda-bindings") is None and found("triton").remedy == "pip install triton"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0+cpu")
    assert found("torch on GPUs").state == "limited"


def test_without_gpus_the_compiler_is_reported_all_the_same(monkeypatch):
    pretend(monkeypatch)
    names = [finding.name for finding in doctor_gpus.examine_gpus()]
    assert names[:2] == ["GPUs", "nvcc"] and "GPUs in sandbox" not in names
    assert found("GPUs").state == "limited"


def test_compiler_and_disassembler(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_gpus, "nvcc_available", lambda: True)
    monkeypatch.setattr(doctor_gpus, "find_toolkit", lambda: tmp_path)
    monkeypatch.setattr(doctor_gpus, "nvcc_version", lambda: "nvcc 13.0.88")
    monkeypatch.setattr(doctor_gpus, "find_disassembler", lambda toolkit: None)
    assert found("nvcc").detail == f"nvcc 13.0.88 ({tmp_path}), compiles for sm_90a"
    assert found("cuobjdump").state == "limited" and "pkb-gym[cuda]" in found("cuobjdump").remedy
    monkeypatch.setattr(doctor_gpus, "find_disassembler", lambda toolkit: toolkit)
    monkeypatch.setattr(doctor_gpus, "disassembler_version", lambda toolkit: "Build 13.0")
    assert found("cuobjdump").detail == f"Build 13.0 ({tmp_path})"


def test_a_compiler_that_is_missing_or_broken_is_reported(monkeypatch):
    monkeypatch.setattr(doctor_gpus, "nvcc_available", lambda: False)
    assert found("nvcc").state == "limited" and "CUDA_HOME" in found("nvcc").remedy
    pretend(monkeypatch)
    assert found("nvcc").remedy == "", "nobody needs it"

    def broken():
        raise InfrastructureError("it lies in /nowhere")

    monkeypatch.setattr(doctor_gpus, "nvcc_available", lambda: True)
    monkeypatch.setattr(doctor_gpus, "find_toolkit", broken)
    assert "it lies in /nowhere" in found("nvcc").detail


def test_an_architecture_that_is_none_is_reported(monkeypatch):
    """nvcc "compiled for foo", and was ok."""
    pretend(monkeypatch)
    monkeypatch.setattr(doctor_gpus, "nvcc_available", lambda: True)
    monkeypatch.setattr(doctor_gpus, "find_toolkit", lambda: Path("/opt/cuda"))
    monkeypatch.setattr(doctor_gpus, "nvcc_version", lambda: "nvcc 13.0")
    monkeypatch.setenv("PKB_CUDA_ARCHITECTURE", "foo")
    assert found("nvcc").state == "limited" and "PKB_CUDA_ARCHITECTURE is 'foo'" in found("nvcc").detail


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap")
@pytest.mark.parametrize(
    ("probe", "seen"),
    [("print('first'); print(7)", "7"), ("raise OSError('libcuda.so.1: no')", "OSError: libcuda.so.1: no")],
)
def test_the_sandbox_is_really_asked(monkeypatch, probe, seen):
    monkeypatch.undo()
    monkeypatch.setattr(doctor_gpus, "PROBE", probe)
    assert doctor_gpus.seen_in_sandbox() == seen


@pytest.mark.gpu
@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap")
def test_the_sandbox_sees_the_gpus(monkeypatch):
    monkeypatch.undo()
    assert doctor_gpus.seen_in_sandbox() == str(len(gpus.names()))
