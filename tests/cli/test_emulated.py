"""The device "emulated" on the command line: what it refuses, and the verdict of a kernel."""

from __future__ import annotations

import pytest

from pkb_gym.cli import doctor_emulator, main
from pkb_gym.engine.compile.nvcc import nvcc_available
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.evaluators.local import LocalEvaluator
from tests.fake_gpus import pretend_gpus

needs_nvcc = pytest.mark.skipif(not nvcc_available(), reason="needs nvcc and g++")
KERNEL = '#include "pkb/symm.h"\nvoid solution(pkb::Comm comm) {}\n'


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text(KERNEL)
    return str(path)


@pytest.fixture
def evaluate(tmp_path, capsys):
    """`evaluate(FILE, *OPTIONS)`: `pkb eval` of AllReduce with a real evaluator; its status and all that it says."""

    def run(*argv):
        status = main(["eval", "AllReduce", *argv], lambda key: LocalEvaluator(key=key, cache_dir=tmp_path))
        captured = capsys.readouterr()
        return status, " ".join((captured.out + captured.err).split())

    return run


@needs_nvcc
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "emulated", "--until", "time"], "nothing is timed on device 'emulated'"),
        (["--device", "emulated", "--until", "profile"], "choose until='check'"),
        (["--device", "emulated", "--keep", "kept"], "--keep writes calls for gdb and compute-sanitizer"),
        (["--device", "emulated", "--debug"], "device 'emulated' has no debug builds"),
        (["--device", "cuda", "--race", "on"], "races cannot be detected here"),
    ],
)
def test_what_it_cannot_do_is_wrong_usage(evaluate, kernel, options, message):
    status, printed = evaluate(kernel, *options)
    assert status == 2 and message in printed


@needs_nvcc
def test_a_python_module_is_rejected_with_where_it_runs(evaluate, tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import torch\n\n\ndef solution(x):\n    return x\n")
    status, printed = evaluate(str(path), "--device", "emulated")
    assert status == 1 and "evaluate the module on device 'cpu' or 'cuda'" in printed


def test_its_task_says_that_nothing_is_timed(pkb):
    ran = pkb("show", "AllReduce", "--device", "emulated", "--world-size", "2")
    assert ran.status == 0
    text = " ".join(ran.out.split())
    assert "each on an emulated GPU of its own" in text and "nothing is timed" in text
    assert "roofline: emulated GPUs have no peaks" in text


@pytest.mark.parametrize(
    ("built", "words"), [(False, "the first evaluation compiles the emulator"), (True, "the emulator is compiled")]
)
def test_doctor_says_whether_it_works(monkeypatch, built, words):
    monkeypatch.setattr(doctor_emulator, "why_not_emulated", lambda: None)
    monkeypatch.setattr(doctor_emulator, "is_built", lambda cache: built)
    found = doctor_emulator.examine_emulator()
    assert found.state == "ok" and words in found.detail and found.name == "emulated GPUs"


@pytest.mark.parametrize(
    ("why", "why_triton", "words"),
    [
        ("", "", "; the race detector judges beside GPUs; Triton's GSan judges Triton sources"),
        (
            "2 processors",
            "Triton is old",
            "does not judge beside GPUs: 2 processors; Triton's GSan does not judge Triton sources: Triton is old",
        ),
    ],
)
def test_doctor_says_whether_races_are_judged_beside_gpus(monkeypatch, why, why_triton, words):
    monkeypatch.setattr(doctor_emulator, "no_gsan", lambda: why_triton)
    monkeypatch.setattr(doctor_emulator, "why_not_emulated", lambda: None)
    monkeypatch.setattr(doctor_emulator, "is_built", lambda cache: True)
    monkeypatch.setattr(doctor_emulator, "no_detector", lambda: why)
    pretend_gpus(monkeypatch, "NVIDIA H200")
    assert doctor_emulator.examine_emulator().detail.endswith(words)


def test_doctor_says_why_it_does_not(monkeypatch):
    monkeypatch.setattr(doctor_emulator, "why_not_emulated", lambda: "install nvcc")
    found = doctor_emulator.examine_emulator()
    assert (found.state, found.remedy) == ("limited", "install nvcc")

    def no_compiler(cache):
        raise InfrastructureError("there is no g++")

    monkeypatch.setattr(doctor_emulator, "why_not_emulated", lambda: None)
    monkeypatch.setattr(doctor_emulator, "is_built", no_compiler)
    found = doctor_emulator.examine_emulator()
    assert found.state == "limited" and "there is no g++" in found.remedy
